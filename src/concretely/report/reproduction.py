"""Our numbers beside the paper's, as a text and as a page, both made from the records of `archive` and nothing else.

Beside the folder of the records there may be a `reasons.toml`: by the title of a cell, why it is not as in the paper.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from ..experiment.paper import RUNS, SPLITS, Cell, Experiment, cell_title, experiment_names, load_experiment
from ..training.recipe import resolve
from . import figure, graph
from .archive import Kept, Record, kept
from .command import command
from .finding import Finding, Lookup, Score, findings, signed
from .page import shown
from .record import surveys
from .table import MISSING, Grid, Line, grid
from .temperature import Point, point, temperature

REASONS = "reasons.toml"
NEAR = 1.0
"""By how many nats a test likelihood may be worse than the paper's."""
PRODUCTS = {"high": "tf32", "medium": "bfloat16"}
"""The flags for products of matrices that are not those of float32, by torch's names."""


NOTES = {
    "numbers": (
        "NLL is the negative log-likelihood of a data point under the discrete graph in nats, lower is better, ± "
        "one standard error over the data points. A cell is one run: what another seed would change is in no "
        "number. `diff` is ours minus the paper's. With m = 1, VIMCO is NVIL. Where the best on the validation set "
        "was taken, `9,000 of 50,000` steps are those after which it was found. Seconds are those of training by "
        "a program that may have shared the device with others; where models were trained as one program, each has "
        "its share of them, and rates that lost on the validation set are not counted."
    ),
    "findings": (
        "A finding is held where its comparisons are as the paper says on average, weakly where by less than two "
        "standard errors of one of them; plus is as the paper says. Models that are compared differ in their rates, "
        "weight decays and budgets, too, as the commands below tell, which the paper chose for many models at once; "
        "those of Omniglot by Concrete are trained on the points that the others hold out to stop early."
    ),
    "commands": (
        "Each trains a model and scores it on the test set; `concretely evaluate` with as many `--samples` and "
        "`--split train` scores it on the other, and with `--relaxed` the relaxed graph, too. What `--recipe fast` "
        "says has changed as cells were made, and is not in all of them."
    ),
    "paper_budget": (
        "The paper trained every model by 10⁷ steps of 64 points. Of some cells we know what that costs, and to what "
        "it comes. What is taken, the last of each, is chosen as among other budgets, below."
    ),
    "budgets": (
        "Other cells that were made more than once, as a rule since they were worse than the paper's. What is taken, "
        "the last of each, is the best on the validation set by the most samples that any was looked at with, and "
        "where nothing was held out the one that was made last: the test set does not choose among them. The "
        "validation NLL is by fewer samples than that of the test set, and so above what as many would find. Rates and "
        "decays that have lost to others of the same command are not listed."
    ),
}
"""What a reader must know of the parts of the report."""


class Section(NamedTuple):
    """An experiment as a reader sees it."""

    title: str
    place: str
    cells: str
    """How many of them are known."""
    score_samples: int
    surveys: str
    """A sentence about training points that did not have all those samples, if there are any."""
    devices: str
    grid: Grid
    commands: list[tuple[int, str]]
    """What makes the cell of a row, by its number."""


class Deviation(NamedTuple):
    """A cell that is not as good as in the paper."""

    title: str
    cell: str
    """What it is, in words."""
    ours: str
    paper: str
    difference: str
    reason: str


class Report(NamedTuple):
    """All that there is to say."""

    sections: list[Section]
    standing: str
    """How many cells are as good as in the paper."""
    summary: Grid
    """How near those of each experiment and estimator are."""
    deviations: list[Deviation]
    findings: list[Finding]
    paper_budget: Grid
    """Cells that were made by as many steps as in the paper, too: what that costs, and to what it comes."""
    budgets: Grid
    """Other cells that were made more than once: by which budgets, and to what they came."""
    points: list[Point]
    known: int
    total: int
    missing: list[str]
    """What of each experiment is not known yet."""


def gathered(records: Path) -> Report:
    """What the records say of all experiments."""
    archive = [(each, kept(each, records)) for each in map(load_experiment, experiment_names())]
    lines = [(each, [_line(cell, found) for cell in each.cells]) for each, found in archive]
    every = [line for _, found in lines for line in found]
    known = [line.record for line in every if line.record is not None]
    warm = [line for each, found in lines if each.figure == "temperature" for line in found]
    points, held_out = (_points(warm, part) for part in ("train", "test"))
    return Report(
        sections=[_section(each, found) for each, found in lines if any(line.record for line in found)],
        standing=_standing(archive),
        summary=_summary(lines),
        deviations=list(_deviations(every, _reasons(records, every))),
        findings=findings(*_lookups(every), points, held_out, temperatures=len(warm)),
        paper_budget=_budgets(archive, paper=True),
        budgets=_budgets(archive, paper=False),
        points=points,
        known=len(known),
        total=len(every),
        missing=[
            f"{count} of {each.name}" for each, found in lines if (count := sum(line.record is None for line in found))
        ],
    )


