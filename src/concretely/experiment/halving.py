"""Successive halving: pause all members at a step, and train only the best on the validation set further.

A factor of 3 keeps the best third at a ninth of the steps, the best third of these at a third, and so on
[jamieson2016nonstochastic]. Members pause at a checkpoint, and the selected ones resume from it. So a member that is
trained to the end is the same as without halving.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..training.folder import restored
from ..training.recipe import Member
from . import scoring
from .record import read_checked, write_record
from .scheduler import DataOf, Monitor, has_diverged
from .scoring import abort_on_stop, add_scores, score_metric
from .work import Bundle

FILE = "halving.json"
"""The file in the folder of a member that has its scores at the steps where members are compared."""


class Rung(NamedTuple):
    """A step at which members are compared, and the number of members that go on."""

    step: int
    kept: int


def plan_rungs(members: int, *, steps: int, factor: int) -> list[Rung]:
    """Return the steps at which all but one `factor`-th of the members are stopped.

    >>> plan_rungs(12, steps=900, factor=3)
    [Rung(step=100, kept=4), Rung(step=300, kept=2)]
    """
    if factor < 2:
        raise ValueError(f"halving must be at least 2, the factor by which the members are reduced, got {factor}")
    if members < factor:
        raise ValueError(f"halving must be at most the number of members, {members}, got {factor}")
    rungs, number = list[Rung](), members
    count = next(power for power in range(members) if factor ** (power + 1) > members)
    for power in range(count, 0, -1):
        if step := steps // factor**power:
            number = math.ceil(number / factor)
            rungs.append(Rung(step, number))
    return rungs


@dataclass(frozen=True)
class ScoreRung:
    """Scores members on the validation set at the step of a rung."""

    step: int
    samples: int

    def __call__(self, bundle: Bundle, data: DataOf, *, device: torch.device | str, monitor: Monitor) -> None:
        """Score the members of a bundle that are not scored at this step."""
        for member in bundle:
            if self.is_done([member]):
                continue
            monitor.note(f"scoring {member.folder.name} at step {self.step:,}")
            run, model, _ = restored(member.folder, device=device)
            own = data(member.recipe)
            how: dict[str, Any] = {"split": "valid", "samples": self.samples, "progress": monitor.progress}
            with abort_on_stop(monitor.stop, model):
                score = scoring.score_split(run.recipe, model, own, **how)
            add_scores(member.folder, run, model, data=own, scores={"valid": score}, note=monitor.note)
            scores = {**_scores(member), _key(self.step, self.samples): score_metric(score)}
            write_record(member.folder / FILE, {"scores": scores})

    def is_done(self, bundle: Bundle) -> bool:
        """Return whether all members of a bundle are scored at this step, or have diverged."""
        return all(has_diverged(member) or self.value(member) is not None for member in bundle)

    def is_scored(self, bundle: Bundle) -> bool:
        """Return whether all members of a bundle are scored at this step, or have diverged."""
        return self.is_done(bundle)

    def value(self, member: Member) -> float | None:
        """Return the score of a member at this step, infinite if it is not a number, or None if it is not known."""
        metric = _scores(member).get(_key(self.step, self.samples))
        if metric is None:
            return None
        value = metric.get("value")
        return math.inf if value is None else float(value)

    def best(self, members: Sequence[Member], number: int) -> list[Member]:
        """Return the members with the best scores, in their order. Ties go to the first member."""

        def value(member: Member) -> float:
            score = None if has_diverged(member) else self.value(member)
            return math.inf if score is None else score

        kept = sorted(members, key=value)[:number]
        return [member for member in members if member in kept]


def _key(step: int, samples: int) -> str:
    return f"step {step}, {samples} samples"


def _scores(member: Member) -> Mapping[str, Any]:
    """Return the scores of a member, or none if the file is missing or damaged: they are computed again."""
    path = member.folder / FILE
    if not path.exists():
        return {}
    try:
        scores = read_checked(path, remedy="delete it")["scores"]
    except (ValueError, KeyError):
        return {}
    return scores if isinstance(scores, dict) and all(isinstance(score, dict) for score in scores.values()) else {}
