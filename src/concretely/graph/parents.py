"""Find the parents of every node of a stochastic graph."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Transform

from ..distribution import Hypercube, OneHotCategorical
from ..distribution.variable import DiscreteVariable
from .program import Program, eval_mode
from .trace import Outcome

REPLAYS = 4
"""The number of random values to try for each node."""


def parents(program: Program, inputs: tuple[Any, ...], trace: Mapping[str, Outcome]) -> dict[str, tuple[str, ...]]:
    """Return, for every node, the nodes that its distribution depends on.

    A is a parent of B if autograd connects the value of A to a parameter of B, or if a parameter of B changes in a
    rerun with another value of A. If no parameters of B can be found, all earlier nodes count as its parents.
    """
    values = {name: outcome.seen.detach() for name, outcome in trace.items()}
    with eval_mode(program):
        with torch.enable_grad():
            leaves = {name: value.clone().requires_grad_(value.is_floating_point()) for name, value in values.items()}
            seen = _replayed_parameters(program, inputs, leaves)
            found = {name: _connected(parameters, leaves) for name, parameters in seen.items()}
        with torch.no_grad():
            before = _replayed_parameters(program, inputs, values)
            for other, outcome in trace.items():
                for value in _others(outcome):
                    after = _replayed_parameters(program, inputs, values | {other: value})
                    for name in before:
                        if not _equal(before[name], after[name]):
                            found[name].add(other)
    order = list(values)
    for name, parameters in before.items():
        if not parameters:
            found[name].update(order[: order.index(name)])
    return {name: tuple(other for other in order if other in found[name]) for name in before}


def _replayed_parameters(
    program: Program, inputs: tuple[Any, ...], values: Mapping[str, Tensor]
) -> dict[str, list[Tensor]]:
    """Return the parameters of all distributions in a run with given values."""
    parameters: dict[str, list[Tensor]] = {}

    def draw(name: str, distribution: Distribution, *, observed: Tensor | None = None) -> Tensor:
        parameters[name] = list(tensors_of(distribution))
        return values[name]

    program(draw, *inputs)
    return parameters


def tensors_of(part: object) -> Iterator[Tensor]:
    """Yield the tensors in a distribution, its base distribution and its transforms."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, Distribution | Transform):
        for inner in vars(part).values():
            yield from tensors_of(inner)
    elif isinstance(part, list | tuple) and not isinstance(part, torch.Size):
        for inner in part:
            yield from tensors_of(inner)


def _connected(parameters: list[Tensor], leaves: dict[str, Tensor]) -> set[str]:
    """Return the names of the leaves that autograd connects to the parameters."""
    outputs = [parameter.sum() for parameter in parameters if parameter.requires_grad]
    inputs = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    if not outputs or not inputs:
        return set()
    gradients = torch.autograd.grad(outputs, list(inputs.values()), allow_unused=True, retain_graph=True)
    return {name for name, gradient in zip(inputs, gradients, strict=True) if gradient is not None}


def _others(outcome: Outcome) -> Iterator[Tensor]:
    """Yield the opposite of a value, then random values."""
    value, distribution = outcome.seen.detach(), outcome.distribution
    if not isinstance(distribution, DiscreteVariable):
        yield value + 1 if value.is_floating_point() else value.flip(0)
        return
    states = distribution.enumerate_support(expand=False).reshape(-1, *distribution.event_shape)
    match distribution:
        case Hypercube():
            yield -value
        case OneHotCategorical():
            yield value.roll(1, -1)
        case _:
            yield 1 - value
    generator = torch.Generator().manual_seed(0)
    shape = value.shape[: value.dim() - len(distribution.event_shape)]
    for _ in range(REPLAYS):
        yield states[torch.randint(len(states), shape, generator=generator).to(states.device)].to(value.dtype)


def _equal(before: list[Tensor], after: list[Tensor]) -> bool:
    return len(before) == len(after) and all(
        one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        for one, other in zip(before, after, strict=True)
    )
