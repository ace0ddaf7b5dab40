"""The code of the README and the documentation runs, links lead somewhere, and quoted numbers stand in records."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from concretely.experiment.history import CellHistory, read_history
from concretely.experiment.paper import Cell, experiment_names, load_experiment
from concretely.experiment.task import TASKS
from concretely.experiment.task_study import CONTENDERS, read_study
from concretely.report.table import format_task_score
from concretely.temperature import ANALYTIC, TEMPERATURES

ROOT = Path(__file__).parent.parent
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))}
README, COMMAND, NUMERICS, PERFORMANCE = (
    PAGES[name] for name in ("README.md", "command.md", "numerics.md", "performance.md")
)
RECORDS = ROOT / "benchmarks" / "records"
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs(text: str) -> list[str]:
    """The Python blocks of a page; one that is marked as a continuation is joined to the block before."""
    found: list[str] = []
    for kind, code in FENCE.findall(text):
        if kind == "python":
            found.append(code)
        elif kind == "python continuation":
            found[-1] += code
        else:
            assert not kind.startswith("python"), kind
    return found


@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param(name, code, id=f"{name}-{place}")
        for name, text in PAGES.items()
        for place, code in enumerate(programs(text))
    ],
)
def test_code_runs(name: str, code: str) -> None:
    exec(compile(code, name, "exec"), {})


def test_the_first_code_of_the_readme_prints(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(programs(README)[0], "README.md", "exec"), {})
    assert capsys.readouterr().out.count("torch.Size([4, 32, 5])") == 2


def anchors(text: str) -> set[str]:
    """The anchors that headings of a page get."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


LINKED = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    ROOT / "benchmarks" / "README.md",
]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_and_sections_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    for link in links:
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def test_the_readme_is_one_screen() -> None:
    assert len(README.splitlines()) <= 60
    code = [line for line in programs(README)[0].splitlines() if line and not line.startswith("import")]
    assert len(code) == 8


def test_the_readme_leads_to_every_page() -> None:
    assert all(f"](docs/{name})" in README for name in PAGES if name != "README.md")


def record(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def cells(start: str, text: str) -> list[str]:
    """The cells of the row of a table that starts so."""
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in row.strip("| ").split("|")][1:]


def quoted(ratio: dict[str, Any]) -> str:
    """A ratio as the pages write it."""
    low, high = ratio["quartiles"]
    return f"{ratio['median']:.2f} ({low:.2f} – {high:.2f})"


@pytest.mark.parametrize("row", record("exactness")["results"]["sweep"], ids=lambda row: row["class"])
def test_shares_are_those_of_the_record(row: dict[str, Any]) -> None:
    library, name = row["class"].split()
    shares = [row.get(key) for key in ("log_density_not_finite", "draw_refused", "gradient_wrong")]
    expected = ["" if share is None else f"{share:.1%}".replace("%", " %") for share in shares]
    assert [*cells(f"{library} `{name}`", NUMERICS), ""][:3] == expected


def test_the_reason_to_be_is_that_of_the_record() -> None:
    rows = {row["class"]: row["log_density_not_finite"] for row in record("exactness")["results"]["sweep"]}
    theirs, ours = rows["torch RelaxedOneHotCategorical"], rows["concretely Concrete"]
    text = " ".join(README.split())
    assert f"in {theirs:.1%} of configurations for torch's".replace("%", " %") in text
    assert f"and in {ours:.1%} for `Concrete`".replace("%", " %") in text


def test_the_step_in_the_readme_is_that_of_the_record() -> None:
    ours, jax, compiled, _ = cells("m = 1, 1 model", PERFORMANCE)
    text = " ".join(README.split())
    assert f"`200H~784V` takes {ours} µs on an H200." in text
    assert f"takes {jax} µs in JAX and {compiled} µs in compiled torch (" in text


def test_divergences_are_those_of_the_record() -> None:
    rows = {(row["library"], row["temperature"]): row for row in record("exactness")["results"]["divergence"]}
    ours, theirs = rows["concretely", 0.1], rows["torch", 0.1]
    text = " ".join(NUMERICS.split())
    assert f"is {ours['exact']:.3f}." in text
    assert f"it is {ours['estimate']:.3f} ± {ours['standard_error']:.3f} with `BinaryConcrete`" in text
    assert f"and {theirs['estimate']:.3f} with torch's `RelaxedBernoulli`".replace("-", "−") in text


