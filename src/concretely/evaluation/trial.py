"""Compute and time the gradients of one problem with several estimators."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from ..estimator import Estimator, estimate
from ..graph.program import Program
from ..model.model import Model
from ..objective import Objective
from .progress import Advance
from .tally import Tally


class Trial(NamedTuple):
    """An estimator, its objective and its number of samples."""

    estimator: Estimator
    objective: Objective
    samples: int


@dataclass(frozen=True, eq=False)
class Problem:
    """A model or program, its inputs, and the parameters with respect to which gradients are taken."""

    target: Model | Program
    inputs: tuple[Any, ...]
    parameters: Sequence[Tensor]
    generator: Generator | None

    def gradient(self, trial: Trial) -> Sequence[Tensor | None]:
        """Return one estimate: a tensor for each parameter, or None where the parameter is not used."""
        loss = estimate(self.target, *self.inputs, **trial._asdict(), generator=self.generator).loss
        if not loss.requires_grad:
            return [None] * len(self.parameters)
        return torch.autograd.grad(loss, self.parameters, allow_unused=True)

    def tallies(
        self, trials: Sequence[Trial], *, repeats: int, groups: int, advance: Advance
    ) -> list[tuple[Tally, float]]:
        """Return, for each trial, the tally of `repeats` gradient estimates and the median time of one.

        Trials take turns, so that changes in the speed of the machine affect all of them. A turn computes a whole
        group, so that the internal state of an estimator hardly correlates different groups.
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
        """Split a flat vector into one tensor for each parameter."""
        parts = vector.split([parameter.numel() for parameter in self.parameters])
        return tuple(part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True))

    def _flat(self, parts: Sequence[Tensor | None]) -> Float64[Tensor, " size"]:
        """Return a gradient as one float64 vector on the CPU, zero where a parameter is not used."""
        pairs = zip(parts, self.parameters, strict=True)
        filled = [torch.zeros_like(parameter) if part is None else part for part, parameter in pairs]
        return torch.cat([part.detach().cpu().double().flatten() for part in filled])

    def _now(self) -> float:
        device = self.parameters[0].device
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter()
