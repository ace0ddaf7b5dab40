"""The verb pictures what a run makes, and names the files."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from concretely.report import style

from .command import call


@pytest.mark.parametrize(("kind", "name"), [("density", "6H-64V"), ("prediction", "32V-6H-32V")])
def test_both_files_are_written_under_the_name_of_the_run_and_named(
    kind: str, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, out = request.getfixturevalue(kind), tmp_path / "a [bold] folder" / "deep"
    code, stdout, stderr = call("sample", str(folder), "--rows", "2", "--columns", "3", "--out", str(out))
    assert (code, stderr) == (0, "")
    assert stdout.splitlines() == [str(out / f"{name}.png"), str(out / f"{name}.svg")]
    assert sorted(file.name for file in out.iterdir()) == [f"{name}.png", f"{name}.svg"]


@pytest.mark.parametrize(
    ("kind", "options", "images"),
    [
        ("density", [], 8 * 12),
        ("density", ["--rows", "2", "--columns", "3"], 2 * 3),
        # of a row the context stands alone once, and else above the data and each completion
        ("prediction", [], 8 * (1 + 2 * (1 + 8))),
        ("prediction", ["--rows", "2", "--columns", "3"], 2 * (1 + 2 * (1 + 3))),
    ],
)
def test_rows_and_columns_count_images(
    kind: str,
    options: list[str],
    images: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = list[Figure]()

    def noted(figure: Figure, path: Path) -> list[Path]:
        drawn.append(figure)
        return []

    monkeypatch.setattr(style, "save_figure", noted)
    call("sample", str(request.getfixturevalue(kind)), *options, "--out", str(tmp_path))
    assert [len(each.axes[0].images) for each in drawn] == [images]


def test_the_picture_follows_from_the_seed_which_is_that_of_the_run_unless_given(density: Path, tmp_path: Path) -> None:
    for folder, option in enumerate(([], ["--seed", "0"], ["--seed", "1"])):
        call("sample", str(density), "--rows", "2", *option, "--out", str(tmp_path / str(folder)))
    first, same, other = ((tmp_path / str(folder) / "6H-64V.png").read_bytes() for folder in range(3))
    assert first == same != other


def test_a_run_may_be_the_folder_one_is_in(density: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(density)
    code, stdout, _ = call("sample", ".", "--rows", "1", "--columns", "1", "--out", str(tmp_path))
    assert (code, stdout.splitlines()[0]) == (0, str(tmp_path / "6H-64V.png"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--rows", "0"], "rows must be from 1 to 50, got 0"),
        (["--columns", "51"], "columns must be from 1 to 50, got 51"),
        (["--seed", "-1"], "seed must be from 0 to 2^63 - 1, got -1"),
        (["--seed", str(2**63)], f"seed must be from 0 to 2^63 - 1, got {2**63}"),
    ],
)
def test_bad_options_get_one_sentence_and_leave_no_files(
    options: list[str], sentence: str, density: Path, tmp_path: Path
) -> None:
    assert call("sample", str(density), *options, "--out", str(tmp_path / "out")) == (2, "", f"{sentence}\n")
    assert not list(tmp_path.iterdir())


def test_what_is_no_run_is_refused_and_leaves_no_files(tmp_path: Path) -> None:
    path = str(tmp_path / "missing")
    sentence = f"run must be the folder of a run, got {path!r}, which has no recipe.toml\n"
    assert call("sample", path, "--out", str(tmp_path / "out")) == (2, "", sentence)
    assert not list(tmp_path.iterdir())


def test_a_file_in_place_of_the_folder_gets_one_sentence(density: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("kept")
    out = str(tmp_path / "taken")
    sentence = f"out must be a folder that can be written to, got {out!r}: File exists\n"
    assert call("sample", str(density), "--rows", "1", "--out", out) == (2, "", sentence)
