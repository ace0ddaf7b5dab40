"""Builders in files are imported by their paths, take the place of no other module, and are seeded."""

import json
import pickle
import random
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from concretely.training.builder import built, built_by_name, imported

from .own import Gate

BUILDER = """
from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

@dataclass
class Setting:
    width: int = {width}
    names: list[str] = field(default_factory=list)
    kinds: ClassVar[int] = 1

def build(width: int = {width}):
    import torch, concretely as c
    layer = torch.nn.Linear(6, width)

    def program(draw, x):
        return draw("z", c.Bernoulli(logits=layer(x))).sum(-1)

    return program
"""


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    """Forget what a test has imported, and where from."""
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, text: str = BUILDER.format(width=2)) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return f"{path}:build"


@pytest.mark.parametrize("module", [json, np])
def test_a_file_takes_the_place_of_no_module_of_its_name(module: object, tmp_path: Path) -> None:
    stem = module.__name__  # type: ignore[attr-defined]
    name = write(tmp_path / f"{stem}.py")
    assert len(list(built_by_name(name, {}, seed=0).parameters())) == 2
    assert sys.modules[stem] is module
    assert imported(name) is imported(name)
    setting = sys.modules[imported(name).__module__].Setting(5)
    assert pickle.loads(pickle.dumps(setting)) == setting
    broken = write(tmp_path / "other" / f"{stem}.py", "raise RuntimeError('no licence')")
    with pytest.raises(ValueError, match=r"raised RuntimeError at .*\.py:1: no licence$"):
        imported(broken)
    assert sys.modules[stem] is module


def test_files_of_one_name_are_several_modules(tmp_path: Path) -> None:
    names = [
        write(tmp_path / folder / "twin.py", BUILDER.format(width=width)) for folder, width in (("a", 3), ("b", 4))
    ]
    for _ in range(2):
        for name, width in zip(names, (3, 4), strict=True):
            assert built_by_name(name, {}, seed=0).get_parameter("layer.bias").shape == (width,)
            setting = sys.modules[imported(name).__module__].Setting()
            assert pickle.loads(pickle.dumps(setting)).width == width


def test_threads_that_import_a_file_at_once_wait_until_it_is_complete(tmp_path: Path) -> None:
    name = write(tmp_path / "json.py", "import time\ntime.sleep(0.05)\ndef build(): ...\n")
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(imported, [name] * 4))) == 1


def test_a_file_may_import_others_in_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "beside_it.py")
    assert imported(write(tmp_path / "importing.py", "from beside_it import build\n")).__module__ == "beside_it"


def test_a_started_process_knows_the_classes_of_a_file(tmp_path: Path) -> None:
    setting = sys.modules[imported(write(tmp_path / "for_workers.py")).__module__].Setting(7)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(repr, setting).result() == "Setting(width=7, names=[])"


def test_errors_name_the_file_as_it_was_given(tmp_path: Path) -> None:
    name = write(tmp_path / "my.model.py")
    with pytest.raises(ValueError, match=rf"^{name} has no parameter 'wide'; did you mean 'width'\?$"):
        built_by_name(name, {"wide": 3}, seed=0)
    silent = write(tmp_path / "silent.py", "def build(): ...\n")
    with pytest.raises(ValueError, match=rf"^{silent} must return a Model or a program, got NoneType$"):
        built_by_name(silent, {}, seed=0)


def test_an_error_in_an_installed_package_names_the_line_that_called_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "site" / "their_package.py", "def load():\n    raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "site"))
    name = write(tmp_path / "mine.py", "import their_package\n\ndef build():\n    their_package.load()\n")
    with pytest.raises(ValueError, match=r"got RuntimeError at mine\.py:4: no licence$"):
        built_by_name(name, {}, seed=0)


def test_a_file_that_failed_is_read_again_once_it_is_mended(tmp_path: Path) -> None:
    for stem in ("mended", "json"):
        name = write(tmp_path / f"{stem}.py", "raise RuntimeError('no licence')\n")
        with pytest.raises(ValueError, match=rf"raised RuntimeError at {stem}\.py:1: no licence$"):
            imported(name)
        write(tmp_path / f"{stem}.py", "def build(): ...\n")
        assert imported(name).__name__ == "build"


def test_a_seed_builds_one_model_whatever_generator_its_builder_draws_from() -> None:
    def drawing() -> nn.Module:
        model = Gate()
        drawn = [random.random(), np.random.random(), torch.rand(()).item()]
        model.register_buffer("drawn", torch.tensor(drawn))
        return model

    before = random.getstate(), np.random.get_state()[1].tolist()
    models = [built(drawing, {}, seed=seed).get_buffer("drawn") for seed in (0, 0, 1)]
    assert models[0].equal(models[1])
    assert models[0].ne(models[2]).all()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
