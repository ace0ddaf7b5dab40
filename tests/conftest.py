"""A seed for every test, slow tests first, little garbage collection, and counts.

The tests run on the CPU, and on a GPU only if `CONCRETELY_GPU` is set, as by `make check-gpu`. Shapes are checked where
`tests/test_annotation.py` asks for it. The attacks in `tests/attack` say how much they have tried.
"""

import gc
import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

if not os.environ.get("CONCRETELY_GPU"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch reads it when it first looks for GPUs
settings.register_profile("suite", deadline=None, max_examples=200, derandomize=True, database=None)
settings.load_profile("suite")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # triton reads it when it is imported, as by torch's compiler

CHECKED = bool(os.environ.get("CONCRETELY_CHECKED"))
if CHECKED:
    from jaxtyping import install_import_hook

    import tests.checker  # noqa: F401 (the hook is given its name)

    install_import_hook("concretely", "tests.checker.checked")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put slow tests first, so that no worker is left with one at the end.

    With checked shapes, leave out the tests that a check would stop: of the compiler, and of bad input.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if CHECKED:
        unchecked = [item for item in items if item.get_closest_marker("unchecked")]
        items[:] = [item for item in items if not item.get_closest_marker("unchecked")]
        config.hook.pytest_deselected(items=unchecked)


def pytest_collection_finish() -> None:
    """Collect garbage rarely, and never look at modules and tests again: this takes an eighth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_unconfigure() -> None:
    """Let Python clear what was frozen."""
    gc.unfreeze()


ATTACK = "attack"
"""The property of a test that says what an attack has tried."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the attacks have tried."""
    reports = terminalreporter.stats.get("", ())  # those of what comes after a test
    counts = [text for report in reports for name, text in getattr(report, "user_properties", ()) if name == ATTACK]
    if counts:
        terminalreporter.section("attacks")
    for text in sorted(set(counts)):
        terminalreporter.line(text)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Start every test from the same seed and with nothing compiled, so that a failure repeats."""
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # for devices that are not there torch would record where it was called, which takes a millisecond
        torch.default_generator.manual_seed(0)
    torch.compiler.reset()


@pytest.fixture(autouse=True, scope="session")
def own_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the key that marks runs as trained here out of the home of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(autouse=True, scope="session")
def without_git_and_fsync() -> Iterator[None]:
    """Ask git for no commit, and wait for no disk: no test changes the commit or cuts the power."""
    from concretely.environment import COMMIT

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(COMMIT, "0" * 40)
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def unpictured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pictures out of reports, as drawing them takes longer than training."""
    from concretely.report import page, reproduction

    monkeypatch.setattr(page, "draw_picture", lambda picture: None)
    monkeypatch.setattr(page, "embed_figure", lambda caption, *_: page.Image(caption, "png", b"", 1, 1))
    monkeypatch.setattr(reproduction, "_figures", lambda *_: iter(()))
