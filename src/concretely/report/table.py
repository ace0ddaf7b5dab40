"""Tables that compare our numbers with the paper's, with one row for each model (cell) of an experiment."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from ..experiment.grid import differing_keys
from ..experiment.paper import SPLITS, CellResult
from ..experiment.record import format_metric, is_corrected, model_title, score_key, validation_nll
from ..spelling import LOOSE, format_difference, format_number, format_setting, is_loose, printable
from ..training.own_recipe import OBJECTS, flat
from ..training.recipe import Member

if TYPE_CHECKING:
    from ..experiment.board import ProgramState
    from ..experiment.task_study import Score, TaskStudy  # imports torch, which tables of records do without

MISSING = "–"

WORDS = ("model", "data", "estimator", "optimizer", "experiment")
"""The names of columns that hold text, not numbers."""

NAMES = {"samples": "m", "temperature": "λ"}
"""The paper's symbols for keys of a recipe."""

GRAPHS = {"nll": "discrete", "relaxed": "relaxed"}
OBJECTIVES = {f"{split}_{name}": f"{split} {graph}" for split in SPLITS for name, graph in GRAPHS.items()}
"""The metrics to show if the paper has no numbers, and the titles of their columns."""


class Grid(NamedTuple):
    """The head and the rows of a table, as text."""

    head: list[str]
    rows: list[list[str]]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers, which are aligned to the right."""
        return [name not in WORDS for name in self.head]


def cell_grid(results: Sequence[CellResult]) -> Grid:
    """Return a table with a row for every cell: our NLL with its standard error, the paper's, the difference, the cost.

    Keys of recipes that are the same for all cells have no column. If the paper has no numbers, `OBJECTIVES` are shown.

    >>> from ..experiment.paper import load_experiment
    >>> cell_grid([CellResult(cell) for cell in load_experiment("table-1").cells]).head
    ['model', 'data', 'estimator', 'm', 'test', 'paper', 'diff', 'train', 'paper', 'diff', 'steps', 'seconds']
    """
    keys = [key for key in ("data", "estimator", "samples", "temperature") if _differs(key, results)]
    splits = [split for split in SPLITS if any(split in result.cell.paper for result in results)]
    others = [] if splits else [name for name in OBJECTIVES if any(result.score(name) for result in results)]
    head = ["model", *(NAMES.get(key, key) for key in keys)]
    head += [header for split in splits for header in (split, "paper", "diff")]
    head += [*(OBJECTIVES[name] for name in others), "steps", "seconds"]
    rows = []
    for result in results:
        recipe = result.cell.recipe
        row = [recipe.notation, *(_setting(recipe.settings.get(key)) for key in keys)]
        row += [entry for split in splits for entry in format_comparison(result, split)]
        rows.append([*row, *(format_score(result, name) for name in others), *format_cost(result)])
    return Grid(head, rows)


def format_score(result: CellResult, name: str) -> str:
    """Format one of our metrics with its standard error, or "diverged" or a dash if it is missing."""
    score = result.score(name)
    if score is None:
        return "diverged" if result.diverged else MISSING
    return f"{score.value:.2f} ± {score.error:.2f}"


def format_comparison(result: CellResult, split: str) -> tuple[str, str, str]:
    """Format our NLL on a split, the paper's NLL, and our NLL minus the paper's."""
    paper, difference = result.cell.paper.get(split), result.difference(split)
    return (
        format_score(result, f"{split}_nll"),
        MISSING if paper is None else f"{paper:g}" if round(paper, 1) != paper else f"{paper:.1f}",
        MISSING if difference is None else format_difference(difference),
    )


def format_cost(result: CellResult) -> tuple[str, str]:
    """Format the step of the selected model, with the number of all steps if that is larger, and the seconds."""
    if result.record is None:
        return MISSING, MISSING
    taken, steps = result.record["step"], result.recipe.steps
    of = "" if taken == steps else f" of {steps:,}"
    return f"{taken:,}{of}", f"{result.record['seconds']:,.1f}"


def cell_table(results: Sequence[CellResult], *, title: str, caption: str) -> Table:
    """Return `cell_grid` as a table for the terminal."""
    shown = plain_table(title, caption)
    grid = cell_grid(results)
    for name, numeric in zip(grid.head, grid.numeric, strict=True):
        justify: Literal["left", "right"] = "right" if numeric else "left"
        shown.add_column(name, justify=justify, no_wrap=name == "model", overflow="fold" if numeric else "ellipsis")
    models = [row[0] for row in grid.rows]
    for row, following in zip(grid.rows, [*models[1:], None], strict=True):
        add_row(shown, *row, end_section=row[0] != following)
    return shown


def sweep_table(
    ranked: Sequence[tuple[Member, Mapping[str, Any] | None]],
    *,
    title: str,
    samples: int,
    stopped: Sequence[Member] = (),
) -> Table:
    """Return the members of a sweep as a table for the terminal, the best in bold, and those stopped early marked."""
    is_cost = any(record is not None and "valid_cost" in record["metrics"] for _, record in ranked)
    score, text = ("cost", "validation cost") if is_cost else ("NLL", "validation NLL in nats")
    table = plain_table(title, f"{text} from {samples:,} samples ± standard error")
    keys = differing_keys([member.recipe for member, _ in ranked])
    for header in (*keys, score, "steps", "seconds", ""):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    for index, (member, record) in enumerate(ranked):
        values = [format_setting(flat(member.recipe).get(name)) for name in keys]
        best = "best" if index == 0 and math.isfinite(validation_nll(record)) else ""
        cells = ("diverged", MISSING, MISSING)
        if record is not None:
            nll = format_metric(record["metrics"][score_key(record["metrics"], "valid")])
            cells = nll, f"{record['step']:,}", f"{record['seconds']:,.1f}"
        add_row(table, *values, *cells, best or "stopped" * (member in stopped), style="bold" if best else "")
    return table


def program_table(states: Sequence["ProgramState"], *, rows: int) -> Table:
    """Return the progress of programs as a table for the terminal with a limited number of rows, active ones first."""
    order = ("training", "scoring", "queued", "stopped", "done")
    shown = sorted(states, key=lambda state: order.index(state.state))[:rows]
    done = sum(state.state == "done" for state in states)
    hidden = f", {len(states) - len(shown)} more below" if len(shown) < len(states) else ""
    table = plain_table(f"{done} of {len(states)} programs are done{hidden}")
    for header in ("program", "members", "step", "objective", "", "starts"):
        table.add_column(header, justify="left" if header in ("program", "") else "right", no_wrap=True)
    for program in shown:
        objective = MISSING if program.objective is None else f"{program.objective:.2f}"
        step = f"{program.step:,} of {program.steps:,}"
        add_row(table, program.name, str(program.members), step, objective, program.state, str(program.starts))
    return table


def likelihood_table(records: Sequence[Mapping[str, Any]], split: str, names: Sequence[str] = ()) -> Table:
    """Return a table of NLLs on a split: first of the baselines, then of the records, optionally with names of runs."""
    score = "cost" if any(f"{split}_cost" in record["metrics"] for record in records) else "NLL"
    heads = ("model", "data", "trained by", "m", f"{split} {score}", "samples", "time", *(["member"] if names else []))
    table = Table(*heads, box=None, header_style="bold")
    baselines = dict[tuple[str, float | None], str]()
    for record in records:
        if baseline := record["metrics"].get(f"{split}_factorised_nll"):
            baselines[record["recipe"]["data"], baseline.get("value")] = format_metric(baseline)
    for (data, _), nll in baselines.items():
        add_row(table, "independent pixels", data, "", "", nll)
    for index, record in enumerate(records):
        recipe, scored = record["recipe"], record["metrics"][score_key(record["metrics"], split)]
        some = f" for {scored['full_points']:,} points" if is_corrected(scored) else ""
        add_row(
            table,
            model_title(recipe),
            *(str(recipe[key]) for key in ("data", "estimator", "samples")),
            format_metric(scored),
            f"{scored['samples']:,}{some}" if "samples" in scored else MISSING,
            f"{record['seconds']:.0f} s",
            *names[index : index + 1],
        )
    return table


def likelihood_summary(records: Sequence[Mapping[str, Any]], split: str, names: Sequence[str] = ()) -> str:
    """Return a sentence that says which of several runs has the lowest NLL, and by how much, if all have the same data.

    `names` are those of the runs, if their recipes do not tell them apart.

    >>> def record(estimator, value):
    ...     metrics = {"test_nll": {"value": value, "standard_error": 0.2}, "test_factorised_nll": {"value": 27.0}}
    ...     return {"recipe": {"notation": "2H-64V", "estimator": estimator, "samples": 5}, "metrics": metrics}
    >>> likelihood_summary([record("vimco", 22.5), record("concrete", 22.0)], "test")
    'best: 2H-64V, concrete, m = 5, test NLL 22.00 ± 0.20; next +0.50, independent pixels +5.00'
    >>> likelihood_summary([record("vimco", 22.0), record("vimco", 22.5)], "test", ["seed=0", "seed=1"])
    'best: 2H-64V, vimco, m = 5, member seed=0, test NLL 22.00 ± 0.20; next +0.50, independent pixels +5.00'
    """

    def nll(record: Mapping[str, Any]) -> float:
        value = record["metrics"][score_key(record["metrics"], split)].get("value")
        return math.inf if value is None else float(value)

    digests = {record.get("data") for record in records if record["recipe"].get("data") != OBJECTS}
    if len(digests) > 1:
        return "the runs have different data, so their scores cannot be compared"
    order = sorted(range(len(records)), key=lambda place: nll(records[place]))
    best, second = (records[place] for place in order[:2])
    if not math.isfinite(nll(second)):
        return f"fewer than two runs have a finite score on {split}"
    key = score_key(best["metrics"], split)
    recipe, scored, score = best["recipe"], best["metrics"][key], "cost" if key.endswith("cost") else "NLL"
    member = f", member {names[order[0]]}" if names else ""
    named = f"best: {model_title(recipe)}, {recipe['estimator']}, m = {recipe['samples']}{member}"
    sentence = f"{named}, {split} {score} {format_metric(scored)}"
    pixels = best["metrics"].get(f"{split}_factorised_nll", {}).get("value")
    baseline = "" if pixels is None else f", independent pixels {pixels - nll(best):+.2f}"
    return f"{sentence}; next {nll(second) - nll(best):+.2f}{baseline}"


def loose_summary(records: Sequence[Mapping[str, Any]], split: str, names: Sequence[str]) -> str:
    """Return a sentence that names the runs whose NLL would fall with more samples, or nothing if there are none.

    >>> record = {"metrics": {"test_nll": {"value": 22.5, "samples": 50, "effective_sample_size": 3.2}}}
    >>> loose_summary([record], "test", ["mine"])
    'the NLL of mine would fall with more samples: the mean effective sample size is below 10'
    >>> loose_summary([record] * 3, "test", ["a", "b", "c"])[:21]
    'the NLL of a, b and c'
    """
    scores = [record["metrics"][score_key(record["metrics"], split)] for record in records]
    loose = [
        name
        for name, score in zip(names, scores, strict=True)
        if is_loose(score.get("effective_sample_size"), score.get("samples", LOOSE))
    ]
    why = f"would fall with more samples: the mean effective sample size is below {LOOSE}"
    return f"the NLL of {' and '.join(filter(None, [', '.join(loose[:-1]), *loose[-1:]]))} {why}" if loose else ""


def task_table(study: "TaskStudy") -> Table:
    """Return the test scores of estimators on tasks as a table for the terminal, the best of each task in bold."""
    table = plain_table("", "test score in nats ± standard error over seeds, of the discrete graph; lower is better")
    table.add_column("estimator", no_wrap=True)
    for task in study.tasks:
        table.add_column(task, justify="right")
    best = {task: study.best(task) for task in study.tasks}
    for name in study.estimators:
        cells = [format_task_score(study.score(task, name)) for task in study.tasks]
        bold = [Text(cell, style="bold" if best[task] == name else "") for task, cell in zip(best, cells, strict=True)]
        table.add_row(Text(printable(name)), *bold)
    return table


def format_task_score(score: "Score | None") -> str:
    """Format the score of an estimator on a task, or a dash if it does not suit the task.

    >>> from ..experiment.task_study import Score
    >>> format_task_score(Score(22.934, 0.0312, 3)), format_task_score(Score(22.934, None, 1)), format_task_score(None)
    ('22.93 ± 0.03', '22.93', '–')
    """
    if score is None:
        return MISSING
    if not math.isfinite(score.mean):
        return "diverged"
    error = "" if score.standard_error is None else f" ± {score.standard_error:.2f}"
    return f"{score.mean:.2f}{error}"


def plain_table(title: str = "", caption: str = "") -> Table:
    """Return an empty table for the terminal."""
    texts: dict[str, Any] = {"title": Text(printable(title)) if title else None, "caption": caption or None}
    return Table(**texts, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", caption_justify="left")


def add_row(table: Table, *cells: str, **options: Any) -> None:
    """Add a row of plain text, in which brackets are no markup and control characters are escaped."""
    table.add_row(*(Text(printable(cell)) for cell in cells), **options)


def _differs(key: str, results: Sequence[CellResult]) -> bool:
    """Return whether cells differ in a key. Temperatures must differ for the same model and estimator."""
    recipes = [result.cell.recipe for result in results]
    if key == "temperature":
        alike = {(recipe.notation, recipe.estimator) for recipe in recipes}
        return len({(recipe.notation, recipe.estimator, recipe.settings.get(key)) for recipe in recipes}) > len(alike)
    return len({recipe.settings.get(key) for recipe in recipes}) > 1


def _setting(value: Any) -> str:
    return format_number(value) if isinstance(value, float) else MISSING if value is None else str(value)