TORCH = ("torch LogitRelaxedBernoulli", "torch ExpRelaxedCategorical")
TFP = ("tfp Logistic, jit", "tfp ExpRelaxedOneHotCategorical, jit")
JAX = ("jax Logistic by hand, jit", "jax ExpConcrete by hand, jit")
PRIOR = "also scored under a prior: "


@pytest.mark.parametrize(
    ("start", "peers", "compiled"),
    [
        ("torch log-space class ÷ ours", TORCH, ""),
        ("JAX class under jit (tfp) ÷ ours compiled", TFP, ", compiled"),
        ("our own formulas by hand in JAX under jit ÷ ours compiled", JAX, ", compiled"),
        ("our own formulas by hand in JAX under jit ÷ ours, not compiled", JAX, ""),
        (f"{PRIOR}torch log-space class ÷ ours", TORCH, ""),
        (f"{PRIOR}our formulas by hand in JAX under jit ÷ ours compiled", JAX, ", compiled"),
    ],
)
def test_ratios_are_those_of_the_record(start: str, peers: tuple[str, str], compiled: str) -> None:
    name = "posterior scored under a prior" if start.startswith(PRIOR) else "node"
    tasks = {tuple(task["shape"]): task for task in record("node")["results"] if task["task"] == name}
    ours = ((3200, 200), "Logistic"), ((3200, 80, 8), "ExpConcrete")
    for cell, peer, (shape, node) in zip(cells(start, PERFORMANCE), peers, ours, strict=True):
        (contender,) = (row for row in tasks[shape]["contenders"] if row["name"] == peer)
        ratio = contender["ratio"][f"concretely {node}{compiled}"]
        assert cell == quoted(ratio)


HAND, JAX_HAND = "torch by hand, torch.distributions", "jax by hand, jit"
BARE = "concretely variables, no graph"


@pytest.mark.parametrize(
    ("start", "contender", "reference"),
    [
        ("torch by hand, with torch.distributions ÷ ours", HAND, "concretely"),
        ("torch by hand, with torch.distributions ÷ ours compiled", HAND, "concretely, compiled"),
        ("JAX by hand under jit ÷ ours", JAX_HAND, "concretely"),
        ("JAX by hand under jit ÷ ours compiled", JAX_HAND, "concretely, compiled"),
        ("ours ÷ the same without graph, model and estimator", "concretely", BARE),
        ("the same, both compiled", "concretely, compiled", f"{BARE}, compiled"),
    ],
)
def test_ratios_of_steps_are_those_of_the_record(start: str, contender: str, reference: str) -> None:
    tasks = record("step")["results"]
    assert [(task["method"], task["samples"]) for task in tasks] == [
        ("concrete", 1),
        ("concrete", 5),
        ("concrete", 50),
        ("vimco", 5),
    ]
    for cell, task in zip(cells(start, PERFORMANCE), tasks, strict=True):
        (row,) = (row for row in task["contenders"] if row["name"] == contender)
        ratio = row["ratio"][reference]
        assert cell == quoted(ratio)


@pytest.mark.parametrize("result", record("mnist")["results"], ids=lambda result: result["recipe"]["estimator"])
def test_likelihoods_are_those_of_the_record(result: dict[str, Any]) -> None:
    recipe = result["recipe"]
    start = f"`{recipe['notation']}`, {recipe['estimator']}, m = {recipe['samples']}"
    given = ": the lower half given the upper" if recipe["notation"].startswith("392V") else ""
    scores = (result["test_nll"], result["test_factorised_nll"])
    assert cells(start + given, COMMAND) == [
        f"{score['value']:.2f} ± {score['standard_error']:.2f}" for score in scores
    ]
    assert result["target"] is None or result["test_nll"]["value"] < result["target"] == 115


@pytest.mark.parametrize("name", [path.stem for path in RECORDS.glob("*.json")])
def test_records_are_of_a_clean_tree(name: str) -> None:
    assert record(name)["commit"]["dirty"] is False


CHIP = (
    "concretely, ensemble",
    "jax by hand, vmap, scan",
    "torch by hand, vmap, compiled, captured",
    "torch by hand, vmap, eager",
)


