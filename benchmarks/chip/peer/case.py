"""A training step that all contenders take, and what they are given to take it."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..work import Start

Estimator = Literal["concrete", "vimco", "nvil"]

RATE = 0.8
"""The decay of NVIL's running mean and variance."""


@dataclass(frozen=True)
class Case:
    """Models of one latent layer that are trained as one program, and the limit in µs for a step of each."""

    members: int
    samples: int
    estimator: Estimator
    asked: float | None = None
    within: float | None = None
    """The limit for the time of a step, relative to a step with Concrete relaxations."""
    notation: str = "200H~784V"
    batch: int = 64

    @property
    def title(self) -> str:
        """The case in one line."""
        many = f"{self.members} model{'s' * (self.members > 1)}"
        return f"step of {self.notation}, batch {self.batch}, {self.estimator}, m = {self.samples}, {many}"

    @property
    def described(self) -> dict[str, Any]:
        """The case as a record stores it."""
        return {
            "architecture": self.notation,
            "batch": self.batch,
            "method": self.estimator,
            "samples": self.samples,
            "members": self.members,
        }


@dataclass(frozen=True)
class Given:
    """What every contender is given: weights, and packed bits from which it draws its batches."""

    start: Start
    packed: NDArray[np.uint8]
    width: int
    device: torch.device
    precision: str
    """The precision of matrix products, by torch's name."""
    times: int
    """The number of steps of a turn."""
