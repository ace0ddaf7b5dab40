"""A process that trains, and says which checkpoints are complete."""

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from concretely.training import checkpoint
from concretely.training.loop import train

from .example import data, recipe


def work(folder: Path, told: Connection, wishes: dict[str, Any]) -> None:
    """Train in a folder with a checkpoint after every step, and say so each time one is complete."""
    save = checkpoint.save

    def announced(folder: Path, step: int, *state: Any) -> Path:
        path = save(folder, step, *state)
        told.send(step)
        return path

    checkpoint.save = announced
    train(recipe(**wishes), folder, data=data(), checkpoint_seconds=0.0)
