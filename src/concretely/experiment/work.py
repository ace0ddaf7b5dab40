"""The work of an experiment: bundles of members to train and score, in one process, in several, or on a cluster."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch

from ..training.recipe import Member
from .scheduler import DataOf, Monitor, is_scored, score_member, train_members
from .scoring import Precision

Bundle = Sequence[Member]
"""Members that are scored together, such as the candidates for a cell of a table. One process trains them all."""


class Score(Protocol):
    """Scores a bundle once it is trained. It is pickled to be sent to other machines."""

    def __call__(self, bundle: Bundle, data: DataOf, *, device: torch.device | str, monitor: Monitor) -> None:
        """Score the members of a bundle as far as that is not done."""
        ...

    def is_done(self, bundle: Bundle) -> bool:
        """Return whether a bundle is known to be trained and scored, without reading checkpoints."""
        ...

    def is_scored(self, bundle: Bundle) -> bool:
        """Return whether a bundle that is trained has all its scores."""
        ...


@dataclass(frozen=True)
class ScoreSplits:
    """Scores every member on splits of the data."""

    wanted: Mapping[str, Precision]

    def __call__(self, bundle: Bundle, data: DataOf, *, device: torch.device | str, monitor: Monitor) -> None:
        """Score the members of a bundle as far as that is not done."""
        for member in bundle:
            score_member(member, data(member.recipe), self.wanted, device=device, monitor=monitor)

    def is_done(self, bundle: Bundle) -> bool:
        """Return False, as only the checkpoint tells whether a record is current."""
        return False

    def is_scored(self, bundle: Bundle) -> bool:
        """Return whether all members have their scores."""
        return all(is_scored(member, self.wanted) for member in bundle)


@dataclass(frozen=True)
class Work:
    """Bundles of members to train and to score, and how."""

    folder: Path
    """The folder of all members."""
    bundles: Sequence[Bundle]
    data: DataOf
    score: Score
    device: torch.device
    monitor: Monitor
    checkpoint_seconds: float = 60.0
    programs: int = 1
    """The number of programs that share the device."""
    until: int | None = None
    """The step at which to pause, or None to train to the end."""
    points: int | None = None
    """The maximum number of data points of a split, or None for all."""
    max_bytes: int | None = None
    """The maximum memory of the arrays of a data file, or None for the usual one."""

    @property
    def members(self) -> list[Member]:
        """The members of all bundles."""
        return list(chain(*self.bundles))

    @property
    def how(self) -> dict[str, Any]:
        """The options of training."""
        return {"device": self.device, "checkpoint_seconds": self.checkpoint_seconds, "until": self.until}

    def score_all(self, members: Sequence[Member], monitor: Monitor) -> None:
        """Score the members of every bundle that are among `members`."""
        for bundle in self.bundles:
            if here := [member for member in bundle if member in members]:  # arguments of builders cannot be hashed
                self.score(here, self.data, device=self.device, monitor=monitor)


Train = Callable[[Work], bool]
"""Trains and scores; returns whether all is done, which is false if the monitor has stopped the work."""


def train_here(work: Work) -> bool:
    """Train and score in this process. Members of one architecture train as one program."""
    how: dict[str, Any] = {**work.how, "programs": work.programs, "monitor": work.monitor, "then": work.score_all}
    return train_members(work.members, work.data, **how)
