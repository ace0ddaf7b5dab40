"""Tables show our numbers and the paper's."""

from io import StringIO
from typing import Any

from rich.console import Console

from concretely.experiment.paper import Cell, CellResult, load_experiment
from concretely.report.table import cell_table


def record(test: float | None, train: float | None) -> dict[str, Any]:
    metrics = {
        f"{part}_nll": {"value": value, "standard_error": None if value is None else 0.125}
        for part, value in (("test", test), ("train", train))
    }
    return {"metrics": metrics, "recipe": {"notation": "200H-784V", "steps": 12345}, "step": 12345, "seconds": 67.89}


def shown(lines: list[CellResult]) -> list[str]:
    """The lines of a table that have words, with one space between those."""
    text = StringIO()
    Console(width=200, file=text).print(cell_table(lines, title="a title", caption="a caption"))
    return [" ".join(words) for line in text.getvalue().splitlines() if (words := line.replace("─", "").split())]


def cells(name: str, **wished: Any) -> list[Cell]:
    def fits(cell: Cell) -> bool:
        return all(getattr(cell.recipe, key) == value for key, value in wished.items())

    return [cell for cell in load_experiment(name).cells if fits(cell)]


def test_every_line_has_ours_and_its_error_the_papers_the_difference_and_the_cost() -> None:
    first, second = cells("table-1", notation="200H-784V", data="mnist", samples=1)
    title, head, *lines, caption = shown([CellResult(first, record(107.05, 108.5)), CellResult(second)])
    assert (title, caption) == ("a title", "a caption")
    assert head == "model estimator test paper diff train paper diff steps seconds"
    assert lines == [
        "200H-784V concrete 107.05 ± 0.12 107.3 −0.25 108.50 ± 0.12 107.5 +1.00 12,345 67.9",
        "200H-784V nvil – 104.4 – – 104.2 – – –",
    ]


def test_steps_are_those_after_which_a_model_was_taken_of_all() -> None:
    early = record(107.05, 108.5) | {"step": 345}
    *_, line, _ = shown([CellResult(cells("table-1")[0], early)])
    assert line.endswith(" 345 of 12,345 67.9")


def test_a_cell_that_diverged_or_has_no_finite_number_says_so() -> None:
    first, second = cells("table-1", notation="200H-784V", data="mnist", samples=1)
    _, _, *lines, _ = shown([CellResult(first, diverged=True), CellResult(second, record(None, 104.0))])
    assert lines == [
        "200H-784V concrete diverged 107.3 – diverged 107.5 – – –",
        "200H-784V nvil – 104.4 – 104.00 ± 0.12 104.2 −0.20 12,345 67.9",
    ]


def test_the_papers_numbers_are_shown_to_the_letter() -> None:
    (cell,) = cells("table-3", notation="240H:8~784V", data="omniglot", samples=1)
    _, _, line, _ = shown([CellResult(cell)])
    assert line == "240H:8~784V – 119.61 – – 105.3 – – –"


def test_columns_are_what_cells_differ_in() -> None:
    heads = {
        name: shown([CellResult(cell) for cell in load_experiment(name).cells])[1] for name in ("table-1", "table-3")
    }
    assert heads["table-1"].startswith("model data estimator m test")
    assert heads["table-3"].startswith("model data m test")
    assert shown([CellResult(cell) for cell in load_experiment("temperature").cells])[1] == "model λ steps seconds"
