"""How to build each variable, over which the laws run, and which cases of a law the suite runs."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import concretely as c

LOGITS = (0.0, 1.0, -1.0, 10.0, -10.0, 50.0, -50.0, 100.0, -100.0, 1e3, -1e3, 1e4, -1e4)
TEMPERATURES = (1e-3, 0.01, 0.1, 0.5, 2 / 3, 1.0, 2.0, 10.0)
CATEGORIES = (2, 3, 8, 64, 1024)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


@dataclass(frozen=True)
class Case:
    """A family of variables: how to build a member, and the shape its logits have."""

    name: str
    build: Callable[..., Any]
    has_categories: bool
    determined: int = 4
    """A number of categories with which a value determines its node."""

    def logits(self, n: int, *, dtype: torch.dtype = torch.float64, batch: tuple[int, ...] = ()) -> Tensor:
        """Ordinary logits, the same at every call."""
        shape = (*batch, n) if self.has_categories else batch
        return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(n), dtype=torch.float64).to(dtype)

    def sizes(self) -> tuple[int, ...]:
        """The numbers of categories to try."""
        if not self.has_categories:
            return (2,)
        most = 64 if self.name == "Subset" else CATEGORIES[-1]  # of more there are too many subsets to enumerate
        return tuple(n for n in CATEGORIES if n <= most and ("Hypercube" not in self.name or n != 3))


def named(family: type) -> Callable[..., Any]:
    """Build a variable of a family from logits and, if it has one, a temperature."""

    def build(logits: Any, *temperature: Any, **options: Any) -> Any:
        return family(logits=logits, **dict(zip(("temperature",), temperature, strict=False)), **options)

    return build


def _circuit(noise: str) -> Callable[..., Any]:
    return lambda logits, temperature, **options: c.BinaryCircuit(
        logits=logits, temperature=temperature, noise=noise, **options
    )


def _circuit_node(noise: str) -> Callable[..., Any]:
    return lambda logits, temperature, **options: c.CircuitNode(
        logits=logits, temperature=temperature, noise=noise, **options
    )


def _subset(logits: Tensor, **options: Any) -> c.Subset:
    return c.Subset(logits=logits, k=int(min(logits.shape[-1] // 2, 2)), **options)


MASSES = (
    Case("Bernoulli", named(c.Bernoulli), has_categories=False),
    Case("OneHotCategorical", named(c.OneHotCategorical), has_categories=True),
    Case("Hypercube", named(c.Hypercube), has_categories=True),
    Case("Subset", _subset, has_categories=True),
)
LOG_SPACE = (
    Case("Logistic", named(c.Logistic), has_categories=False),
    Case("ExpConcrete", named(c.ExpConcrete), has_categories=True),
    Case("ExpLogisticNormal", named(c.ExpLogisticNormal), has_categories=True),
)
NODES = (
    *LOG_SPACE,
    Case("CircuitNode-normal", _circuit_node("normal"), has_categories=False),
    Case("CircuitNode-laplace", _circuit_node("laplace"), has_categories=False),
    Case("CircuitNode-logistic", _circuit_node("logistic"), has_categories=False),
    Case("CircuitNode-cauchy", _circuit_node("cauchy"), has_categories=False),
)
RELAXATIONS = (
    Case("BinaryConcrete", named(c.BinaryConcrete), has_categories=False),
    Case("Concrete", named(c.Concrete), has_categories=True),
    Case("HypercubeConcrete", named(c.HypercubeConcrete), has_categories=True, determined=2),
    Case("HypercubeLogisticNormal", named(c.HypercubeLogisticNormal), has_categories=True, determined=2),
    Case("LogisticNormal", named(c.LogisticNormal), has_categories=True),
    Case("BinaryCircuit-normal", _circuit("normal"), has_categories=False),
    Case("BinaryCircuit-laplace", _circuit("laplace"), has_categories=False),
    Case("BinaryCircuit-cauchy", _circuit("cauchy"), has_categories=False),
)
GATE = Case("HardConcrete", named(c.HardConcrete), has_categories=False)
TEMPERED = (*NODES, *RELAXATIONS, GATE)
GUMBEL = Case("Gumbel", lambda logits, temperature, **options: c.Gumbel(logits, **options), has_categories=False)
CONTINUOUS = (*TEMPERED, GUMBEL)


EDGE = pytest.mark.filterwarnings("ignore::concretely.functional.squashing.EdgeWarning")
"""For laws that score values on the edge, of which a warning says that they are many."""


def each(*cases: Case) -> pytest.MarkDecorator:
    """Run a law over cases."""
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def exhaustive(*values: Any) -> list[Any]:
    """Values of a parametrisation that `make test-all` runs and `make test` does not."""
    return [pytest.param(value, marks=pytest.mark.exhaustive) for value in values]


def grid(**axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Run a law over a grid: over its diagonal, where every value of an axis is, and over all in `make test-all`."""
    largest = max(len(values) for values in axes.values())
    diagonal = {tuple(k % len(values) for values in axes.values()) for k in range(largest)}
    cases = []
    for index in itertools.product(*(range(len(values)) for values in axes.values())):
        chosen = [values[k] for values, k in zip(axes.values(), index, strict=True)]
        name = "-".join(str(getattr(value, "name", value)) for value in chosen)
        cases.append(pytest.param(*chosen, id=name, marks=() if index in diagonal else pytest.mark.exhaustive))
    return pytest.mark.parametrize(tuple(axes), cases)


def sweep(case: Case, n: int, *, dtype: torch.dtype, temperature: float, device: str = "cpu") -> Tensor:
    """The logits of the sweep that the dtype can hold once divided by the temperature.

    With categories the rows have one logit throughout, one against zeros, or any of them at random.
    """
    largest = torch.finfo(dtype).max * min(temperature, 1)
    held = torch.tensor([logit for logit in LOGITS if abs(logit) <= largest], dtype=dtype, device=device)
    if not case.has_categories:
        return held
    alike = held.unsqueeze(-1).expand(-1, n)
    alone = torch.zeros_like(alike).contiguous()
    alone[:, 0] = held
    chosen = torch.randint(len(held), alike.shape, generator=torch.Generator().manual_seed(n))
    return torch.cat([alike, alone, held[chosen.to(device)]])
