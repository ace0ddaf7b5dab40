"""Gates that are learned to be open or closed."""

import math
from contextlib import nullcontext
from numbers import Real
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..distribution import HardConcrete
from ..distribution.hard_concrete import as_stretch
from ..functional import hard_concrete
from ..functional.arithmetic import cast, compute_dtype
from ..functional.gate import gated
from ..functional.hard_concrete import node_at
from ..functional.noise import Source
from ..functional.torch_draw import shared_draws
from ..spelling import require_one_of
from .base import Layer, Setting, require_count, require_number
from .rank import assign, of_rows, reshard, whole

LEAST_VALUE = 1e-2
"""The smallest value that `Gate.keep` gives a gate, so that it is not rounded to a closed one."""


class GateReport(NamedTuple):
    """Diagnostics of a `Gate`."""

    expected_sparsity: Tensor
    """The expected share of closed gates in training."""
    sparsity: Tensor
    """The share of gates that are closed in evaluation."""
    entropy: Tensor
    """The mean entropy of a gate being open or closed, in nats."""


class Gate(Layer):
    r"""Multiplication by gates, each of which is 0 or 1 with positive probability, to prune a network.

    In training, gates are draws of `HardConcrete` [louizos2018learning]. In evaluation, they are its medians, so that a
    gate is closed if and only if it is closed with a probability of at least 1/2. `sample` draws gates of 0 and 1,
    which are open with probability sigmoid(logits). The penalty is `weight` times the expected share of open gates;
    `l0` is their expected number. A gate under a `Target` is penalised by the target instead.

    Args:
        shape: The shape of the gates, such as the number of channels.
        probability: The initial probability that a gate is open.
        temperature: A number, a tensor that broadcasts to `shape`, or a schedule such as `Annealing`.
        stretch: The interval of the distribution before it is clipped to [0, 1].
        axis: The axis of the inputs that is the last of the gates' axes, such as -3 for the channels of images.
        each: Whether gates are drawn for each data point ("point") or for the whole batch ("batch").
        weight: The weight of the penalty.

    >>> gate = Gate(100, probability=0.9)
    >>> gate(torch.randn(5, 100)).shape, round(gate.report().expected_sparsity.item(), 3)
    (torch.Size([5, 100]), 0.1)
    """

    def __init__(
        self,
        *shape: int,
        probability: float = 0.9,
        temperature: Setting = 2 / 3,
        stretch: tuple[float, float] = (-0.1, 1.1),
        axis: int = -1,
        each: Literal["point", "batch"] = "point",
        weight: float = 1.0,
    ) -> None:
        super().__init__(temperature, units=[require_count("shape", size) for size in shape])
        self.shape = torch.Size(shape)
        if not self.shape:
            raise ValueError("shape must have at least one axis, got none")
        if isinstance(axis, bool) or not isinstance(axis, int) or axis >= 0:
            raise ValueError(f"axis must be negative, counted from the last axis of the inputs, got {axis}")
        require_one_of("each", each, "point", "batch")
        self.stretch, self.axis, self.each = as_stretch(stretch), axis, each
        self.weight = require_number("weight", weight)
        probability = require_number("probability", probability, most=1.0)
        if probability in (0, 1):
            raise ValueError(f"probability must lie strictly between 0 and 1 to be learned, got {probability:g}")
        log_odds = math.log(probability) - math.log1p(-probability)
        start = log_odds + torch.as_tensor(self.temperature) * node_at(0, self.stretch)
        self.logits = nn.Parameter(start.to(torch.get_default_dtype()).expand(self.shape).clone())

    def forward(self, x: Float[Tensor, "*shape"], *, generator: Source | None = None) -> Float[Tensor, "*shape"]:
        """Multiply inputs by gates: drawn in training, medians in evaluation."""
        self._check(x)
        self._keeps()
        if not self.training:
            return self._times(x, self._law().median)
        if self.each == "batch":
            with shared_draws():
                return self._times(x, self._drawn((), generator))
        shape = self._drawn_shape(x)
        generator = of_rows(generator, shape)
        if self.axis == -1 and not isinstance(self.temperature, Tensor):
            return gated(x, whole(self.logits), self.temperature, self.stretch, generator=generator)
        return self._times(x, self._drawn(shape, generator))

    def _drawn(self, shape: tuple[int, ...], generator: Source | None) -> Tensor:
        if isinstance(self.temperature, Tensor):
            return self._law().rsample(shape, generator=generator)
        logits, temperature = self._wide_logits(), self.temperature
        return hard_concrete.draw(logits, temperature, self.stretch, sample_shape=shape, generator=generator)

    @torch.no_grad()
    def sample(self, x: Float[Tensor, "*shape"], *, generator: Source | None = None) -> Float[Tensor, "*shape"]:
        """Multiply inputs by drawn gates of 0 and 1, without gradients."""
        self._check(x)
        shape = self._drawn_shape(x)
        with shared_draws() if self.each == "batch" else nullcontext():
            return self._times(x, self._law().discretize().sample(shape, generator=of_rows(generator, shape)))

    def _law(self) -> HardConcrete:
        temperature, stretch = self.temperature, self.stretch
        return HardConcrete(logits=self._wide_logits(), temperature=temperature, stretch=stretch, validate_args=False)

    def _wide_logits(self) -> Tensor:
        logits = whole(self.logits)
        return cast(logits, compute_dtype(logits.dtype))

    def _check(self, x: Any) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(
                f"x must be a floating tensor, got {x.dtype if isinstance(x, Tensor) else type(x).__name__}"
            )
        end = x.dim() + self.axis + 1
        if end < len(self.shape) or x.shape[end - len(self.shape) : end] != self.shape:
            asked = f"axes of lengths {tuple(self.shape)} that end at axis {self.axis}"
            raise ValueError(f"x must have {asked}, got shape {tuple(x.shape)}")

    def _drawn_shape(self, x: Tensor) -> tuple[int, ...]:
        """Return the shape of the data points, of which each has its own gates."""
        return tuple(x.shape[: x.dim() + self.axis + 1 - len(self.shape)]) if self.each == "point" else ()

    def _times(self, x: Tensor, gates: Tensor) -> Tensor:
        gates = cast(gates, x.dtype)
        return x * (gates if self.axis == -1 else gates[(..., *[None] * (-self.axis - 1))])

    def open_probabilities(self) -> Float[Tensor, "*shape"]:
        """Return the probability of every gate to be open, that is not 0, in training."""
        return self._law().nonzero_probs

    def values(self) -> Float[Tensor, "*shape"]:
        """Return the gates of evaluation, between 0 and 1."""
        return self._law().median

    def l0(self, cost: float | Tensor = 1.0) -> Float[Tensor, ""]:
        """Return the expected cost of all open gates: with a cost of 1, the expected number of open gates."""
        if isinstance(cost, bool) or not isinstance(cost, Real | Tensor):
            raise TypeError(f"cost must be a number or a tensor, got {type(cost).__name__}")
        if isinstance(cost, Tensor) and cost.dim() and cost.shape != self.shape:
            raise ValueError(f"cost must be one number or of shape {tuple(self.shape)}, got shape {tuple(cost.shape)}")
        self._is_penalised = True
        return (self.open_probabilities() * cost).sum()

    def penalty(self) -> Float[Tensor, ""]:
        """Return the weighted expected share of open gates."""
        return self.weight * self.l0() / self.shape.numel()

    @property
    def _is_penalising(self) -> bool:
        return self.weight > 0

    def report(self) -> GateReport:
        """Return the expected and the actual sparsity, and the entropy."""
        with torch.no_grad():
            is_open = self.open_probabilities()
            entropy = torch.special.entr(is_open) + torch.special.entr(1 - is_open)
            closed = (self.values() == 0).to(is_open.dtype).mean()
            return GateReport(1 - is_open.mean(), closed, entropy.mean())

    def decide(self, keep: int | None = None) -> list[int]:
        """Return the flat indices of the gates that are open in evaluation or, if given, of the `keep` best gates."""
        with torch.no_grad():
            if keep is not None:
                require_count("keep", keep, least=0, most=self.shape.numel(), of=", the number of gates")
                return sorted(whole(self.logits).flatten().topk(keep).indices.tolist())
            return self.values().flatten().nonzero().flatten().tolist()

    @torch.no_grad()
    def keep(self, chosen: Bool[Tensor, "*shape"]) -> None:
        """Change as few gates as possible so that evaluation opens these and closes all others.

        A gate that is opened gets its mean as its new median. If a gate that is closed was open with probability p, it
        is now closed with probability p. If FSDP2 has sharded the gates, all ranks must call it.
        """
        if not isinstance(chosen, Tensor) or chosen.dtype != torch.bool or chosen.shape != self.shape:
            got = f"{chosen.dtype} of shape {tuple(chosen.shape)}" if isinstance(chosen, Tensor) else repr(chosen)
            raise ValueError(f"chosen must be torch.bool of shape {tuple(self.shape)}, got {got}")
        reshard(self)
        law, logits, (low, high) = self._law(), self._wide_logits(), self.stretch
        edge, least = (self.temperature * node_at(value, self.stretch) for value in (0, LEAST_VALUE))
        opened = self.temperature * torch.logit((law.mean.clamp(min=LEAST_VALUE) - low) / (high - low))
        closed = torch.minimum(2 * edge - logits, torch.as_tensor(2 * edge - least, dtype=logits.dtype))
        is_open = law.median > 0
        assign(self.logits, torch.where(chosen == is_open, logits, torch.where(chosen, opened, closed)))

    @torch.no_grad()
    def prune(
        self, before: nn.Module | None = None, after: nn.Module | None = None, *, keep: int | None = None
    ) -> tuple[nn.Module | None, nn.Module | None]:
        """Return the layers before and after the gate with only those units whose gates are open.

        The values of the gates are multiplied into the weights of the layer after. Both are `nn.Linear` or
        convolutions; between them may be operations on single units only.
        """
        if len(self.shape) != 1:
            raise ValueError(f"shape must have one axis to prune layers, got {tuple(self.shape)}")
        for layer in (self, before, after):
            if layer is not None:
                reshard(layer)
        index = torch.tensor(self.decide(keep), dtype=torch.int64, device=self.logits.device)
        return _pruned(before, index, None, self), _pruned(after, index, self.values()[index], self)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{', '.join(map(str, self.shape))}, axis={self.axis}, each={self.each!r}, weight={self.weight}"


