"""A run folder of which anything has changed gives the tensors that were written, or one sentence."""

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

import pytest
import torch
from torch import Tensor

from concretely.experiment.record import read_record
from concretely.training import checkpoint
from concretely.training.folder import load, load_recipe, restored
from concretely.training.loop import train

from ..training.example import assert_same, data
from .conftest import Attack
from .outcome import sentence_of

Victims = Callable[..., Path]


def damage(random: Random, folder: Path) -> str:
    """Change one file of a folder, and return what was done to it."""
    path = random.choice(sorted(path for path in folder.iterdir() if path.is_file() and path.name != ".lock"))
    content = bytearray(path.read_bytes())
    place = random.randrange(len(content))
    kind = random.choice(
        ["flip", "cut", "grow", "zero", "shuffle", "swap", "remove", "folder", "pipe", "link", "digit"]
    )
    match kind:
        case "flip":
            content[place] ^= 1 << random.randrange(8)
        case "cut":
            del content[place:]
        case "grow":
            content[place:place] = random.randbytes(random.randrange(1, 40))
        case "zero":
            content[place : place + 64] = bytes(len(content[place : place + 64]))
        case "shuffle":
            random.shuffle(content)
        case "swap":
            content = bytearray(random.choice(sorted(folder.glob("*.*"))).read_bytes())
        case "digit":
            digits = [index for index, byte in enumerate(content) if 48 <= byte < 58]
            content[random.choice(digits)] = random.randrange(48, 58)
    path.unlink()
    match kind:
        case "remove":
            pass
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(random.choice(["/dev/zero", "/dev/null", str(path), "/nowhere", "/etc/passwd"]))
        case _:
            path.write_bytes(content)
    return f"{path.name}: {kind}"


def written(folder: Path) -> list[dict[str, Tensor]]:
    """The parameters that a sound run may be restored to: those of its last checkpoint, and of the one before."""
    found = [restored(folder)[1].state_dict()]
    for path in sorted(folder.glob("checkpoint-*8.*")):
        path.rename(path.with_suffix(f"{path.suffix}.kept"))
    found.append(restored(folder)[1].state_dict())
    for path in sorted(folder.glob("*.kept")):
        path.rename(path.with_suffix(""))
    return found


def is_one_of(state: dict[str, Tensor], known: list[dict[str, Tensor]]) -> bool:
    return any(state.keys() == each.keys() and all(state[name].equal(each[name]) for name in state) for each in known)


@pytest.mark.skipif(os.name != "posix", reason="there are no such files elsewhere")
@pytest.mark.parametrize("kind", ["paper", "own"])
def test_corruptions_of_a_run_folder(attack: Attack, kind: str, victims: Victims) -> None:
    whole = victims(-1, kind)
    known, record = written(whole), sentence_of(read_record, whole / "record.json")
    for number, random in enumerate(attack.trials(short=40, full=500)):
        folder = victims(number, kind)
        what = damage(random, folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a damaged checkpoint, where the one before is loaded
            model = sentence_of(load, folder)
            if not isinstance(model, str):
                assert is_one_of(model.state_dict(), known), what
        found = sentence_of(read_record, folder / "record.json")
        assert isinstance(found, str) or found == record, what
        attack.count("refused" if isinstance(model, str) else "believed as written")
        rmtree(folder)


def forge(random: Random, tensors: dict[str, Tensor], state: dict[str, Any]) -> str:
    """Change a checkpoint, which is then given a right digest."""
    name, key = random.choice(sorted(tensors)), random.choice(sorted(state))
    strange = random.choice(
        [None, True, -1, 10**18, 1e300, "\x1b[31m", [], {}, [[]], {"a": {}}, "x" * 1_000, [1, 2, 3]]
    )
    match random.choice(["drop", "shape", "dtype", "rename", "add", "state", "lose", "inner", "row"]):
        case "drop":
            del tensors[name]
        case "shape":
            tensors[name] = random.choice([tensors[name][None], tensors[name].flatten()[:-1], torch.zeros(0)])
        case "dtype":
            tensors[name] = tensors[name].to(random.choice([torch.float16, torch.int64, torch.bool, torch.float64]))
        case "rename":
            tensors[f"{name}x"] = tensors.pop(name)
        case "add":
            tensors["best/mine"] = torch.zeros(random.randrange(3))
        case "state":
            state[key] = strange
        case "lose":
            del state[key]
        case "inner":
            inner = random.choice(["recipe", "environment"])
            state[inner] = {**state[inner], random.choice(sorted(state[inner])): strange}
        case "row":
            state["rows"] = [*state["rows"], {**state["rows"][-1], random.choice(sorted(state["rows"][-1])): strange}]
    return name if name not in tensors else key


def test_forged_checkpoints(attack: Attack, victims: Victims) -> None:
    for number, random in enumerate(attack.trials(short=15, full=600)):
        folder = victims(number)
        last = checkpoint.latest(folder)
        assert last is not None
        tensors, state = dict(last.tensors), json.loads(json.dumps(last.state))
        forge(random, tensors, state)
        checkpoint.save(folder, last.step, tensors, state)
        read = sentence_of(restored, folder)
        resumed = sentence_of(train, load_recipe(folder), folder, data=data())
        attack.count("refused" if isinstance(read, str) or isinstance(resumed, str) else "harmless")
        if not isinstance(read, str):
            kept = {name.removeprefix("best/"): each for name, each in tensors.items() if name.startswith("best/")}
            assert_same(read[1].state_dict(), kept)
        rmtree(folder)