def report(found: Report) -> str:
    """What the records say, in Markdown."""
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return _rendered(environment, "reproduction.md", found)


def page(found: Report) -> str:
    """The same as one HTML file with the figures, which needs nothing else."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["coded"] = _coded
    style = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return _rendered(
        environment,
        "reproduction.html",
        found,
        style=Markup(style.partition("<style>")[2].partition("</style>")[0]),  # that of all reports
        figures=[shown(caption, drawn, "svg") for caption, drawn in _figures(found.points)],
    )


def _rendered(environment: Environment, name: str, found: Report, **others: Any) -> str:
    template = environment.from_string(files(__package__).joinpath(name).read_text(encoding="utf-8"))
    return template.render(**found._asdict(), notes=NOTES, near=f"{NEAR:g}", **others)


def _points(lines: Sequence[Line], part: str) -> list[Point]:
    """The temperatures of which both objectives are known."""
    found = (point(line.record, part=part) for line in lines if line.record is not None)
    return [each for each in found if each is not None]


def _line(cell: Cell, known: Mapping[str, Kept]) -> Line:
    return Line(cell, known[cell.title].best if cell.title in known else None)


def _standing(archive: Iterable[tuple[Experiment, Mapping[str, Kept]]]) -> str:
    """How many cells are near the paper's or better, and how many were when they were first made."""
    every = [(cell, known[cell.title]) for each, known in archive for cell in each.cells if cell.title in known]
    now = _gaps(Line(cell, found.best) for cell, found in every)
    first = _gaps(Line(cell, found.history[0]) for cell, found in every)
    near, before = (sum(gap <= NEAR for gap in gaps) for gaps in (now, first))
    better = sum(gap < -NEAR for gap in now)
    told = f"Of the {len(now)} cells that can be compared, {near} are within {NEAR:g} nat of the paper's test NLL or "
    told += f"better, {better} of them better by more than that." if better else "better."
    again = sum(len(found.history) > 1 for cell, found in every if "test" in cell.paper)
    return told + (f" Before {again} of them were made again, {before} were." if again else "")


def _gaps(lines: Iterable[Line], part: str = "test") -> list[float]:
    """By how many nats ours are above the paper's, where both are known."""
    return [gap for line in lines if (gap := line.difference(part)) is not None]


def _summary(lines: Iterable[tuple[Experiment, Sequence[Line]]]) -> Grid:
    """Of how many cells ours is near the paper's or better, and the median difference, by experiment and estimator."""
    rows = []
    for each, found in lines:
        for estimator in dict.fromkeys(line.cell.heading for line in found):
            own = [line for line in found if line.cell.heading == estimator]
            test, train = (_gaps(own, part) for part in SPLITS)
            if test:
                near = f"{sum(gap <= NEAR for gap in test)} of {len(test)}"
                rows.append([each.name, estimator, near, *(signed(median(gaps)) for gaps in (test, train))])
    return Grid(
        ["experiment", "estimator", f"within {NEAR:g} nat or better", "median test diff", "median train diff"], rows
    )


def _budgets(archive: Iterable[tuple[Experiment, Mapping[str, Kept]]], *, paper: bool) -> Grid:
    """How else cells were made, those that once had as many steps as in the paper or all others.

    A cell has a row for every record; what is taken comes last.
    """
    rows = []
    for each, known in archive:
        for cell in (cell for cell in each.cells if cell.title in known):
            best, history = known[cell.title]
            if len(history) > 1 and any(_has_budget_of(cell, record) for record in history) == paper:
                rows += [_budget(Line(cell, record)) for record in history if record != best]
                rows.append(_budget(Line(cell, best)))
    how = ("model", "data", "estimator", "m", "prior λ", "optimizer", "batch", "rate", "decay")
    return Grid([*how, "validation", "test", "diff", "steps", "seconds"], rows)


def _has_budget_of(cell: Cell, record: Record) -> bool:
    """Whether a run had the paper's steps, of as many points."""
    recipe = Line(cell, record).recipe
    return recipe.steps >= cell.recipe.steps and recipe.batch == cell.recipe.batch


