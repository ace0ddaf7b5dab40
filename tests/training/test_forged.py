"""A checkpoint that someone else has made with a right digest is refused in one sentence, which names what is wrong."""

import os
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch

from concretely.training import checkpoint
from concretely.training.folder import load_recipe, restored
from concretely.training.loop import train

from .example import data, trained

Parts = tuple[dict[str, Any], dict[str, Any]]
"""The tensors and the state of a checkpoint."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with validations, to be read only."""
    folder = tmp_path_factory.mktemp("sound")
    trained(folder, notation="4H-4H-12V", steps=8, validate=4)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return copytree(sound, tmp_path / "run")


def forge(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Change the last checkpoint of a run, and write it as training would."""
    last = checkpoint.latest(folder)
    assert last is not None
    tensors, state = dict(last.tensors), dict(last.state)
    change(tensors, state)
    checkpoint.save(folder, last.step, tensors, state)


def without(name: str) -> Callable[..., object]:
    return lambda tensors, state: (tensors if name in tensors else state).pop(name)


def with_state(**others: Any) -> Callable[..., object]:
    return lambda tensors, state: state.update(others)


def with_tensor(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., object]:
    return lambda tensors, state: tensors.update({name: make(tensors.get(name, torch.zeros(2)))})


BEST, MODEL, MOMENT = "best/p.top.logits", "model/p.top.logits", "first/model.p.top.logits"
ROW = {"step": 1, "seconds": 0.1, "lr": 1e-3, "temperature": None, "objective": -9.0, "discrete": -9.0, "valid": None}
MADE = {"commit": None, "versions": {}, "device": {}}
FORGED: list[tuple[Callable[..., object], str, bool]] = [
    (without(BEST), f"PLACE must have a tensor {BEST!r}, got none", True),
    (
        with_tensor(BEST, lambda t: t[:-1]),
        f"tensor {BEST!r} of PLACE must be float32 of shape (4, 1), got float32 ",
        True,
    ),
    (with_tensor(BEST, lambda t: t.T), f"tensor {BEST!r} of PLACE must be float32 of shape (4, 1), got ", True),
    (
        with_tensor(BEST, torch.Tensor.double),
        f"tensor {BEST!r} of PLACE must be float32 of shape (4, 1), got float64",
        True,
    ),
    (with_tensor("best/q.mine", torch.clone), "PLACE must be of this run, got an unknown tensor 'best/q.mine'", True),
    (without(MODEL), f"PLACE must have a tensor {MODEL!r}, got none", False),
    (with_tensor(MODEL, lambda t: t[None]), f"tensor {MODEL!r} of PLACE must be float32 of shape (4, 1), got ", False),
    (with_tensor("mine", torch.clone), "PLACE must be of this run, got an unknown tensor 'mine'", False),
    (without("row/sums"), "PLACE must have a tensor 'row/sums', got none", False),
    (with_tensor("row/sums", lambda t: t * torch.nan), "tensor 'row/sums' of PLACE must count at most 8 steps", False),
    (with_tensor("row/sums", lambda t: t + 9), "tensor 'row/sums' of PLACE must count at most 8 steps, got 9", False),
    (lambda tensors, state: tensors.clear(), "PLACE must have ", True),
    (lambda tensors, state: state.clear(), "PLACE must have recipe, got none", True),
    (without("environment"), "PLACE must have environment, got none", True),
    (with_state(recipe=[]), "recipe of PLACE must be as training writes it, got []", True),
    (with_state(environment={}), "environment of PLACE must be as training writes it, got {}", True),
    (with_state(environment={**MADE, "device": []}), "device of PLACE must hold text and integers, got []", True),
    (with_state(digest=3), "digest of PLACE must be as training writes it, got 3", True),
    (with_state(start="low"), "start of PLACE must be as training writes it, got 'low'", True),
    (with_state(seconds=float("inf")), "seconds of PLACE must be as training writes it, got inf", True),
    (with_state(rows={}), "rows of PLACE must be as training writes it, got {}", True),
    (with_state(rows=[{**ROW, "objective": None}]), "rows of PLACE must be as training writes it, got", True),
    (with_state(rows=[{**ROW, "bound": -9.0}]), "rows of PLACE must be as training writes it, got", True),
    (with_state(rows=[{**ROW, "mine": 1}]), "rows of PLACE must be as training writes it, got", True),
    (with_state(best=[1]), "best of PLACE must be as training writes it, got [1]", True),
    (with_state(best=[1, "low"]), "best of PLACE must be as training writes it, got [1, 'low']", True),
    (with_state(finished="yes"), "finished of PLACE must be as training writes it, got 'yes'", True),
    (with_state(members=-1), "members of PLACE must be as training writes it, got -1", True),
    (with_state(mine=1), "PLACE must have recipe, environment, digest, start, seconds, rows, best, stale, ", True),
]


@pytest.mark.parametrize(("change", "sentence", "read"), FORGED, ids=[sentence for _, sentence, _ in FORGED])
def test_what_is_wrong_is_named(folder: Path, change: Callable[..., object], sentence: str, read: bool) -> None:
    forge(folder, change)
    place = f"the checkpoint of step 8 in {str(folder)!r}"
    acts: list[Callable[[], object]] = [lambda: train(load_recipe(folder), folder, data=data())]
    for act in [*acts, lambda: restored(folder)] if read else acts:
        with pytest.raises(ValueError, match=r".") as caught:
            act()
        assert str(caught.value).startswith(sentence.replace("PLACE", place))
        assert "\n" not in str(caught.value)


def test_an_untouched_checkpoint_is_read(folder: Path) -> None:
    forge(folder, lambda tensors, state: None)
    assert restored(folder)[0].finished


@pytest.mark.parametrize(
    ("notation", "sentence"),
    [
        ("900000H-900000H-12V", r"must be float32 of shape \(900000, 1\), got float32 of shape \(4, 1\)$"),
        ("1H-" * 5_000 + "12V", r"must have tensors of 5,001 layers, got \d+ tensors$"),
    ],
    ids=["wide", "deep"],
)
def test_reading_takes_no_more_memory_and_time_than_the_checkpoint_asks_for(
    folder: Path, notation: str, sentence: str
) -> None:
    """A recipe of a large model beside a small checkpoint is refused before the model is made."""
    settings = {**load_recipe(folder).settings, "notation": notation}
    text = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
    (folder / "recipe.toml").write_text(text.replace("'", '"'))
    forge(folder, with_state(recipe=settings))
    with pytest.raises(ValueError, match=sentence):
        restored(folder)


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_pipe_in_the_place_of_a_checkpoint_is_damage(folder: Path, kind: str) -> None:
    path = folder / f"checkpoint-000000008.{kind}"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"the checkpoint of step 8 is damaged; start a new run$"):
        restored(folder)