STEPS = [
    (rounded, case)
    for name, rounded in (("chip-steps-high", ""), ("chip-steps-medium", ", bfloat16"))
    for case in record(name)["results"]
]
METHODS = {"concrete": "", "vimco": ", VIMCO", "nvil": ", NVIL"}


@pytest.mark.parametrize(("rounded", "case"), STEPS, ids=lambda case: str(case)[:40])
def test_steps_on_a_chip_are_those_of_the_record(rounded: str, case: dict[str, Any]) -> None:
    models = "1 model" if case["members"] == 1 else f"{case['members']} models at once"
    times = {row["name"]: f"{row['us']['median']:g}" for row in case["contenders"]}
    row = f"m = {case['samples']}, {models}{METHODS[case['method']]}{rounded}"
    assert cells(row, PERFORMANCE) == [times[name] for name in CHIP]


@pytest.mark.parametrize("name", ["chip-steps-medium", "chip-recipes-high"])
def test_records_of_another_commit_than_the_steps_are_named(name: str) -> None:
    commits = {each: record(each)["commit"]["hash"] for each in (name, "chip-steps-high")}
    named = f"of commit {commits[name]}" in " ".join(PERFORMANCE.split())
    assert named == (len(set(commits.values())) > 1)


@pytest.mark.parametrize(
    ("start", "contender"),
    [
        ("concretely, captured", "concretely, captured"),
        ("torch.distributions, compiled and captured", "torch.distributions, compiled, captured"),
        ("torch.distributions, eager", "torch.distributions"),
    ],
)
def test_passes_of_nodes_are_those_of_the_record(start: str, contender: str) -> None:
    rows = [row for case in record("chip-nodes")["results"] for row in case["contenders"] if row["name"] == contender]
    assert cells(start, PERFORMANCE) == [f"{row['passes']['median']:.3g}" for row in rows]


@pytest.mark.parametrize(
    ("start", "contender"),
    [
        ("torch.distributions, eager ÷ ours, eager", "torch.distributions"),
        ("torch.distributions, compiled ÷ ours, eager", "torch.distributions, compiled"),
        ("JAX under jit ÷ ours, eager", "jax by hand, jit"),
    ],
)
def test_ratios_of_nodes_on_a_chip_are_those_of_the_record(start: str, contender: str) -> None:
    rows = [row for case in record("chip-nodes")["results"] for row in case["contenders"] if row["name"] == contender]
    assert cells(start, PERFORMANCE) == [f"{row['ratio']['concretely']['median']:.3g}" for row in rows]


RECIPES = {case["name"]: case for case in record("chip-recipes-high")["results"]}
TITLES = {
    "fast, products of float32": "fast, in float32",
    "fast, products of bfloat16": "fast, in bfloat16",
    "fast, at a rate that stays, averaged": "fast, constant rate, averaged weights",
    "fast, at a rate that stays": "fast, constant rate",
    "fast, by Adam": "fast, Adam",
    "fast, Adam and batch 512": "fast, Adam, batch 512",
}
"""What the page calls recipes whose records have another name."""
PRODUCTS = {"highest": "float32", "high": "TF32", "medium": "bfloat16"}


