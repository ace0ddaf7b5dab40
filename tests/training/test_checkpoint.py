"""A checkpoint gives back what was saved, bit for bit, or is not believed."""

import builtins
import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from shutil import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from concretely.training import checkpoint
from concretely.training.checkpoint import latest, save

from .example import assert_same

STATE = {"start": -8.25, "rows": [{"step": 10, "bound": 0.1 + 0.2, "valid": None}], "best": None, "name": 'a "汉"\n'}
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def content(step: int) -> dict[str, Tensor]:
    """Tensors of every dtype and of odd shapes, with values that only bits tell apart."""
    made = {f"model/{dtype}": (torch.arange(6) * step).view(2, 3).to(dtype) for dtype in DTYPES}
    strange = torch.tensor([float("nan"), float("inf"), -0.0, 5e-324, step])
    return {
        **made,
        "strange": strange,
        "scalar": torch.tensor(step),
        "none": torch.empty(0, 3),
        "turned": torch.rand(3, 2).T,
    }


def file(folder: Path, step: int, kind: str) -> Path:
    """A file of a checkpoint."""
    return folder / f"checkpoint-{step:09}.{kind}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the checkpoints of two steps."""
    for step in (5, 8):
        save(tmp_path, step, {"weight": torch.full((2, 3), float(step))}, STATE)
    return tmp_path


def assert_falls_back(folder: Path) -> None:
    """Fail unless the checkpoint of step 5 is used in place of that of step 8, with a word about it."""
    found = latest(folder)
    assert found is not None
    assert (found.step, found.state, found.damaged) == (5, STATE, ("the checkpoint of step 8 is damaged",))
    assert found.tensors["weight"].equal(torch.full((2, 3), 5.0))


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert latest(tmp_path) is None


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    saved = content(7)
    assert save(tmp_path, 7, saved, STATE) == file(tmp_path, 7, "safetensors")
    found = latest(tmp_path)
    assert found is not None
    assert (found.step, found.state, found.damaged) == (7, STATE, ())
    assert_same(
        {n: t.view(torch.uint8) if t.dim() else t for n, t in found.tensors.items()},
        {n: t.contiguous().view(torch.uint8) if t.dim() else t for n, t in saved.items()},
    )
    assert {name: tensor.dtype for name, tensor in found.tensors.items()} == {n: t.dtype for n, t in saved.items()}


def test_the_last_two_are_kept_and_nothing_else(tmp_path: Path) -> None:
    for count, step in enumerate((3, 9, 10, 99, 100), start=1):
        save(tmp_path, step, content(step), STATE)
        assert len(list(tmp_path.iterdir())) == 2 * min(count, 2)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [f"checkpoint-{step:09}.json" for step in (99, 100)]
    assert latest(tmp_path).step == 100


def test_steps_beyond_nine_digits_are_in_order_too(tmp_path: Path) -> None:
    for step in (999_999_998, 999_999_999, 1_000_000_000):
        save(tmp_path, step, {}, STATE)
    assert latest(tmp_path).step == 1_000_000_000
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("kind", ["json", "safetensors"])
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damaged_bit_is_recognised(folder: Path, kind: str, place: int, bit: int) -> None:
    whole = file(folder, 8, kind).read_bytes()
    place %= len(whole)
    damaged = bytearray(whole)
    damaged[place] ^= 1 << bit
    file(folder, 8, kind).write_bytes(damaged)
    try:
        assert_falls_back(folder)
    finally:
        file(folder, 8, kind).write_bytes(whole)


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_any_missing_end_is_recognised(folder: Path, kind: str) -> None:
    whole = file(folder, 8, kind).read_bytes()
    for length in range(len(whole)):
        file(folder, 8, kind).write_bytes(whole[:length])
        assert_falls_back(folder)
    file(folder, 8, kind).write_bytes(whole + b" ")
    assert_falls_back(folder)


def test_missing_tensors_are_recognised_and_a_checkpoint_without_json_is_none(folder: Path) -> None:
    file(folder, 8, "safetensors").unlink()
    assert_falls_back(folder)
    file(folder, 8, "json").unlink()
    assert (latest(folder).step, latest(folder).damaged) == (5, ())


@pytest.mark.parametrize("key", ["step", "format", "state"])
def test_json_that_was_changed_is_recognised(folder: Path, key: str) -> None:
    told = json.loads(file(folder, 8, "json").read_text())
    told[key] = {"step": 9, "format": 4, "state": {}}[key]
    file(folder, 8, "json").write_text(json.dumps(told, indent=1))
    assert_falls_back(folder)


@pytest.mark.parametrize("version", [1, 2, 4])
def test_a_checkpoint_of_another_format_is_refused_with_what_to_do(
    version: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "FORMAT", version)
        save(folder, 9, {"weight": torch.zeros(2)}, STATE)
    must = f"the checkpoint of step 9 in {str(folder)!r} must be of format 3"
    todo = "train it again in another folder, or use the version of concretely that wrote it"
    sentence = f"{must}, got {version}, that of another version of concretely: {todo}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        latest(folder)


