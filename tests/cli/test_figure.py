"""The verb draws what it is asked for, and refuses the rest in one sentence before it does anything."""

from pathlib import Path

import pytest

from concretely import __version__

from .command import call, modules_after


@pytest.mark.parametrize("name", ["simplex", "binary", "graph"])
def test_both_files_are_written_and_named(name: str, tmp_path: Path) -> None:
    out = tmp_path / "a long folder [bold] :smile:" / ("deep" * 20)
    code, stdout, stderr = call("figure", name, "--temperature", "0, 1/2", "--out", str(out))
    assert (code, stderr) == (0, "")
    assert stdout.splitlines() == [str(out / f"{name}.png"), str(out / f"{name}.svg")]
    assert sorted(file.name for file in out.iterdir()) == [f"{name}.png", f"{name}.svg"]


def test_the_same_command_writes_the_same_bytes_from_fractions_and_from_decimals(tmp_path: Path) -> None:
    for folder, half in (("a", "1/2"), ("b", "0.5")):
        call("figure", "binary", "--alpha", half, "--temperature", half, "--out", str(tmp_path / folder))
    for file in ("binary.png", "binary.svg"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_alpha_and_temperature_change_the_picture(tmp_path: Path) -> None:
    options = (["--alpha", "2"], ["--alpha", "3"], ["--alpha", "2", "--temperature", "1"])
    for folder, option in enumerate(options):
        call("figure", "binary", *option, "--out", str(tmp_path / str(folder)))
    assert len({(tmp_path / str(folder) / "binary.svg").read_bytes() for folder in range(3)}) == 3


@pytest.mark.parametrize(
    ("name", "option", "text", "must"),
    [
        *(
            ("simplex", "alpha", text, "be three positive numbers")
            for text in ("2,-1,1", "2,0,1", "2,one,1", "2,1", "2,1,1,1", "2,nan,1", "inf,1,1", "1/0,1,1", "1,,1", "")
        ),
        *(("binary", "alpha", text, "be one positive number") for text in ("-2", "0", "2,1", "two", "1/2/3", "")),
        *(
            ("graph", "alpha", text, "be one to six positive numbers")
            for text in ("2,-1,1", "0", "two", "1,1,1,1,1,1,1", "1,,1", "")
        ),
        *(
            (name, "temperature", text, "be one or more numbers that are not negative")
            for name in ("simplex", "binary", "graph")
            for text in ("-1", "0,-1/2", "inf", "nan", "cold", "1,", "", "1\n2")
        ),
    ],
)
def test_bad_numbers_get_one_sentence_and_leave_no_files(
    name: str, option: str, text: str, must: str, tmp_path: Path
) -> None:
    code, stdout, stderr = call("figure", name, f"--{option}", text, "--out", str(tmp_path / "out"))
    assert (code, stdout) == (2, "")
    assert stderr == f"{option} must {must}, got {text!r}\n"
    assert not list(tmp_path.iterdir())


def test_a_notation_draws_its_networks_in_place_of_a_variable(tmp_path: Path) -> None:
    calls = ([], ["20H~30V"], ["20H-20H~30V"], ["(20h ∼ 30v)"], ["12V-20H-30V"], ["20H~30V", "--temperature", "1"])
    for folder, arguments in enumerate(calls):
        code, stdout, stderr = call("figure", "graph", *arguments, "--out", str(tmp_path / str(folder)))
        assert (code, stderr) == (0, "")
        assert [Path(line).name for line in stdout.splitlines()] == ["graph.png", "graph.svg"]
    drawn = [(tmp_path / str(folder) / "graph.svg").read_bytes() for folder in range(len(calls))]
    assert drawn[1] == drawn[3]
    assert len(set(drawn)) == len(calls) - 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["200H-784"], "notation must have H or V after the units, got nothing at column 9\n200H-784\n        ^"),
        ([""], "notation must have a layer such as 200H, got nothing at column 1\n\n^"),
        (["20H~30V", "--alpha", "1,1"], "alpha must be left out with a notation, got '1,1'"),
        *(
            (
                [text],
                "notation must have at most 8 layers of at most 2048 units and an arity of at most 16 to be drawn, "
                f"got '{text}'",
            )
            for text in ("4000H-3V", "3H-4000V", "20H:1024-3V", "2H-" * 8 + "3V")
        ),
    ],
)
def test_a_notation_that_cannot_be_drawn_is_refused(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    code, stdout, stderr = call("figure", "graph", *arguments, "--out", str(tmp_path / "out"))
    assert (code, stdout, stderr) == (2, "", f"{sentence}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("out", "why"), [("taken", "File exists"), ("taken/below", "Not a directory")])
def test_a_file_in_place_of_the_folder_gets_one_sentence(out: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("kept")
    code, stdout, stderr = call("figure", "simplex", "--out", str(tmp_path / out))
    assert (code, stdout) == (2, "")
    assert stderr == f"out must be a folder that can be written to, got {str(tmp_path / out)!r}: {why}\n"
    assert [file.read_text() for file in tmp_path.iterdir()] == ["kept"]


def test_the_version_is_that_of_the_package() -> None:
    assert call("--version") == (0, f"concretely {__version__}\n", "")


def test_drawing_leaves_the_global_state_of_pyplot_alone(tmp_path: Path) -> None:
    modules = modules_after(("figure", "binary", "--temperature", "1", "--out", str(tmp_path)))
    assert "matplotlib.figure" in modules
    assert "matplotlib.pyplot" not in modules
