"""The parts of the paper's models: conditioning functions, layers of n-ary units, centring."""

import math
from collections.abc import Sequence
from functools import cached_property, partial, reduce
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Generator, Size, Tensor, nn

from ..distribution.binary import Bernoulli
from ..distribution.cast import cast, working
from ..distribution.check import first, known
from ..distribution.hypercube import Hypercube
from ..distribution.variable import Variable
from ..kernel import affine, observed
from ..kernel.operator import attempted, is_hidden
from ..notation import Layer, Link

RARE = 1e-3
"""Base rates are kept so far from 0 and 1: a pixel that is always off would start with an infinite logit."""


def conditional(inputs: int, outputs: int, link: Link, *, width: int, generator: Generator | None) -> "Conditional":
    """A conditioning function: linear, or with two layers of tanh units in front, initialised as Glorot and Bengio do.

    See [glorot2010understanding] and [maddison2017concrete], appendix D.1.
    """
    sizes = [inputs, outputs] if link == "-" else [inputs, width, width, outputs]
    parts: list[nn.Module] = []
    for size, following in pairwise(sizes):
        linear = nn.utils.skip_init(nn.Linear, size, following)
        nn.init.xavier_uniform_(linear.weight, generator=generator)
        nn.init.zeros_(linear.bias)
        parts += [linear, nn.Tanh()]
    return Conditional(*parts[:-1])


