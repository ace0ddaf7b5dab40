"""Gradients of one problem by several estimators: taken, timed and tallied."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from ..estimator import Estimator, estimate
from ..model.base import Model
from ..objective import Objective
from ..program import Program
from .progress import Advance
from .tally import Tally


class Trial(NamedTuple):
    """An estimator, and what it is asked for."""

    estimator: Estimator
    objective: Objective
    samples: int


@dataclass(frozen=True, eq=False)
class Problem:
    """What gradients are taken of, and in which parameters."""

    target: Model | Program
    inputs: tuple[Any, ...]
    parameters: Sequence[Tensor]
    generator: Generator | None

    def gradient(self, trial: Trial) -> Sequence[Tensor | None]:
        """One estimate: a tensor for each parameter, none where it does not enter."""
        loss = estimate(self.target, *self.inputs, **trial._asdict(), generator=self.generator).loss
        if not loss.requires_grad:
            return [None] * len(self.parameters)
        return torch.autograd.grad(loss, self.parameters, allow_unused=True)

    def tallies(
        self, trials: Sequence[Trial], *, repeats: int, groups: int, advance: Advance
    ) -> list[tuple[Tally, float]]:
        """The tally of so many estimates of each trial, and the median time of one.

        Trials take turns, so that all share the moods of the machine, but a group is taken at once: what an estimator
        remembers of one estimate hardly reaches the next group.
        """
        size = sum(parameter.numel() for parameter in self.parameters)
        tallies = [Tally(size, groups=groups) for _ in trials]
        seconds: list[list[float]] = [[] for _ in trials]
        for group in range(groups):
            for trial, tally, times in zip(trials, tallies, seconds, strict=True):
                for _ in range(group * repeats // groups, (group + 1) * repeats // groups):
                    start = self._now()
                    parts = self.gradient(trial)
                    times.append(self._now() - start)
                    tally.add(self._flat(parts), group=group)
                    advance(1)
        return list(zip(tallies, map(median, seconds), strict=True))

    def split(self, vector: Float64[Tensor, " size"]) -> tuple[Tensor, ...]:
        """A vector as one tensor for each parameter."""
        parts = vector.split([parameter.numel() for parameter in self.parameters])
        return tuple(part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True))

    def _flat(self, parts: Sequence[Tensor | None]) -> Float64[Tensor, " size"]:
        """A gradient as one vector on the host, zero where a parameter does not enter."""
        pairs = zip(parts, self.parameters, strict=True)
        filled = [torch.zeros_like(parameter) if part is None else part for part, parameter in pairs]
        return torch.cat([part.detach().cpu().double().flatten() for part in filled])

    def _now(self) -> float:
        device = self.parameters[0].device
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter()
