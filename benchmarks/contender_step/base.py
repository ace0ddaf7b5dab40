"""The interface of a contender."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..agreement import Probe


@dataclass(frozen=True)
class Contender:
    """A way of training a model. A call takes a seed and returns finished parameters.

    A probe draws as a step does, but does not change the parameters.
    """

    name: str
    step: Callable[[int], Any]
    probe: Callable[[int], Probe]
    ours: bool = False

    @property
    def described(self) -> dict[str, Any]:
        """The contender as a record stores it."""
        return {"name": self.name}
