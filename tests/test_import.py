"""The rooms import one way only, and the package imports nothing before it is used."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import concretely

PACKAGE = Path(__file__).parent.parent / "src" / "concretely"
ORDER = [
    "spelling",
    "mount",
    "file",
    "environment",
    "notation",
    "schedule",
    "temperature",
    "kernel",
    "functional",
    "distribution",
    "layer",
    "graph",
    "model",
    "objective",
    "estimator",
    "evaluation",
    "data",
    "training",
    "experiment",
    "report",
    "cli",
]


def imported(file: Path) -> set[str]:
    """The rooms of the package that a file imports from."""
    depth = len(file.relative_to(PACKAGE).parts)
    rooms = set()
    for statement in ast.walk(ast.parse(file.read_text())):
        if isinstance(statement, ast.ImportFrom):
            path = (statement.module or "").split(".")
            if statement.level == 0 and path[0] == "concretely":
                rooms |= {path[1]} if len(path) > 1 else {name.name for name in statement.names}
            elif statement.level == depth:
                rooms |= {path[0]} if path[0] else {name.name for name in statement.names}
    return rooms & set(ORDER)


@pytest.mark.parametrize("room", ORDER)
def test_room_imports_only_from_rooms_before_it(room: str) -> None:
    files = [*(PACKAGE / room).rglob("*.py")] if (PACKAGE / room).is_dir() else [PACKAGE / f"{room}.py"]
    assert files
    allowed = set(ORDER[: ORDER.index(room) + 1])
    for file in files:
        assert imported(file) <= allowed, file.name


def test_kernels_are_known_to_the_mathematics_and_to_the_step_engine_alone() -> None:
    files = [file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.py") if "kernel" in imported(file)]
    elsewhere = {file.as_posix() for file in files if file.parts[0] not in ("kernel", "functional")}
    assert elsewhere == {"training/engine.py", "training/optimizer.py"}
    assert {file.parts[0] for file in files} >= {"functional"}, "the test would find them"


def test_reports_draw_what_others_have_computed() -> None:
    for file in (PACKAGE / "report").glob("*.py"):
        assert not {"functional", "model", "objective", "estimator"} & imported(file), file.name


def test_only_the_command_and_reports_print() -> None:
    for file in (PACKAGE / "experiment").glob("*.py"):
        found = {
            node.module or "" for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)
        }
        assert not {"rich", "typer", "matplotlib"} & {name.partition(".")[0] for name in found}, file.name


@pytest.mark.parametrize("folder", ["src", "benchmarks", "examples"])
def test_files_are_short(folder: str) -> None:
    files = [*(PACKAGE.parents[1] / folder).rglob("*.py")]
    assert files
    assert not [file.name for file in files if len(file.read_text(encoding="utf-8").splitlines()) > 400]


def test_every_room_has_its_place_in_the_order() -> None:
    files = [file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.py")]
    assert {Path(file.parts[0]).stem for file in files} - {"__init__", "__main__"} == set(ORDER)


def test_package_does_not_import_torch_before_it_is_used() -> None:
    program = (
        "import sys, concretely; assert 'torch' not in sys.modules; concretely.Bernoulli; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_public_names_are_those_of_the_rooms() -> None:
    import concretely

    rooms = [import_module(f"concretely.{room}") for room in concretely._ROOMS]
    assert set(concretely._ELSEWHERE).union(*(room.__all__ for room in rooms)) == set(concretely.__all__)
    assert sum(len(room.__all__) for room in rooms) + len(concretely._ELSEWHERE) == len(concretely.__all__)
    assert all(getattr(concretely, name) is not None for name in concretely.__all__)
    assert set(concretely.__all__) <= set(dir(concretely))
    with pytest.raises(AttributeError, match="module 'concretely' has no attribute 'Bernouli'"):
        concretely.Bernouli  # noqa: B018


def test_no_public_name_means_two_things() -> None:
    layers = {*concretely.layer.__all__} - {"report"}  # named after the method of a layer, as its neighbours are
    assert not set(dir(concretely)) & {*layers, *concretely.mode.__all__, *concretely.report.__all__}


def test_packages_are_attributes_without_an_import_of_their_own() -> None:
    program = "import concretely, sys; concretely.report.simplex; assert 'matplotlib' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_reference_is_in_the_bibliography() -> None:
    keys = set(re.findall(r"^@\w+\{(\w+),", (PACKAGE / "references.bib").read_text(), re.MULTILINE))
    cited = {key for file in PACKAGE.rglob("*.py") for key in re.findall(r"\[([a-z]+\d{4}[a-z]+)\]", file.read_text())}
    assert cited == keys


def test_dir_shows_public_names_only() -> None:
    assert sorted(dir(concretely)) == sorted([*concretely.__all__, "__version__"])
    assert all(getattr(concretely, name) is not None for name in dir(concretely))
