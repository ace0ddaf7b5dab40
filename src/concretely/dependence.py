"""Which nodes of a stochastic graph depend on which others."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from .distribution import Bernoulli, Discrete, Hypercube
from .program import Program, at_rest
from .trace import Outcome


def parents(program: Program, inputs: tuple[Any, ...], trace: Mapping[str, Outcome]) -> dict[str, tuple[str, ...]]:
    """For every node, the nodes that its distribution depends on.

    The values are replayed. A node depends on another if the parameters of its distribution have a derivative in the
    value of the other, even one of zero, or change when that value is turned into its opposite.
    """
    values = {name: outcome.value.detach() for name, outcome in trace.items()}
    with at_rest(program):
        with torch.enable_grad():
            leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
            connected = {
                name: _connected(parameters, leaves)
                for name, parameters in _replayed_parameters(program, inputs, leaves).items()
            }
        with torch.no_grad():
            before = _replayed_parameters(program, inputs, values)
            after = {
                name: _replayed_parameters(program, inputs, values | {name: _opposite(trace[name])}) for name in values
            }
    return {
        name: tuple(
            other for other in values if other in connected[name] or not _equal(before[name], after[other][name])
        )
        for name in before
    }


def _replayed_parameters(
    program: Program, inputs: tuple[Any, ...], values: Mapping[str, Tensor]
) -> dict[str, list[Tensor]]:
    """The parameters of all distributions in a run with given values."""
    parameters: dict[str, list[Tensor]] = {}

    def draw(name: str, distribution: Distribution, *, observed: Tensor | None = None) -> Tensor:
        fields = [vars(distribution)[field] for field in distribution.arg_constraints if field in vars(distribution)]
        parameters[name] = [field for field in fields if isinstance(field, Tensor)]
        return values[name]

    program(draw, *inputs)
    return parameters


def _connected(parameters: list[Tensor], leaves: dict[str, Tensor]) -> set[str]:
    """The names of the leaves that parameters were computed from by differentiable steps."""
    moving = [parameter.sum() for parameter in parameters if parameter.requires_grad]
    if not moving:
        return set()
    gradients = torch.autograd.grad(moving, list(leaves.values()), allow_unused=True, retain_graph=True)
    return {name for name, gradient in zip(leaves, gradients, strict=True) if gradient is not None}


def _opposite(outcome: Outcome) -> Tensor:
    """A value with nothing in common with that of an outcome."""
    value = outcome.value.detach()
    match outcome.distribution:
        case Hypercube():
            return -value
        case Discrete():
            return value.roll(1, -1)
        case Bernoulli():
            return 1 - value
        case _:
            return value + 1


def _equal(before: list[Tensor], after: list[Tensor]) -> bool:
    pairs = zip(before, after, strict=True)
    return all(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True) for one, other in pairs)
