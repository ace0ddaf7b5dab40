"""A target for the sparsity of gates."""

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..functional.arithmetic import bool_or_none
from .base import Layer, require_number
from .gate import Gate
from .rank import reshard, whole

ROUNDING = 1e-6
"""A sparsity this far below a target counts as equal to it."""
T = TypeVar("T")
Size = Callable[..., Tensor]
"""A function of the values of all gates that returns the remaining size of the model."""


class TargetReport(NamedTuple):
    """Diagnostics of a `Target`."""

    target: Tensor
    """The current target of the sparsity."""
    expected_sparsity: Tensor
    """The expected sparsity in training."""
    sparsity: Tensor
    """The sparsity in evaluation."""
    multipliers: Tensor
    """The factors of the distance to the target, and of its square."""


class Target(Layer):
    r"""A penalty that brings the sparsity of gates to a target.

    With the distance d of the expected sparsity below the target, the penalty is $λ_1 d + λ_2 d^2$. The multipliers are
    parameters whose gradient has the opposite sign, so the optimizer that minimises the loss raises them for as long as
    the target is missed. Give them to the optimizer with the other parameters, but without weight decay.

    Make the target part of the model, so that `penalty(model)` finds it. The gates are then not penalised themselves.

    The penalty acts on the expected sparsity, and most runs end before it has converged, so the sparsity in evaluation
    is only close to the target. `match` then opens or closes the least certain gates until the target is met.

    Args:
        gates: One gate, or several.
        sparsity: The share to remove, from 0 to 1, or a schedule such as `Warmup(1000, end=0.9)`.
        size: A function of the values of all gates, one tensor each, that returns the remaining size of the model. Each
            gate may occur at most once in a product. By default, it is the number of open gates.
        strength: The factor between the parameters and the multipliers: how fast these move. With plain SGD they move
            with its square, so that a third of the default suits it better.

    >>> gates = Gate(64), Gate(100)
    >>> target = Target(gates, sparsity=0.5, size=lambda inputs, units: inputs.sum() * units.sum())
    >>> [round(number.item(), 3) for number in target.report()[:2]]
    [0.5, 0.19]
    """

    sparsity: float | Tensor

    def __init__(
        self,
        gates: Gate | Iterable[Gate],
        *,
        sparsity: float | Callable[[int], float],
        size: Size | None = None,
        strength: float = 10.0,
    ) -> None:
        super().__init__()
        self.governs = _gates(gates)
        self._set("sparsity", sparsity, lambda value: require_number("sparsity", value, most=1.0))
        if size is not None and not callable(size):
            raise TypeError(f"size must be a function of the gates' values, got {type(size).__name__}")
        if size is not None:
            _require_takes(size, len(self.governs))
        self.size = size if size is not None else _number
        self.strength = require_number("strength", strength)
        self.multipliers = nn.Parameter(torch.zeros(2))

    def forward(self, x: T) -> T:
        """Return the input, so that a target can be part of `nn.Sequential`."""
        return x

    def _sparsity(self, values: Callable[[Any], Tensor]) -> Float[Tensor, ""]:
        """Return the share that gates with these values remove."""
        all_values = [values(gate) for gate in self.governs]
        left, full = self.size(*all_values), self.size(*map(torch.ones_like, all_values))
        for size in (left, full):
            if not isinstance(size, Tensor) or size.dim():
                kind = f"shape {tuple(size.shape)}" if isinstance(size, Tensor) else type(size).__name__
                raise TypeError(f"size must return a tensor with one number, got {kind}")
        if not full.is_cuda and bool_or_none(full > 0) is False:  # on a GPU, a check would wait for it
            raise ValueError(f"size must be positive with all gates open, got {full.item():.9g}")
        return 1 - left / full

    def penalty(self) -> Float[Tensor, ""]:
        """Return the penalty, with a gradient that lowers the distance and raises the multipliers."""
        self._is_penalised = True
        self._keeps()
        for gate in self.governs:
            gate._is_penalised = True
        distance = self.sparsity - self._sparsity(lambda gate: gate.open_probabilities())
        own = whole(self.multipliers)
        rising = self.strength * (2 * own.detach() - own)  # equal to `own`, with the opposite gradient
        return rising[0] * distance + rising[1] * distance.square()

    @property
    def _is_penalising(self) -> bool:
        return True

    def report(self) -> TargetReport:
        """Return the target, the expected and the actual sparsity, and the multipliers."""
        with torch.no_grad():
            expected = self._sparsity(lambda gate: gate.open_probabilities())
            actual = self._sparsity(lambda gate: (gate.values() != 0).to(expected.dtype))
            target = torch.as_tensor(self.sparsity, dtype=expected.dtype, device=expected.device)
            return TargetReport(target, expected, actual, self.strength * whole(self.multipliers))

    @torch.no_grad()
    def match(self, gates: Gate | Iterable[Gate] | None = None) -> None:
        """Let evaluation keep as many gates as the target allows: those that are open with the largest probabilities.

        It keeps the most gates for which the sparsity is at least the target, up to rounding. A gate that it opens gets
        its mean as its new median. If a gate that it closes was open with probability p, it is now open with
        probability 1 - p. Call it once, for example when 80 % of the steps are done, and train the other parameters for
        the rest with gates in evaluation mode. If FSDP2 has sharded the gates, all ranks must call it.

        Args:
            gates: The gates that may be opened or closed, by default all.
        """
        moved: tuple[Any, ...] = self.governs if gates is None else _gates(gates)
        if not all(any(gate is own for own in self.governs) for gate in moved):
            raise ValueError("gates must be gates of this target")
        for gate in self.governs:
            reshard(gate)
        probabilities = torch.cat([gate.open_probabilities().flatten() for gate in moved])
        order = probabilities.sort(descending=True, stable=True).indices

        def kept(number: int) -> dict[int, Tensor]:
            chosen = torch.zeros_like(probabilities).index_fill(0, order[:number], 1)
            parts = zip(moved, chosen.split([gate.shape.numel() for gate in moved]), strict=True)
            return {id(gate): part.view(gate.shape) for gate, part in parts}

        def sparsity(number: int) -> Tensor:
            chosen = kept(number)
            return self._sparsity(lambda gate: chosen.get(id(gate), (gate.values() != 0).to(probabilities.dtype)))

        low, high = 0, len(order)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if sparsity(middle) >= self.sparsity - ROUNDING else (low, middle - 1)
        for gate in moved:
            gate.keep(kept(low)[id(gate)].bool())

    def decide(self) -> None:
        """Return None: the gates decide."""

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{len(self.governs)} gates, strength={self.strength}"


def _gates(gates: Any) -> tuple[Gate, ...]:
    """Return gates that were given alone or together."""
    is_many = isinstance(gates, Iterable) and not isinstance(gates, nn.Module | Tensor)
    given = tuple(gates) if is_many else (gates,)
    if not given or not all(isinstance(gate, Gate) for gate in given):
        got = ", ".join(type(gate).__name__ for gate in given) or "none"
        raise TypeError(f"gates must be one or more Gate layers, got {got}")
    return given


def _require_takes(size: Size, gates: int) -> None:
    """Raise unless a function takes as many values as there are gates."""
    with suppress(ValueError):  # a function of C without a signature
        own = inspect.signature(size)
        try:
            own.bind(*range(gates))
        except TypeError:
            raise TypeError(f"size must take the values of {gates} gates, one tensor each, got {own}") from None


def _number(*values: Tensor) -> Tensor:
    """Return the sum of all values."""
    return torch.stack([value.sum() for value in values]).sum()
