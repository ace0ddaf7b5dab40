"""Checkpoints: tensors as safetensors, everything else as JSON, written atomically and verified when read.

Reading a checkpoint executes no code. The JSON file is written last, and holds its own digest and that of the tensors.
Tensors without a JSON file are ignored. The last two checkpoints of a run are kept, so that damage to the last costs
only the steps since the one before.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as serialized
from torch import Tensor

from ..file import atomic_write, json_digest, parse_json, read_bytes

FORMAT = 3
"""The version of the format. Concretely 0.1 wrote version 2."""
KEPT = 2
MOST = 2**26
"""The maximum number of bytes of the JSON file."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a step."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    damaged: tuple[str, ...] = ()
    """An error message for each later checkpoint that is damaged."""
    folder: Path = Path()

    @property
    def place(self) -> str:
        """A name of the checkpoint, for errors."""
        return f"the checkpoint of step {self.step:,} in {str(self.folder)!r}"


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write a checkpoint, delete all but the last two, and return the path of the tensors."""
    path = _tensors(folder, step)
    written = serialized({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    with atomic_write(path) as place:
        place.write_bytes(written)
    content = {"format": FORMAT, "step": step, "tensors": _digest(written), "state": dict(state)}
    with atomic_write(path.with_suffix(".json")) as place:
        place.write_bytes(json.dumps({**content, "digest": json_digest(content)}, indent=1).encode())
    # a later checkpoint is damaged, or the run would have resumed from it
    kept = [other for other in _steps(folder, ".json") if other <= step][-KEPT:]
    for kind in (".json", ".safetensors"):  # in this order: tensors without a JSON file are ignored
        for old in set(_steps(folder, kind)) - set(kept):
            _tensors(folder, old).with_suffix(kind).unlink(missing_ok=True)
    return path


def latest(folder: Path) -> Checkpoint | None:
    """Return the last checkpoint that is not damaged, or None if there are no checkpoints.

    Raise an error if all are damaged, or if one has another format.
    """
    damaged, steps = list[str](), _steps(folder, ".json")
    for step in steps[::-1]:
        try:
            tensors, state = _read(_tensors(folder, step), step)
        except _DamagedError as error:
            damaged.append(str(error))
        else:
            return Checkpoint(step, tensors, state, tuple(damaged), folder)
    if _steps(folder, ".json") != steps:  # another process trains, and has deleted those that were listed
        return latest(folder)
    if damaged:
        raise ValueError(f"no checkpoint of {str(folder)!r} can be read: {'; '.join(damaged)}; start a new run")
    return None


def require_tensors(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], place: str) -> None:
    """Raise an error that names the first tensor that is missing, misshapen or unknown."""
    for name in (*expected, *actual):
        if name not in expected:
            raise ValueError(f"{place} must be of this run, got an unknown tensor {name!r}")
        if name not in actual:
            raise ValueError(f"{place} must have a tensor {name!r}, got none")
        wanted, got = (
            f"{str(tensor.dtype)[6:]} of shape {tuple(tensor.shape)}" for tensor in (expected[name], actual[name])
        )
        if got != wanted:
            raise ValueError(f"tensor {name!r} of {place} must be {wanted}, got {got}")


class _DamagedError(ValueError):
    """Raised if the files of a checkpoint have changed since they were written."""


def _read(path: Path, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the state of a checkpoint; raise if any of it has changed since it was written."""
    try:
        text = read_bytes(path.with_suffix(".json"), most=MOST)
        content = parse_json(text)
        known = isinstance(content, dict) and json.dumps(content, indent=1).encode() == text
        known = known and content.pop("digest", None) == json_digest(content)
        if not known or content["step"] != step or not isinstance(content["state"], dict):
            raise ValueError
        version, tensors = content["format"], read_bytes(path)
        if _digest(tensors) != content["tensors"]:
            raise ValueError
        loaded = load(tensors)
    except (OSError, ValueError, KeyError, SafetensorError):
        raise _DamagedError(f"the checkpoint of step {step:,} is damaged") from None
    if version != FORMAT:
        must = f"the checkpoint of step {step:,} in {str(path.parent)!r} must be of format {FORMAT}"
        todo = "train it again in another folder, or use the version of concretely that wrote it"
        raise ValueError(f"{must}, got {version}, that of another version of concretely: {todo}")
    return loaded, content["state"]


def _steps(folder: Path, kind: str) -> list[int]:
    """Return the steps that have a checkpoint file with the suffix `kind`, in increasing order."""
    steps = (path.stem.removeprefix("checkpoint-") for path in folder.glob(f"checkpoint-*{kind}"))
    return sorted(int(step) for step in steps if step.isdecimal())


def _tensors(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step:09}.safetensors"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
