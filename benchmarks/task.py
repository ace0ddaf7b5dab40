"""The work that every contender does on the same numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["binary", "n-ary"]


@dataclass(frozen=True)
class Task:
    """Draw a variable, score the draw under it and under other variables, and backpropagate to all logits.

    >>> task = Task("node", kind="binary", shape=(64, 200), temperatures=(2 / 3,), seed=0)
    >>> len(task.logits), len(task.cotangents)
    (1, 2)
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    temperatures: tuple[float, ...]
    seed: int

    @property
    def title(self) -> str:
        """The task in one line."""
        return f"{self.name}, {self.kind} {self.shape}"

    @property
    def described(self) -> dict[str, Any]:
        """The task as a record stores it."""
        return {"task": self.name, "kind": self.kind, "shape": self.shape, "temperatures": self.temperatures}

    @property
    def logits(self) -> list[NDArray[np.float32]]:
        """The logits of the variable that is drawn, then those of the variables that only score."""
        random = np.random.default_rng((self.seed, 0))
        return [random.standard_normal(self.shape, np.float32) for _ in self.temperatures]

    @property
    def cotangents(self) -> list[NDArray[np.float32]]:
        """The cotangents of the value, then those of the log densities."""
        random = np.random.default_rng((self.seed, 1))
        batch_shape = self.shape if self.kind == "binary" else self.shape[:-1]
        densities = [random.standard_normal(batch_shape, np.float32) for _ in self.temperatures]
        return [random.standard_normal(self.shape, np.float32), *densities]


def scored(
    build: Callable[[Any, Any], Any],
    draw: Callable[[Any], tuple[Any, Any]],
    *,
    logits: Sequence[Any],
    temperatures: Sequence[Any],
) -> tuple[Any, ...]:
    """Return the draw of the first variable, and its log density under every variable, including the first."""
    first, *others = map(build, logits, temperatures)
    value, log_density = draw(first)
    return value, log_density, *(other.log_prob(value) for other in others)
