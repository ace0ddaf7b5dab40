"""Votes of the ranks that train one model together: to stop, and to write a checkpoint."""

import torch
from torch import Tensor

INTERVAL = 32
"""The number of steps between two readings of the votes on a GPU, each of which waits for the device."""


class Ballot:
    """What the ranks ask for, stop and checkpoint, which all of them learn after the same step.

    The votes travel with the gradients.
    """

    def __init__(self, device: torch.device) -> None:
        self.votes = torch.zeros(2, device=device)
        self._counted = torch.zeros(2, device=device)
        self._calls = 0

    def cast(self, *, stop: bool, due: bool) -> None:
        """Ask to stop, or for a checkpoint, with the next gradients."""
        if self.votes.is_cpu or self._calls % INTERVAL == 0:
            self.votes.copy_(torch.tensor([float(stop), float(due)]), non_blocking=True)

    def count(self, sums: Tensor) -> None:
        """Add the sums of all votes of a step."""
        self._counted += sums

    def read(self) -> tuple[bool, bool]:
        """Return whether any rank has asked to stop, and for a checkpoint."""
        self._calls += 1
        if not self._counted.is_cpu and self._calls % INTERVAL:
            return False, False
        stop, due = self._counted.tolist()
        self._counted.zero_()
        return stop > 0, due > 0
