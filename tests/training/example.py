"""Small data and recipes to train with, and what to compare runs by."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from concretely.data import Bits, Dataset
from concretely.training import checkpoint
from concretely.training.engine import Engine
from concretely.training.folder import Run
from concretely.training.loop import train
from concretely.training.recipe import Recipe, resolve
from concretely.training.train_state import Row, TrainState


def data() -> Dataset:
    """Points of twelve bits, the last four of which repeat the first."""
    free = torch.rand(70, 8, generator=torch.Generator().manual_seed(7)) < torch.linspace(0.1, 0.7, 8)
    points = torch.cat([free, free[:, :4]], -1)
    return Dataset("dots", *(Bits.pack(part) for part in points.split([40, 20, 10])), source="made up.")


def recipe(**given: Any) -> Recipe:
    """A recipe of few, large steps."""
    return resolve(**{"notation": "4H-12V", "steps": 30, "batch": 16, "lr": 0.02, "seed": 3} | given)


def trained(folder: Path, *, stop: int | None = None, seconds: float = 60.0, **given: Any) -> Run:
    """Train in a folder, as far as one likes."""
    taken: list[int] = []

    def asked() -> bool:
        taken.append(len(taken))
        return stop is not None and len(taken) >= stop

    return train(recipe(**given), folder, data=data(), checkpoint_seconds=seconds, stop=asked)


def advance(state: TrainState, until: int) -> None:
    """Take steps with a run alone."""
    Engine([state]).advance(until)


def timeless(run: Run) -> tuple[Row, ...]:
    """The rows of a run without what differs from one machine to the next."""
    return tuple(replace(row, seconds=0.0) for row in run.rows)


def tensors(folder: Path) -> dict[str, Tensor]:
    """Everything that the last checkpoint of a folder holds."""
    last = checkpoint.latest(folder)
    assert last is not None
    return last.tensors


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Fail unless both hold the same bits under the same names."""
    assert sorted(found) == sorted(expected)
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype, name
        assert tensor.equal(expected[name]), name


def assert_alike(one: Run, other: Run) -> None:
    """Fail unless two runs have come to the same, in whatever time and environment."""
    one, other = (replace(run, seconds=0.0, rows=timeless(run), environment={}) for run in (one, other))
    assert one == other
