"""What a contender is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..agreement import Probe


@dataclass(frozen=True)
class Contender:
    """A way of training a model, from a seed to parameters that are there when the call returns.

    A probe draws as a step does and leaves the parameters alone.
    """

    name: str
    step: Callable[[int], Any]
    probe: Callable[[int], Probe]
    ours: bool = False

    @property
    def described(self) -> dict[str, Any]:
        """What a record says of the contender."""
        return {"name": self.name}