@pytest.mark.parametrize("text", ["null", "[]", "3", '"text"', "{}", '{"digest": null}', "[" * 100_000, "9" * 5000])
def test_json_that_is_no_checkpoint_is_recognised(folder: Path, text: str) -> None:
    file(folder, 8, "json").write_text(text)
    assert_falls_back(folder)


def test_a_checkpoint_under_the_name_of_another_step_is_recognised(folder: Path) -> None:
    for kind in ("json", "safetensors"):
        file(folder, 8, kind).unlink()
        copy(file(folder, 5, kind), file(folder, 8, kind))
    assert_falls_back(folder)


def test_tensors_of_another_checkpoint_are_recognised(folder: Path) -> None:
    copy(file(folder, 5, "safetensors"), file(folder, 8, "safetensors"))
    assert_falls_back(folder)


def test_other_files_are_no_checkpoints(folder: Path) -> None:
    for name in ("checkpoint-last.json", "checkpoint-.json", "checkpoint--9.json", "checkpoint-9.txt"):
        (folder / name).write_text("{}")
    assert (latest(folder).step, latest(folder).damaged) == (8, ())
    save(folder, 9, {}, STATE)
    assert len(list(folder.iterdir())) == 8


def test_two_damaged_ones_are_refused_with_one_sentence(folder: Path) -> None:
    for step in (5, 8):
        file(folder, step, "safetensors").write_bytes(b"")
    sentence = f"no checkpoint of {str(folder)!r} can be read: "
    sentence += "the checkpoint of step 8 is damaged; the checkpoint of step 5 is damaged; start a new run"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        latest(folder)


def test_a_run_that_has_gone_on_from_an_earlier_checkpoint_drops_the_damaged_one(folder: Path) -> None:
    file(folder, 8, "json").write_text("{}")
    save(folder, 6, {}, STATE)
    assert (latest(folder).step, latest(folder).damaged) == (6, ())
    assert sorted(path.name for path in folder.glob("*.json")) == [f"checkpoint-{step:09}.json" for step in (5, 6)]
    assert len(list(folder.iterdir())) == 4


class ExecutedError(Exception):
    """Raised by what must not be executed."""


class Trap:
    """An object whose pickle executes code."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return exec, ("from tests.training.test_checkpoint import ExecutedError; raise ExecutedError",)


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_nothing_is_executed(folder: Path, kind: str) -> None:
    trap = pickle.dumps(Trap())
    with pytest.raises(ExecutedError):
        pickle.loads(trap)
    file(folder, 8, kind).write_bytes(trap)
    assert_falls_back(folder)
    torch.save({"weight": torch.zeros(2)}, file(folder, 8, kind))
    assert_falls_back(folder)


class Crash(BaseException):
    """The end of a process, which no code of ours catches."""


def crashing(monkeypatch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Let the process end before the so-manieth call that changes the disk; the calls so far."""
    calls: list[str] = []

    def instead(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **options: object) -> object:
            calls.append(name)
            if len(calls) > at:  # and all later calls fail too: the dead clean nothing up
                raise Crash
            return real(*arguments, **options)

        return called

    for name in ("mkdir", "rename", "replace", "unlink", "remove", "rmdir", "fsync", "open"):
        monkeypatch.setattr(os, name, instead(name, getattr(os, name)))
    monkeypatch.setattr(builtins, "open", instead("open", builtins.open))
    monkeypatch.setattr("io.open", instead("open", builtins.open))
    return calls


def test_a_crash_at_any_point_of_saving_leaves_a_state_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, steps = 0, []
    while True:
        folder = tmp_path / str(points)
        folder.mkdir()
        for step in (5, 8):
            save(folder, step, {"weight": torch.full((2, 3), float(step))}, STATE)
        with monkeypatch.context() as patched:
            calls = crashing(patched, points)
            try:
                save(folder, 11, {"weight": torch.full((2, 3), 11.0)}, STATE)
                crashed = False
            except Crash:
                crashed = True
        assert all(path.with_suffix(".safetensors").exists() for path in folder.glob("*.json")), "none is half there"
        found = latest(folder)
        assert found.damaged == ()
        assert found.tensors["weight"].equal(torch.full((2, 3), float(found.step)))
        steps.append(found.step)
        save(folder, 12, {}, STATE)
        assert [path.stem for path in sorted(folder.glob("*.json"))] == [f"checkpoint-{s:09}" for s in (found.step, 12)]
        assert len(list(folder.glob("checkpoint-*"))) == 4, "nothing else is left"
        if not crashed:
            break
        points += 1
    assert {"mkdir", "replace", "unlink", "fsync"} <= set(calls)
    assert points > 10
    assert steps == sorted(steps)
    assert set(steps) == {8, 11}
