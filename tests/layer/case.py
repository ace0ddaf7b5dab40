"""How to build each layer, over which the laws run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from concretely.layer import Choice, Choose, Codebook, ConcreteDropout, Gate, Levels, Permute, Router, Selector
from concretely.schedule import Annealing

BATCH, FEATURES = 12, 6


def inputs(batch: int = BATCH, dtype: torch.dtype = torch.float32) -> Tensor:
    """Ordinary inputs, the same at every call."""
    return torch.randn(batch, FEATURES, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def value(output: Any) -> Tensor:
    """The differentiable part of what a layer returns."""
    return output if isinstance(output, Tensor) else output[0]


@dataclass(frozen=True)
class Case:
    """A layer: how to build it, and what it can do."""

    name: str
    build: Callable[..., Any]
    """Takes a temperature, if it has one."""
    anneals: bool = True
    """Whether it has a temperature."""
    counts: bool = False
    """Whether it has running statistics."""
    data: bool = False
    """Whether its penalty depends on the data, as it does where there are statistics."""
    penalises: bool = True
    """Whether it has a penalty."""
    compiles: bool = True
    """Whether it compiles in little time, so that `make test` compiles it."""

    def made(self, temperature: Any = 0.5, *, dtype: torch.dtype = torch.float32) -> Any:
        """Build the layer, with the same parameters at every call."""
        torch.manual_seed(0)
        layer = self.build(temperature=temperature) if self.anneals else self.build()
        for parameter in layer.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
        return layer.to(dtype)

    def scheduled(self) -> Any:
        """Build the layer with a schedule, if it has a temperature."""
        return self.made(Annealing(1.0, 0.1, steps=10))


def _branches() -> list[nn.Module]:
    return [nn.Linear(FEATURES, FEATURES), nn.Identity(), nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())]


class Matching(Permute):
    """A `Permute` of three items whose inputs are rows, of which each gives a matrix of scores."""

    def __init__(self, temperature: Any, gradient: Any) -> None:
        super().__init__(3, temperature=temperature, gradient=gradient)

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        return super().forward(_outer(x), **options)

    def sample(self, x: Tensor, **options: Any) -> Tensor:
        return super().sample(_outer(x), **options)


def _outer(x: Tensor) -> Tensor:
    return x[..., :3, None] * x[..., None, 3:]


CASES = (
    Case("Choice", lambda temperature: Choice(_branches(), temperature=temperature, cost=[1.0, 0.0, 3.0])),
    Case(
        "ConcreteDropout",
        lambda temperature: ConcreteDropout(nn.Linear(FEATURES, 4), points=10, temperature=temperature),
    ),
    Case("Gate", lambda temperature: Gate(FEATURES, temperature=temperature, probability=0.6)),
    Case("Gate, of a batch", lambda temperature: Gate(FEATURES, temperature=temperature, each="batch"), compiles=False),
    Case("Selector", lambda temperature: Selector(FEATURES, 2, temperature=temperature, weight=0.1), compiles=False),
    Case("Choose", lambda temperature: Choose(2, temperature=temperature, kl=0.1), data=True, compiles=False),
    Case(
        "Choose, mean",
        lambda temperature: Choose(2, temperature=temperature, gradient="mean", kl=0.1),
        data=True,
        compiles=False,
    ),
    Case("Permute", lambda temperature: Matching(temperature, "relaxed"), penalises=False, compiles=False),
    Case(
        "Permute, straight",
        lambda temperature: Matching(temperature, "straight-through"),
        penalises=False,
        compiles=False,
    ),
    Case("Router", lambda: Router(FEATURES, 5, 2), anneals=False, counts=True),
    Case(
        "Router, learned noise",
        lambda: Router(FEATURES, 5, 2, noise="learned"),
        anneals=False,
        counts=True,
        compiles=False,
    ),
    Case("Codebook", lambda temperature: Codebook(FEATURES, 7, groups=2, temperature=temperature), counts=True),
    Case(
        "Codebook, relaxed",
        lambda temperature: Codebook(FEATURES, 7, size=5, temperature=temperature, gradient="relaxed"),
        counts=True,
        compiles=False,
    ),
    Case("Levels", lambda: Levels((8, 5, 5), features=FEATURES, entropy=0.1), anneals=False, counts=True),
    Case("Levels, bits", lambda: Levels((2,) * FEATURES, entropy=0.1), anneals=False, counts=True, compiles=False),
)
