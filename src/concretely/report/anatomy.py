"""The parts of a stochastic graph that are drawn: how every node computes its state, and an example state."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..distribution import Bernoulli, BinaryConcrete, Concrete, Hypercube, HypercubeConcrete, OneHotCategorical
from ..graph.trace import Outcome, Trace
from ..spelling import format_number

DETAIL = 12
"""The maximum number of logits of a graph that is drawn in full."""

SHOWN = 4096
"""The maximum number of entries of a state that are drawn."""

GROUND = "#e4e4e4"
"""The background of observed nodes."""


class Operation(NamedTuple):
    """An operation between the logits and the state of a node, such as an argmax."""

    text: str
    discrete: bool
    stochastic: bool = False
    gradient_only: bool = False
    """Whether the operation contributes only a gradient to the state (straight-through)."""


@dataclass(frozen=True)
class Node:
    """A node of a graph as it is drawn, with the value of the first sample of the first data point."""

    name: str
    law: str
    observed: bool
    discrete: bool
    logits: Float[Tensor, "units n"]
    """The logits, without columns if the distribution has none."""
    noise: str
    """The symbol of the noise that is added to the logits, or an empty string."""
    operations: tuple[Operation, ...]
    shape: tuple[int, ...]
    brightness: Float[Tensor, "units entries"]

    @property
    def units(self) -> int:
        """The number of independent variables."""
        return len(self.brightness)

    @property
    def n(self) -> int:
        """The number of logits of a unit, or zero without logits."""
        return self.logits.shape[1]

    @property
    def table(self) -> Tensor:
        """The state as a rectangle, at most four times as wide as high, filled up with NaN if needed."""
        state = self.brightness.flatten()[:SHOWN]
        n = len(state)
        rows = next((rows for rows in range(math.isqrt(n), 0, -1) if n % rows == 0 and n <= 4 * rows**2), math.isqrt(n))
        return torch.cat([state, state.new_full((-n % rows,), math.nan)]).view(rows, -1)

    def subscript(self, unit: int, entry: int) -> str:
        """Return the subscript of a logit, or an empty string if there is only one logit."""
        digits = (str(unit + 1) if self.units > 1 else "") + (str(entry + 1) if self.n > 1 else "")
        return digits.translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def anatomy(trace: Trace) -> list[Node]:
    """Return the nodes of a run, in the order of the program.

    >>> from concretely import mode, run
    >>> (node,) = anatomy(run(lambda draw: draw("D", OneHotCategorical(logits=torch.zeros(3))), mode=mode.Discrete()))
    >>> node.noise, [operation.text for operation in node.operations]
    ('G', ['argmax'])
    """
    if not trace:
        raise ValueError("a run must have a node to be drawn, got none")
    for name, outcome in trace.items():
        shape = tuple(outcome.value.shape)
        if not outcome.value.numel():
            raise ValueError(f"a node must have a value to be drawn, got shape {shape} at node {name!r}")
    return [_node(trace, name) for name in trace]


def is_small(nodes: Sequence[Node]) -> bool:
    """Return whether a graph is small enough to be drawn in full."""
    return sum(node.units * max(node.n, 1) for node in nodes) <= DETAIL


def format_shape(shape: Sequence[int]) -> str:
    """Format a shape without axes of length 1."""
    return " × ".join(str(length) for length in shape if length > 1) or "1"


def _node(trace: Trace, name: str) -> Node:
    value, law, observed = trace[name].value, trace[name].distribution, trace[name].observed
    law_shape, entries = law.batch_shape + law.event_shape, law.event_shape.numel()
    unit_axes = min(trace[name].axes + len(law.event_shape), len(law_shape))

    def first(tensor: Tensor) -> Tensor:
        return tensor.detach()[(0,) * max(tensor.dim() - unit_axes, 0)].double().cpu()

    shape = torch.broadcast_shapes(first(value).shape, law_shape[len(law_shape) - unit_axes :])
    example = first(value).expand(shape)
    mass, temperature = law, None
    if isinstance(law, BinaryConcrete | Concrete | HypercubeConcrete):
        mass, temperature = law.discretize(), law.temperature
    if isinstance(mass, Bernoulli | OneHotCategorical | Hypercube):
        noise, operations = _sampling(trace[name], mass, temperature)
        discrete = operations[0].discrete
        if observed:
            noise, operations = "", ()
        shade = ((1 + example) / 2 if isinstance(mass, Hypercube) else example).clamp(0, 1)
        n = mass.logits.shape[-1] if law.event_shape else 1
        logits = first(mass.logits).expand((*shape[:-1], n) if law.event_shape else shape).reshape(-1, n)
    else:
        discrete = law.support is not None and law.support.is_discrete
        noise, operations = "", (Operation(type(law).__name__, discrete, stochastic=True),)
        low, high = example.aminmax()
        shade = torch.full_like(example, 0.5) if low == high else (example - low) / (high - low)
        logits = example.new_empty(example.numel() // entries, 0)
    brightness = shade.reshape(-1, entries)
    return Node(name, type(law).__name__, observed, discrete, logits, noise, operations, tuple(shape), brightness)


def _sampling(
    outcome: Outcome, mass: Bernoulli | OneHotCategorical | Hypercube, temperature: Tensor | None
) -> tuple[str, tuple[Operation, ...]]:
    """Return the symbol of the noise, and the operations from noisy logits to a value.

    If the temperature is unknown, a value is taken as relaxed if it has an unbounded (unsquashed) form or lies between
    the states. A discrete state with a gradient is a straight-through value.
    """
    if isinstance(mass, Bernoulli):
        noise, hard, soft = "L", "step", "sigmoid( · / {} )"
    elif isinstance(mass, OneHotCategorical):
        noise, hard, soft = "G", "argmax", "softmax( · / {} )"
    elif mass.logits.shape[-1] == 1:
        noise, hard, soft = "L", "2 step − 1", "2 sigmoid( · / {} ) − 1"
    else:
        noise, hard, soft = "G", "C argmax", "C softmax( · / {} )"
    value = outcome.value
    if temperature is None:
        discrete = outcome.node is None and bool(mass.support.check(value).all())
    else:
        discrete = not temperature.any()
    operations = [Operation(hard, discrete=True)] if discrete else []
    if not discrete or value.requires_grad:
        text = "λ" if temperature is None or temperature.numel() > 1 else format_number(temperature.item())
        operations.append(Operation(soft.format(text), discrete=False, gradient_only=discrete))
    return noise, tuple(operations)
