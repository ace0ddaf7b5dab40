"""Random notations, recipes, records and command lines give a result, or one sentence in our words."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from concretely.experiment.record import read_record, write_record
from concretely.notation import parse
from concretely.training.recipe import ESTIMATORS, Recipe, read, resolve

from ..cli.command import call
from .conftest import Attack
from .outcome import sentence_of
from .work import points

pytestmark = pytest.mark.usefixtures("unpictured")

STRANGE = [
    "",
    " ",
    "\x00",
    "\x1b[31m",
    "\ud800",
    "½",
    "²",
    "１",
    "−1",
    "nan",
    "inf",
    "1e999",
    "[/foo]",
    "../..",
    "~",
    "'",
]
"""Texts that programs trip over."""


def mutated(random: Random, text: str, alphabet: str) -> str:
    """Change some characters of a text."""
    found = list(text)
    for _ in range(random.choice([0, 1, 1, 2, 5])):
        place = random.randrange(len(found) + 1)
        match random.randrange(4):
            case 0:
                found[place:place] = random.choice(alphabet)
            case 1:
                del found[place : place + random.randrange(1, 4)]
            case 2:
                found[place : place + 1] = random.choice([*STRANGE, *alphabet])
            case _:
                found[place:place] = found[: random.randrange(30)]
    return "".join(found)


NOTATIONS = ["200H~784V", "200H-200H~784V", "392V-240H:8-240H-392V", "64V-6H-64V", "4H:4~12V", "1H-1V"]


def test_fuzzed_notations(attack: Attack) -> None:
    for random in attack.trials(short=4_000, full=200_000):
        text = mutated(random, random.choice(NOTATIONS), "0123456789HV-~:() \t\n")
        found = sentence_of(parse, text)
        if not isinstance(found, str):
            assert parse(str(found)) == found
        attack.count("refused" if isinstance(found, str) else "parsed")


KEYS = [*resolve(notation="4H-12V").settings, "arity", "when", "mine"]
VALUES: list[Callable[[Random], Any]] = [
    lambda random: random.choice([0, 1, 2, -1, 10**12, 10**13, 2**63, -(10**30), 10**400]),
    lambda random: random.choice([0.0, 1e-3, 2 / 3, -0.5, 1e308, float("inf"), float("nan")]),
    lambda random: random.choice([True, False, [], {}, [1, 2], {"nvil": {"lr": 1}}, {"linear": {"m5": {"lr": "x"}}}]),
    lambda random: random.choice(["1/2", "1:1/2:100", "0..3", "1,2", "9" * 500, "a" * 300, *STRANGE]),
    lambda random: random.choice([*ESTIMATORS, "adam", "muon", "cosine", "digits", "whole", "threshold", "own.npz"]),
    lambda random: mutated(random, random.choice(NOTATIONS), "0123456789HV-~:()"),
]


def settings(random: Random) -> dict[str, Any]:
    """Draw some settings of a recipe, valid or not."""
    sound = resolve(notation=random.choice(NOTATIONS), estimator=random.choice([*ESTIMATORS])).settings
    keys = random.sample(KEYS, random.choice([0, 1, 1, 2, 4]))
    return {**sound, **{key: random.choice(VALUES)(random) for key in keys}}


def toml_of(value: Any) -> str:
    """Write a value as TOML, with tables in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml_of(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    return str(value).lower() if isinstance(value, bool | float) else json.dumps(value)


def read_recipe(path: Path) -> Recipe:
    return resolve(**read(path))


def test_fuzzed_recipes(attack: Attack, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for random in attack.trials(short=250, full=20_000):
        given = settings(random)
        found = sentence_of(resolve, **given)
        if not isinstance(found, str):
            path.write_text(found.toml(), encoding="utf-8")
            assert resolve(**read(path)) == found
        text = "".join(f"{name} = {toml_of(value)}\n" for name, value in given.items())
        path.write_bytes(mutated(random, text, "=[]{}\"'\n.#\\").encode("utf-8", "replace"))
        read_back = sentence_of(read_recipe, path)
        attack.count("refused" if isinstance(found, str) and isinstance(read_back, str) else "resolved")


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return every container of a tree with each of its keys."""
    found = [(tree, key) for key in (tree if isinstance(tree, dict) else range(len(tree)))]
    return found + [
        each for holder, key in found if isinstance(holder[key], dict | list) for each in places(holder[key])
    ]


def test_fuzzed_records(attack: Attack, sound: Path, tmp_path: Path) -> None:
    known = read_record(sound / "record.json")
    path = tmp_path / "run" / "record.json"
    for random in attack.trials(short=40, full=2_000):
        record = json.loads(json.dumps(known))
        for _ in range(random.randrange(1, 4)):
            holder, key = random.choice(places(record))
            match random.randrange(3):
                case 0:
                    del holder[key]
                case 1:
                    holder[key] = random.choice(VALUES)(random)
                case _:
                    holder[key] = random.choice([*STRANGE, None, [[]], {"": {}}, 10**30, "x" * 5_000, "a\nb"])
        path.unlink(missing_ok=True)
        try:
            write_record(path, record)
        except UnicodeEncodeError:  # as another program would write it
            path.write_text(json.dumps(record))
        code, stdout, stderr = call("compare", str(path.parent), str(path.parent))
        assert code in (0, 2)
        assert stderr.count("\n") == (code == 2), stderr
        assert all(character.isprintable() for character in (stdout + stderr).replace("\n", ""))
        attack.count("refused" if code else "shown")


HOSTILE = [
    *(text for text in STRANGE if "\x00" not in text),
    "x" * 300,
    "/nowhere/x",
    "/dev/null",
    "1,2,x",
    "-1",
    "0",
    "9" * 30,
]
HARMLESS = ["1", "2", "1/2", "concrete", "threshold", "valid", "out", "cpu"]
FLAGS = ["out", "data", "steps", "lr", "seed", "samples", "estimator", "recipe", "batch", "split", "rows", "precision"]
FLAGS += ["device", "max-bytes", "score-samples", "temperature", "binarize", "resume", "alpha", "columns", "repeats"]
VERBS: list[tuple[str, ...]] = [
    ("train", "4H-12V", "--data", "DATA", "--steps", "1", "--score-samples", "1"),
    ("train",),
    ("sweep", "4H-12V", "--data", "DATA", "--steps", "1", "--lr", "1e-3", "--weight-decay", "0"),
    ("evaluate", "RUN", "--samples", "1"),
    ("compare", "RUN"),
    ("sample", "RUN", "--rows", "1"),
    ("study", "2H-12V", "--data", "DATA", "--repeats", "2"),
    ("figure", "binary"),
    ("figure", "graph", "2H-4V"),
    ("reproduce", "table-1", "--dry-run", "--rows", "200H-784V"),
    ("reproduce", "--list"),
    ("cite",),
    ("trian",),
    (),
]


def test_fuzzed_command_lines(attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, own = str(tmp_path / "run"), str(points(tmp_path / "run"))
    assert call("train", "4H-12V", "--data", own, "--steps", "2", "--score-samples", "1", "--out", run)[0] == 0
    for number, random in enumerate(attack.trials(short=25, full=450)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        words = [{"RUN": run, "DATA": own}.get(word, word) for word in random.choice(VERBS)]
        for _ in range(random.randrange(3)):
            value = random.choice([*HOSTILE, *HARMLESS])
            words[len(words) :] = [f"--{random.choice(FLAGS)}", value] if random.random() < 0.8 else [value]
        code, stdout, stderr = call(*words)
        assert code in (0, 1, 2, 130), words
        assert (stdout if code == 0 else stdout + stderr).strip(), words
        assert "Traceback" not in stderr, words
        attack.count("refused" if code else "done")
