"""A target for the sparsity of gates."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .base import Layer, require_number
from .gate import Gate
from .rank import whole

T = TypeVar("T")
Size = Callable[..., Tensor]
"""A function of the values of all gates that returns the size of what they leave."""


class TargetReport(NamedTuple):
    """Diagnostics of a `Target`."""

    target: Tensor
    """The sparsity that is now asked for."""
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

    Args:
        gates: The gates.
        sparsity: The share to remove, from 0 to 1, or a schedule such as `Warmup(1000, end=0.9)`.
        size: A function of the values of all gates, one tensor each, that returns the size of what they leave, in which
            each gate occurs at most once in a product. By default, it is the number of open gates.
        strength: The factor between the parameters and the multipliers: how fast these move.

    >>> gates = Gate(64), Gate(100)
    >>> target = Target(gates, sparsity=0.5, size=lambda inputs, units: inputs.sum() * units.sum())
    >>> [round(number.item(), 3) for number in target.report()[:2]]
    [0.5, 0.19]
    """

    sparsity: float | Tensor

    def __init__(
        self,
        gates: Iterable[Gate],
        *,
        sparsity: float | Callable[[int], float],
        size: Size | None = None,
        strength: float = 10.0,
    ) -> None:
        super().__init__()
        self.governs = tuple(gates)
        if not self.governs or not all(isinstance(gate, Gate) for gate in self.governs):
            found = ", ".join(type(gate).__name__ for gate in self.governs) or "none"
            raise TypeError(f"gates must be one or more Gate layers, got {found}")
        self._set("sparsity", sparsity, lambda value: require_number("sparsity", value, most=1.0))
        self.size = size if size is not None else _number
        self.strength = require_number("strength", strength)
        self.multipliers = nn.Parameter(torch.zeros(2))

    def forward(self, x: T) -> T:
        """Return the input, so that a target can be part of `nn.Sequential`."""
        return x

    def _sparsity(self, values: Callable[[Any], Tensor]) -> Float[Tensor, ""]:
        """Return the share that gates with these values remove."""
        found = [values(gate) for gate in self.governs]
        return 1 - self.size(*found) / self.size(*map(torch.ones_like, found))

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

    def decide(self) -> None:
        """Return None: the gates decide."""

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{len(self.governs)} gates, strength={self.strength}"


def _number(*values: Tensor) -> Tensor:
    """Return the sum of all values."""
    return torch.stack([value.sum() for value in values]).sum()