def test_the_fast_recipe_is_that_of_the_record() -> None:
    fast = RECIPES["fast"]
    found = f"{fast['test']['nll']:.2f} ± {fast['test']['standard_error']:.2f}"
    assert f"NLL of {found} on MNIST in {fast['seconds']:.3g} s of training" in " ".join(PERFORMANCE.split())


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_those_of_the_record(name: str) -> None:
    case, text = RECIPES[name], (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    settings, test = case["settings"], case["test"]
    falls = " to 0" if settings["lr_schedule"] == "linear" else ""
    assert cells(TITLES.get(name, name), text) == [
        f"{settings['optimizer'].capitalize()}, {settings['batch']:,}, {settings['lr']:.2g}{falls}",
        PRODUCTS[case["matmul_precision"]],
        f"{case['step']:,}" + " of 10⁷" * (name == "paper"),
        f"{case['seconds']:.1f}",
        f"{test['nll']:.2f} ± {test['standard_error']:.2f}",
    ]


STUDY = read_study(RECORDS / "tasks.json")
START = PAGES["use.md"].partition("### What to start with")[2].partition("\n## ")[0]


def test_the_tasks_to_start_with_are_those_of_the_record() -> None:
    assert STUDY.tasks == list(TASKS)
    assert {run.steps == TASKS[run.task].steps for run in STUDY.runs} == {True}
    assert cells("estimator", START) == [f"`{name}`" for name in TASKS]
    assert all(f"`{name}`: {task.description}" in " ".join(START.split()) for name, task in TASKS.items())
    (seeds,) = {score.seeds for task in TASKS for name in STUDY.estimators if (score := STUDY.score(task, name))}
    assert f"the mean of {seeds} seed{'s' * (seeds > 1)} ± its standard error" in " ".join(START.split())


def test_what_is_said_of_the_estimators_to_start_with_is_true_of_the_record() -> None:
    mean = {
        (task, name): score.mean for task in TASKS for name in STUDY.estimators if (score := STUDY.score(task, name))
    }
    assert all(mean[task, "pathwise"] - mean[task, STUDY.best(task)] <= 0.5 for task in TASKS)
    for task in (task for task in TASKS if task != "gate"):
        unbiased = {name: mean[task, name] for name in ("reinforce", "rloo", "nvil", "vimco")}
        assert min(unbiased, key=unbiased.__getitem__) == "vimco"
    for task in ("binary-vae", "8-way-vae", "64-way-vae"):
        assert mean[task, "straight-through-gumbel-softmax"] - mean[task, "pathwise"] > 1


@pytest.mark.parametrize("name", CONTENDERS)
def test_what_to_start_with_is_that_of_the_record(name: str) -> None:
    found = {task: format_task_score(STUDY.score(task, name)) for task in TASKS}
    expected = [f"**{text}**" if STUDY.best(task) == name else text for task, text in found.items()]
    assert cells(f"`{CONTENDERS[name].code}`", START) == expected


MEASURED = record("temperature")["results"]


def mean_nlls(row: dict[str, Any]) -> list[float]:
    """The NLL after a third of the steps and at the end, averaged over seeds."""
    return [sum(seeds) / len(seeds) for seeds in row["nll"]]


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: case["states"])
def test_temperatures_are_those_of_the_record(case: dict[str, Any]) -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    found = [", ".join(f"{nll:.2f}" for nll in mean_nlls(row)) for row in case["rows"]]
    assert cells(f"{case['states']}, {case['units']}", text) == found
    assert [row["kl"] for row in case["rows"]] == ["analytic"] * 4 + ["density", "warm-up"]


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: case["states"])
def test_a_default_temperature_is_the_papers_or_one_half_and_as_good_as_the_best(case: dict[str, Any]) -> None:
    nll = {row["temperature"]: sum(mean_nlls(row)) / 2 for row in case["rows"] if row["kl"] == "analytic"}
    good = {temperature for temperature, value in nll.items() if value <= min(nll.values()) + 0.1}
    paper = TEMPERATURES.get(case["states"], (None,))[0]
    assert ANALYTIC[case["states"]] == (paper if paper in good else 1 / 2)
    assert 1 / 2 in good


def test_the_kl_between_densities_collapses_where_the_pages_say_so() -> None:
    last = {(case["states"], row["kl"]): mean_nlls(row)[-1] for case in MEASURED for row in case["rows"][-3:]}
    assert {key for key, nll in last.items() if nll > 27} == {
        (4, "density"), (8, "density"), (16, "density"), (64, "density"), (64, "warm-up")
    }  # fmt: skip
    assert sorted(ANALYTIC) == [case["states"] for case in MEASURED]


def test_likelihoods_on_a_chip_are_those_of_the_record() -> None:
    ours, theirs = (
        [
            f"{case['contenders'][place]['us']['median'] / 1e6:.3g} s"
            for case in record("chip-likelihood-high")["results"]
        ]
        for place in (0, 1)
    )
    text = " ".join(PERFORMANCE.split())
    assert f"takes {ours[0]}, and {ours[1]} with two layers of latents" in text
    assert f"A plain loop in torch takes {theirs[0]} and {theirs[1]} (" in text


def test_programs_on_a_chip_are_those_of_the_record() -> None:
    (case,) = record("chip-programs-high")["results"]
    times = {point["value"]: f"{point['us_per_model']['median']:.3g} µs" for point in case["points"]}
    text = " ".join(PERFORMANCE.split())
    assert f"Eight models in one program take {times[1]} each." in text
    assert f"With four such programs at once, each model takes {times[4]} (" in text


