"""Votes of the ranks that train one model together: to stop, and to write a checkpoint."""

import time

import torch
from torch import Tensor

from .group import LOST_RANK, LostRankError

INTERVAL = 32
"""The number of steps between two readings of the votes on a GPU, each of which waits for the device."""


MOMENT = 5e-5
"""Seconds between two polls of the device."""


class Ballot:
    """Requests of ranks to stop or to write a checkpoint, which all ranks read after the same step.

    The votes are averaged along with the gradients. Reading them raises an error if another rank does not answer within
    `seconds`, since torch has no timeout for averages over ranks in CUDA graphs.
    """

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._seconds = seconds
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
        self.wait()
        stop, due = self._counted.tolist()
        self._counted.zero_()
        return stop > 0, due > 0

    def wait(self) -> None:
        """Wait until the device has done its work."""
        if self.votes.is_cpu:
            return
        done, until = torch.cuda.Event(), time.monotonic() + self._seconds
        done.record(torch.cuda.current_stream(self.votes.device))
        while not done.query():
            if time.monotonic() > until:
                raise LostRankError(f"{LOST_RANK} (no answer within {self._seconds:,.0f} seconds)")
            time.sleep(MOMENT)
