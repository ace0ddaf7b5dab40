"""The interface of a contender."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..task import Kind

Space = Literal["node", "unit"]
"""The space of a value: before squashing, as log-odds or log probabilities, or after it."""

Result = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The value and its log densities, then the gradients of the logits."""


@dataclass(frozen=True)
class Family:
    """A class of distributions, built from logits and a temperature as a user of its library would."""

    name: str
    kind: Kind
    space: Space
    build: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Contender:
    """A way of doing a task. A call takes a seed and returns a finished result."""

    name: str
    space: Space
    step: Callable[[int], Result]
    ours: bool = False

    @property
    def described(self) -> dict[str, Any]:
        """The contender as a record stores it."""
        return {"name": self.name, "space": self.space}