COSTS = [case for name in ("chip-costs-high", "chip-programs-high") for case in record(name)["results"]]


@pytest.mark.parametrize("case", [case for case in COSTS if len(case["points"]) > 1], ids=lambda case: case["against"])
def test_costs_are_those_of_the_record(case: dict[str, Any]) -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    points = [f"{point['value']}: {point['us_per_model']['median']:.3g}" for point in case["points"]]
    assert cells(case["against"], text) == [", ".join(points)]


TABLE = json.loads((ROOT / "reproduction" / "records" / "table-1.json").read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("notation", ["200H-784V", "200H-200H-784V", "200H~784V", "200H~200H~784V"])
def test_a_table_of_the_paper_is_that_of_the_record(notation: str) -> None:
    _, _, text = COMMAND.partition("| MNIST, m = 5 |")
    found = []
    for cell in load_experiment("table-1").cells:
        if (cell.recipe.notation, cell.recipe.samples, cell.recipe.data) == (notation, 5, "mnist"):
            test = TABLE[cell.title]["best"]["metrics"]["test_nll"]
            found += [f"{test['value']:.2f} ± {test['standard_error']:.2f}", str(cell.paper["test"])]
    assert cells(f"`{notation}`", text.partition("\n\n")[0]) == found


def test_the_cells_that_are_as_good_as_in_the_paper_are_those_of_the_record() -> None:
    near: dict[str, list[bool]] = {"concrete": [], "discrete": [], "logistic-normal": []}
    known = [(cell, found.best) for cell, found in every_record()]
    for cell, best in known:
        if "test" in cell.paper:
            name = cell.recipe.estimator if cell.recipe.method.relaxes else "discrete"
            near[name].append(best["metrics"]["test_nll"]["value"] - cell.paper["test"] <= 1)
    text = " ".join(COMMAND.split())
    assert len(known) == sum(len(load_experiment(name).cells) for name in experiment_names())
    assert f"All {len(known)} models of the paper's tables, text and temperature figure are trained" in text
    steps = sorted({best["recipe"]["steps"] for _, best in known})
    assert f"Each took {steps[0]:,} to {steps[-1]:,} steps" in text
    assert f"at most {math.ceil(max(best['seconds'] for _, best in known))} seconds of an H200" in text
    counts = [f"{sum(found)} of {len(found)}" for found in near.values()]
    rows = ("Concrete", "NVIL and VIMCO", "logistic-normal control")
    assert [cells(row, COMMAND) for row in rows] == [[count] for count in counts]
    near_enough, compared = sum(near["concrete"]), len(near["concrete"])
    matched = f"{near_enough} of the {compared} test negative log-likelihoods (NLLs) that the paper has for Concrete"
    assert matched in " ".join(README.split())
    verdicts = re.findall(
        r"^- \*\*[^:]*: (.*)\.\*\*", (ROOT / "reproduction/README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert verdicts.count("held") == len(verdicts)
    assert f"All {len(verdicts)} findings of the paper hold." in text
    assert f"why {sum(not each for found in near.values() for each in found)} models are more than 1 nat behind" in text


@pytest.mark.parametrize("notation", ["200H-784V", "200H~784V"])
def test_what_the_budget_of_the_paper_costs_is_that_of_the_record(notation: str) -> None:
    cell = next(cell for cell in load_experiment("table-1").cells if cell.recipe.notation == notation)
    best, history = TABLE[cell.title].values()
    (whole,) = (record for record in history if record["recipe"]["steps"] == cell.recipe.steps)
    assert (whole["members"], best["members"]) == (1, 2)
    _, _, text = COMMAND.partition("| m = 1, MNIST |")
    for start, record, seconds in (("the paper's budget", whole, ".0f"), ("ours", best, ".1f")):
        scores = (record["metrics"][name] for name in ("valid_nll", "test_nll"))
        nlls = [f"{score['value']:.2f} ± {score['standard_error']:.2f}" for score in scores]
        assert cells(f"`{notation}` | {start}", text)[1:] == [format(record["seconds"], seconds), *nlls]


def every_record() -> Iterator[tuple[Cell, CellHistory]]:
    for each in map(load_experiment, experiment_names()):
        found = read_history(each, ROOT / "reproduction" / "records")
        yield from ((cell, found[cell.title]) for cell in each.cells if cell.title in found)