def _budget(line: Line) -> list[str]:
    recipe = line.recipe
    warm = recipe.prior_temperature
    prior = figure.written(warm) if isinstance(warm, float) else MISSING
    about = (recipe.notation, recipe.data, recipe.estimator, str(recipe.samples), prior)
    how = (recipe.optimizer, f"{recipe.batch:,}", f"{recipe.lr:g}", f"{recipe.weight_decay:g}")
    test, _, difference = line.compared("test")
    return [*about, *how, line.ours("valid_nll"), test, difference, *line.cost]


def _section(each: Experiment, lines: Sequence[Line]) -> Section:
    told = [line.record for line in lines if line.record is not None]
    devices = {
        device.get("gpu") or device.get("cpu") or "a device without a name"
        for record in told
        if (device := record["device"])
    }
    return Section(
        each.title,
        each.place,
        f"{len(told)} of {len(lines)} cells",
        each.score_samples,
        _surveys(told),
        " and ".join(sorted(devices)),
        grid(lines),
        [(row, _command(each, line.record)) for row, line in enumerate(lines, start=1) if line.record is not None],
    )


def _surveys(told: Sequence[Record]) -> str:
    """How the training set was scored, where not all of its points had all samples."""
    scores = [score for record in told if surveys(score := record["metrics"].get("train_nll", {}))]
    if not scores:
        return ""
    numbers = " or ".join(f"{number:,}" for number in sorted({score["thorough"] for score in scores}))
    return (
        f"In {len(scores)} of them {numbers} of the training points had all samples and the others 1,000, to which is "
        f"added what that misses on average (`evaluate --thorough`)."
    )


def _command(each: Experiment, record: Record) -> str:
    recipe = resolve(**record["recipe"])
    products = PRODUCTS.get(record["device"].get("float32_products", ""))
    others = {"score_samples": each.score_samples} | ({"products": products} if products else {})
    return command(recipe, RUNS / each.name / cell_title(recipe), **others)


def _lookups(lines: Sequence[Line]) -> tuple[Lookup, Lookup]:
    """Our scores and the paper's."""
    ours, paper = dict[tuple[str, int, str, str, str], Score](), dict[tuple[str, int, str, str, str], Score]()
    for line in lines:
        recipe = line.cell.recipe
        for part, value in line.cell.paper.items():  # what the paper has no number of is scored in another way
            key = recipe.notation, recipe.samples, recipe.data, line.cell.heading, part
            paper[key] = Score(value, 0.0)
            score = line.score(f"{part}_nll")
            if score is not None:
                ours[key] = score
    return lambda *key: ours.get(key), lambda *key: paper.get(key)


def _reasons(records: Path, lines: Sequence[Line]) -> dict[str, str]:
    """What is known of why cells are not as good as in the paper."""
    path = records.parent / REASONS
    if not path.exists():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"reasons must be TOML, got {path}: {error}") from None
    titles = {line.cell.title for line in lines}
    for title, reason in found.items():
        if title not in titles or not isinstance(reason, str) or "\n" in reason:
            raise ValueError(f"reasons must be sentences by the titles of cells, got {title!r} in {path}")
    return found


def _deviations(lines: Sequence[Line], reasons: Mapping[str, str]) -> Iterator[Deviation]:
    for line in lines:
        difference = line.difference("test")
        if difference is not None and difference > NEAR:
            title, recipe = line.cell.title, line.recipe
            cell = f"`{recipe.notation}`, {recipe.data}, {recipe.estimator}, m = {recipe.samples}"
            yield Deviation(title, cell, *line.compared("test"), reasons.get(title, "unknown yet"))


def _figures(points: Sequence[Point]) -> Iterator[tuple[str, Figure]]:
    """The paper's figures with their captions."""
    alpha = [2.0, 0.5, 1.0]
    densities = [0.0, 0.5, 1.0, 2.0]
    yield "How a variable is sampled: discrete, and relaxed at λ = 1/2 (figure 1).", graph.sampling(alpha, [0.0, 0.5])
    yield "The density of three categories, with α = (2, 1/2, 1) (figure 2).", figure.simplex(alpha, densities)
    yield "Noisy log-odds, and the density behind the curve, with α = 2 (figure 3).", figure.binary(2.0, densities)
    if points:
        caption = "Objectives of the training points against the temperature of training (figure 4, right)."
        yield caption, temperature(points)


def _coded(text: str) -> Markup:
    """A text of which what stands between backticks is code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))
