"""A training step that all contenders take, and what they are given to take it."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..work import Start

Estimator = Literal["concrete", "vimco", "nvil"]

RATE = 0.8
"""How much of NVIL's running mean and variance is kept in a step."""


@dataclass(frozen=True)
class Case:
    """So many models of one latent layer, trained as one program; what is asked of a step in µs for each of them."""

    members: int
    samples: int
    estimator: Estimator
    asked: float | None = None
    within: float | None = None
    """How many times as long as one of concrete relaxations it may take."""
    notation: str = "200H~784V"
    batch: int = 64

    @property
    def title(self) -> str:
        """The case in a line."""
        many = f"{self.members} model{'s' * (self.members > 1)}"
        return f"step of {self.notation}, batch {self.batch}, {self.estimator}, m = {self.samples}, {many}"

    @property
    def described(self) -> dict[str, Any]:
        """What a record says of the case."""
        return {
            "architecture": self.notation,
            "batch": self.batch,
            "method": self.estimator,
            "samples": self.samples,
            "members": self.members,
        }


@dataclass(frozen=True)
class Given:
    """What a contender starts from: weights, and packed bits of a width that it draws its batches from."""

    start: Start
    packed: NDArray[np.uint8]
    width: int
    device: torch.device
    precision: str
    """How precise products are, in the words of torch."""
    times: int
    """How many steps a turn has."""