class Conditional(nn.Sequential):
    """Affine maps with tanh between them, on a GPU each in one pass where products need not be as precise as can be."""

    @property
    def maps(self) -> list[nn.Linear]:
        """The affine maps."""
        return [module for module in self if isinstance(module, nn.Linear)]

    def forward(self, state: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """What goes out."""
        maps = self.maps
        found: Tensor | None = None
        if affine.suits(state, maps[0].weight):
            found = attempted(lambda: _last(maps[-1], _hidden(maps[:-1], state)))
        return super().forward(state) if found is None else found  # type: ignore[no-untyped-call]


def _hidden(maps: list[nn.Linear], state: Tensor) -> Tensor:
    """What goes through maps with tanh behind each."""
    return reduce(partial(_mapped, tanh=True), maps, state)


def _last(linear: nn.Linear, state: Tensor) -> Tensor:
    return _mapped(state, linear, tanh=False)


def _mapped(state: Tensor, linear: nn.Linear, *, tanh: bool) -> Tensor:
    rows = state.reshape(1, -1, state.shape[-1])
    found = affine.affine(rows, linear.weight.unsqueeze(0), linear.bias.unsqueeze(0), tanh)
    return found.reshape(*state.shape[:-1], -1)


class Hidden(nn.Module):
    """A layer of n-ary units, given the state of the layer before it.

    A binary unit has one logit, an n-ary one n.
    """

    def __init__(self, before: int, layer: Layer, link: Link, *, width: int, generator: Generator | None) -> None:
        super().__init__()
        self.shape = node_shape(layer)
        self.network = conditional(before, math.prod(self.shape), link, width=width, generator=generator)

    def forward(self, state: Float[Tensor, "*batch before"]) -> Hypercube:
        """The distribution of the layer."""
        logits = _wide_enough(self.network(state))
        return Hypercube(logits.view(*logits.shape[:-1], *self.shape), validate_args=False)


class Top(nn.Module):
    """A layer of n-ary units that is drawn first, from learned logits."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(node_shape(layer)))

    def forward(self) -> Hypercube:
        """The distribution of the layer."""
        return Hypercube(self.logits, validate_args=False)


class Visible(nn.Module):
    """The observed layer of bits, given the state of the layer before it; its bias starts at the base rate."""

    def __init__(
        self,
        before: int,
        layer: Layer,
        link: Link,
        *,
        width: int,
        base_rate: Tensor | None,
        generator: Generator | None,
    ) -> None:
        super().__init__()
        self.units = layer.units
        self.network = conditional(before, layer.units, link, width=width, generator=generator)
        if base_rate is not None:
            bias = [module for module in self.network.modules() if isinstance(module, nn.Linear)][-1].bias
            with torch.no_grad():
                bias.copy_(torch.logit(as_rate(base_rate, layer.units).clamp(RARE, 1 - RARE)))

    def forward(self, state: Float[Tensor, "*batch before"]) -> Bernoulli:
        """The distribution of the layer."""
        *others, last = self.network.maps
        # few rows are soon written and read again
        if affine.suits(state, last.weight) and state.shape[:-1].numel() > affine.FEW:
            hidden = attempted(lambda: _hidden(others, state))
            if hidden is not None:
                return Unwritten(hidden, last)
        return Bernoulli(_wide_enough(self.network(state)), validate_args=False)


class Unwritten(Bernoulli):
    """Bits whose logits, an affine map of a state, are worked out only if they are asked for.

    What is observed is scored without them.
    """

    def __init__(self, state: Float[Tensor, "*batch inputs"], linear: nn.Linear) -> None:
        self._state, self._map = state, (linear.weight.unsqueeze(0), linear.bias.unsqueeze(0))
        self._differentiates = torch.is_grad_enabled()
        super(Variable, self).__init__(Size((*state.shape[:-1], linear.out_features)), Size(), validate_args=False)

    @cached_property
    def logits(self) -> Float[Tensor, "*batch units"]:  # type: ignore[override]
        """The log-odds; gradients are recorded if they were when the layer ran, whoever asks."""
        with torch.set_grad_enabled(self._differentiates):
            rows, (weight, bias) = self._state.reshape(1, -1, self._state.shape[-1]), self._map
            found = attempted(lambda: affine.affine(rows, weight, bias, tanh=False))
            return (rows @ weight.mT + bias if found is None else found).reshape(self.batch_shape)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Bernoulli:  # type: ignore[override]
        """Bits with a larger batch shape, whose logits are written."""
        return Bernoulli(self.logits, validate_args=False).expand(batch_shape)

    def summed_log_prob(self, value: Float[Tensor, "..."], axes: int) -> Float[Tensor, "..."]:
        """The log mass of a value, summed over the last axes of the batch."""
        points, lead = value.shape[:-1], self.batch_shape[: len(self.batch_shape) - value.dim()]
        is_written = "logits" in vars(self)  # then the map has been used, which a ledger lets it be once
        if axes != 1 or self.batch_shape != lead + value.shape or is_written:
            return super().summed_log_prob(value, axes)
        state = self._state.reshape(1, lead.numel(), points.numel(), self._state.shape[-1])
        bits = value.reshape(1, points.numel(), value.shape[-1])
        found = attempted(lambda: observed.log_likelihood(state, *self._map, bits))
        return super().summed_log_prob(value, axes) if found is None else found.reshape(*lead, *points)


class Centre(nn.Module):
    """Subtracts a running average of the state over minibatches, and only then updates it; without a gradient.

    In evaluation, and where no gradient is asked for, the average is still subtracted, and no longer updated.
    See [maddison2017concrete], appendix D.4.
    """

    offset: Tensor

    def __init__(self, units: int, rate: float = 0.9) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("offset", torch.zeros(units))

    def forward(self, state: Float[Tensor, "*batch units"]) -> Float[Tensor, "*batch units"]:
        """The centred state."""
        centred = state - self.offset
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                self.offset.mul_(self.rate).add_(state.flatten(0, -2).mean(0), alpha=1 - self.rate)
        return centred


def _wide_enough(logits: Tensor) -> Tensor:
    """Logits in at least float32, in which log probabilities are summed; autocast would leave them in less."""
    return cast(logits, working(logits.dtype))


def node_shape(layer: Layer) -> tuple[int, int]:
    """The shape of the logits of a layer: its nodes, and the logits of each."""
    return layer.groups, 1 if layer.arity == 2 else layer.arity


def dtype_of(layers: nn.ModuleList) -> torch.dtype:
    """The dtype of the parameters of layers, found without a walk through all of them."""
    hidden = layers[0]
    assert isinstance(hidden, Hidden)
    linear = hidden.network[0]
    assert isinstance(linear, nn.Linear)
    return linear.weight.dtype


def as_units(name: str, bits: Tensor, units: int, dtype: torch.dtype) -> Float[Tensor, "*batch units"]:
    """Observed bits in the dtype of the model, refused if they are too many or too few."""
    if not isinstance(bits, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(bits).__name__}")
    if bits.dim() == 1:
        raise ValueError(f"{name} must have an axis of data points before that of bits, got shape {tuple(bits.shape)}")
    if bits.dim() == 0 or bits.shape[-1] != units:
        raise ValueError(f"{name} must have a last axis of {units} bits, got shape {tuple(bits.shape)}")
    return bits.to(dtype)


def as_bits(name: str, bits: Tensor, units: int, dtype: torch.dtype) -> Float[Tensor, "*batch units"]:
    """Observed bits in the dtype of the model, refused if any is none."""
    bits = as_units(name, bits, units, dtype)
    if is_hidden(bits):
        return bits
    low, high = torch.aminmax(torch.addcmul(bits, bits, bits, value=-1)) if bits.numel() else (bits, bits)
    if known(((low == 0) & (high == 0)).all()) is False:  # x - x² is zero for bits alone, and two quick passes
        raise ValueError(f"{name} must be bits of 0 and 1, got {first(bits, (bits != 0) & (bits != 1))}")
    return bits


def signs(bits: Float[Tensor, "*batch units"]) -> Float[Tensor, "*batch units"]:
    """Bits as minus and plus one, in one pass."""
    return torch.add(torch.tensor(-1.0, dtype=bits.dtype, device="cpu"), bits, alpha=2)


def as_rate(rate: Tensor, units: int) -> Tensor:
    """The base rate of every pixel."""
    if rate.shape != (units,):
        raise ValueError(
            f"base_rate must have shape ({units},), one rate for each observed unit, got {tuple(rate.shape)}"
        )
    if known(((rate >= 0) & (rate <= 1)).all()) is False:
        raise ValueError(f"base_rate must lie between 0 and 1, got {first(rate, (rate < 0) | (rate > 1))}")
    return rate
