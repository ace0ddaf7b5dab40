"""Every help answers at once, and has an example that works."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from typer.main import get_command

from concretely.cli import app

from .command import call, modules_after

pytestmark = pytest.mark.usefixtures("unpictured")

FIRST = ["train", "evaluate", "sample", "study", "cite"]
"""Verbs whose examples go on with what the one before has left."""


def verbs(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words after which one can ask for help."""
    yield path
    for name, each in getattr(command, "commands", {}).items():
        yield from verbs(each, (*path, name))


VERBS = list(verbs(get_command(app)))


def example(*verb: str) -> list[str]:
    """The command that a help gives as its example."""
    code, stdout, stderr = call(*verb, "--help")
    assert (code, stderr) == (0, "")
    _, _, found = stdout.partition("Example: concretely ")
    return found.split()  # also where the line was too long


@pytest.mark.slow
def test_the_example_of_each_help_works_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ordered = sorted(VERBS, key=lambda verb: FIRST.index(verb[0]) if verb and verb[0] in FIRST else len(FIRST))
    run = set[tuple[str, ...]]()
    for verb in ordered:
        words = tuple(example(*verb))
        assert words[: len(verb)] == verb
        if words in run:  # that of the whole command is that of a verb
            continue
        code, stdout, stderr = call(*words)
        assert code == 0, stderr
        named = [Path(line) for line in stdout.splitlines() if re.fullmatch(r"out/\S+", line)]
        assert all(path.exists() for path in named)
        run.add(words)
    assert len(run) >= len(VERBS) - 2
    assert {path.name for path in Path("out").iterdir()} >= {"train", "sample", "study", "figure"}


def test_help_has_the_defaults_of_models_of_ones_own_and_says_what_is_for_notations() -> None:
    text = {verb: re.sub(r"[\s│]+", " ", call(verb, "--help")[1]) for verb in ("train", "sweep", "evaluate", "study")}
    for verb in ("train", "sweep"):
        assert "[default: (the paper's; own models: 0.001)]" in text[verb]
        assert "[default: (the paper's; own models: by number of states)]" in text[verb]
        for flag in ("binarize", "train-on", "arity", "weight-decay"):
            assert re.search(rf"--{flag} <str> Notations: ", text[verb])
    assert "or 100 with a context; own models: 1,000, or 100 without q)]" in text["evaluate"]
    assert "Number of samples m; --tasks always takes 4. [default: (5)]" in text["study"]


def test_paragraphs_of_help_have_no_line_breaks_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    for verb in VERBS:
        head = call(*verb, "--help")[1].partition("╭")[0]
        lines = [line.strip() for line in head.splitlines()]
        assert not any(line and following for line, following in pairwise(lines)), verb


def test_no_help_imports_torch_or_matplotlib() -> None:
    modules = modules_after(*((*verb, "--help") for verb in VERBS))
    assert "concretely.cli.figure" in modules
    assert not {"torch", "numpy", "matplotlib"} & modules