def _pruned(layer: nn.Module | None, index: Tensor, values: Tensor | None, gate: Gate) -> nn.Module | None:
    """Return a layer with some of its outputs or, given the values of their gates, with some of its inputs."""
    if layer is None:
        return None
    if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        raise TypeError(f"a layer to prune must be an nn.Linear or a convolution, got {type(layer).__name__}")
    axis, names = (0, ("out_features", "out_channels")) if values is None else (1, ("in_features", "in_channels"))
    weight, bias = whole(layer.weight), None if layer.bias is None else whole(layer.bias)
    if weight.shape[axis] != gate.shape[0]:
        raise ValueError(f"a layer to prune must have {gate.shape[0]} units at the gate, got {weight.shape[axis]}")
    pruned = weight.index_select(axis, index)
    if values is not None:
        pruned = pruned * values.to(pruned.dtype).view(-1, *[1] * (pruned.dim() - 2))
    kind = nn.Linear if isinstance(layer, nn.Linear) else type(layer)
    if bias is not None and values is None:
        bias = bias[index]
    new = kind.__new__(kind)
    new.__dict__ = {**layer.__dict__, "_parameters": {}}
    setattr(new, names[0] if isinstance(layer, nn.Linear) else names[1], len(index))
    new.weight = nn.Parameter(pruned)
    new.register_parameter("bias", None if bias is None else nn.Parameter(bias.clone()))
    return new
