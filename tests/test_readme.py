"""The code of the README runs, and every number that it quotes stands in a record of the repository."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from concretely.experiment.history import CellHistory, read_history
from concretely.experiment.paper import Cell, experiment_names, load_experiment

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


RECORDS = ROOT / "benchmarks" / "records"
CODE = "\n".join(re.findall(r"^```python.*?\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))


def test_code_runs_from_the_first_line_to_the_last() -> None:
    exec(compile(CODE, "README.md", "exec"), {})


def record(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def cells(start: str, text: str = README) -> list[str]:
    """The cells of the row of a table that starts so."""
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in row.strip("| ").split("|")][1:]


def quoted(ratio: dict[str, Any]) -> str:
    """A ratio as the README writes it."""
    low, high = ratio["quartiles"]
    return f"{ratio['median']:.2f} ({low:.2f} – {high:.2f})"


@pytest.mark.parametrize("row", record("exactness")["results"]["sweep"], ids=lambda row: row["class"])
def test_shares_are_those_of_the_record(row: dict[str, Any]) -> None:
    library, name = row["class"].split()
    shares = [row.get(key) for key in ("log_density_not_finite", "draw_refused", "gradient_wrong")]
    expected = ["" if share is None else f"{share:.1%}".replace("%", " %") for share in shares]
    assert [*cells(f"{library} `{name}`"), ""][:3] == expected


def test_the_reason_to_be_is_that_of_the_record() -> None:
    rows = {row["class"]: row["log_density_not_finite"] for row in record("exactness")["results"]["sweep"]}
    theirs, ours = rows["torch RelaxedOneHotCategorical"], rows["concretely Concrete"]
    assert f"for {theirs:.1%} of its own draws, `Concrete` for {ours:.1%}".replace("%", " %") in README


def test_divergences_are_those_of_the_record() -> None:
    rows = {(row["library"], row["temperature"]): row for row in record("exactness")["results"]["divergence"]}
    ours, theirs = rows["concretely", 0.1], rows["torch", 0.1]
    assert f"is {ours['exact']:.3f}" in README
    assert f"{ours['estimate']:.3f} ± {ours['standard_error']:.3f} here" in README
    assert f"{theirs['estimate']:.3f} with torch".replace("-", "−") in README


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
    for cell, peer, (shape, node) in zip(cells(start), peers, ours, strict=True):
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
    for cell, task in zip(cells(start), tasks, strict=True):
        (row,) = (row for row in task["contenders"] if row["name"] == contender)
        ratio = row["ratio"][reference]
        assert cell == quoted(ratio)


@pytest.mark.parametrize("result", record("mnist")["results"], ids=lambda result: result["recipe"]["estimator"])
def test_likelihoods_are_those_of_the_record(result: dict[str, Any]) -> None:
    recipe = result["recipe"]
    start = f"`{recipe['notation']}`, {recipe['estimator']}, m = {recipe['samples']}"
    given = ": the lower half given the upper" if recipe["notation"].startswith("392V") else ""
    scores = (result["test_nll"], result["test_factorised_nll"])
    assert cells(start + given) == [f"{score['value']:.2f} ± {score['standard_error']:.2f}" for score in scores]
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
    assert cells(row) == [times[name] for name in CHIP]


@pytest.mark.parametrize("name", ["chip-steps-medium", "chip-recipes-high"])
def test_records_of_another_commit_than_the_steps_are_named(name: str) -> None:
    commits = {each: record(each)["commit"]["hash"] for each in (name, "chip-steps-high")}
    named = f"of commit {commits[name]}" in " ".join(README.split())
    assert named == (len(set(commits.values())) > 1)


def test_passes_of_nodes_are_those_of_the_record() -> None:
    both = [{row["name"]: row for row in case["contenders"]} for case in record("chip-nodes")["results"]]
    nary, binary = ({name: f"{row['passes']['median']:.3g}" for name, row in rows.items()} for rows in both)
    ours, eager, compiled = "concretely, captured", "torch.distributions", "torch.distributions, compiled, captured"
    text = " ".join(README.split())
    assert f"takes {nary[ours]} times as long as a copy" in text
    assert f"and {binary[ours]} times where it is binary" in text
    assert f"recorded too, {nary[compiled]} and {binary[compiled]} times" in text
    assert f"called plainly {nary[eager]} and {binary[eager]} (" in text
    faster = [f"{rows[eager]['ratio']['concretely']['median']:.3g}" for rows in both]
    assert f"ours are {faster[0]} and {faster[1]} times as fast" in text
    others = ("torch.distributions, compiled", "jax by hand, jit")
    slower = [f"{rows[name]['ratio']['concretely']['median']:.3g}" for name in others for rows in both]
    told = "torch.distributions, {} and {} times as its compiled form and {} and {} times as JAX"
    assert told.format(*slower) in text


RECIPES = {case["name"]: case for case in record("chip-recipes-high")["results"]}
PRODUCTS = {"highest": "float32", "high": "TF32", "medium": "bfloat16"}


def test_the_fast_recipe_is_that_of_the_record() -> None:
    fast = RECIPES["fast"]
    found = f"{fast['test']['nll']:.2f} ± {fast['test']['standard_error']:.2f}"
    assert f"NLL of {found} on MNIST in {fast['seconds']:.3g} s of training" in " ".join(README.split())


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_those_of_the_record(name: str) -> None:
    case, text = RECIPES[name], (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    settings, test = case["settings"], case["test"]
    falls = " to 0" if settings["lr_schedule"] == "linear" else ""
    assert cells(name, text) == [
        f"{settings['optimizer'].capitalize()}, {settings['batch']:,}, {settings['lr']:.2g}{falls}",
        PRODUCTS[case["products"]],
        f"{case['step']:,}" + " of 10⁷" * (name == "paper"),
        f"{case['seconds']:.1f}",
        f"{test['nll']:.2f} ± {test['standard_error']:.2f}",
    ]


def test_likelihoods_on_a_chip_are_those_of_the_record() -> None:
    ours, theirs = (
        [
            f"{case['contenders'][place]['us']['median'] / 1e6:.3g} s"
            for case in record("chip-likelihood-high")["results"]
        ]
        for place in (0, 1)
    )
    text = " ".join(README.split())
    assert f"take {ours[0]}, and {ours[1]} with two layers of latents" in text
    assert f"a plain loop in torch {theirs[0]} and {theirs[1]} (" in text


def test_programs_on_a_chip_are_those_of_the_record() -> None:
    (case,) = record("chip-programs-high")["results"]
    times = {point["value"]: f"{point['us_per_model']['median']:.3g} µs" for point in case["points"]}
    text = " ".join(README.split())
    assert f"as one program take {times[1]} each, four such programs at once {times[4]} (" in text


COSTS = [case for name in ("chip-costs-high", "chip-programs-high") for case in record(name)["results"]]


@pytest.mark.parametrize("case", [case for case in COSTS if len(case["points"]) > 1], ids=lambda case: case["against"])
def test_costs_are_those_of_the_record(case: dict[str, Any]) -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    points = [f"{point['value']}: {point['us_per_model']['median']:.3g}" for point in case["points"]]
    assert cells(case["against"], text) == [", ".join(points)]


TABLE = json.loads((ROOT / "reproduction" / "records" / "table-1.json").read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("notation", ["200H-784V", "200H-200H-784V", "200H~784V", "200H~200H~784V"])
def test_a_table_of_the_paper_is_that_of_the_record(notation: str) -> None:
    _, _, text = README.partition("## The paper's tables")
    found = []
    for cell in load_experiment("table-1").cells:
        if (cell.recipe.notation, cell.recipe.samples, cell.recipe.data) == (notation, 5, "mnist"):
            test = TABLE[cell.title]["best"]["metrics"]["test_nll"]
            found += [f"{test['value']:.2f} ± {test['standard_error']:.2f}", str(cell.paper["test"])]
    assert cells(f"`{notation}`", text.partition("\n## ")[0]) == found


def test_the_cells_that_are_as_good_as_in_the_paper_are_those_of_the_record() -> None:
    near: dict[str, list[bool]] = {"concrete": [], "discrete": [], "logistic-normal": []}
    known = [(cell, found.best) for cell, found in every_record()]
    for cell, best in known:
        if "test" in cell.paper:
            name = cell.recipe.estimator if cell.recipe.method.relaxes else "discrete"
            near[name].append(best["metrics"]["test_nll"]["value"] - cell.paper["test"] <= 1)
    text = " ".join(README.split())
    assert len(known) == sum(len(load_experiment(name).cells) for name in experiment_names())
    assert f"All {len(known)} models of the paper's tables, text and temperature figure are trained" in text
    steps = sorted({best["recipe"]["steps"] for _, best in known})
    assert f"each in {steps[0]:,} to {steps[-1]:,} steps" in text
    assert f"in no more than {math.ceil(max(best['seconds'] for _, best in known))} seconds' share" in text
    relaxed, discrete, normal = (f"{sum(found)} of {len(found)}" for found in near.values())
    told = f"in {relaxed}, NVIL and VIMCO in {discrete}, the logistic-normal control in {normal}."
    assert f"of its test NLL or better {told}" in text
    verdicts = re.findall(
        r"^- \*\*[^:]*: (.*)\.\*\*", (ROOT / "reproduction/README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert f"Of {len(verdicts)} findings of the paper {verdicts.count('held')} hold." in text
    assert f"why {sum(not each for found in near.values() for each in found)} cells are not there yet" in text


def test_what_the_budget_of_the_paper_costs_is_that_of_the_record() -> None:
    pairs = []
    for notation in ("200H-784V", "200H~784V"):
        cell = next(cell for cell in load_experiment("table-1").cells if cell.recipe.notation == notation)
        best, history = TABLE[cell.title].values()
        (whole,) = (record for record in history if record["recipe"]["steps"] == cell.recipe.steps)
        pairs.append((whole, best))
    slow, fast = zip(*pairs, strict=True)
    assert [{record["members"] for record in each} for each in (slow, fast)] == [{1}, {2}]
    scores = [record["metrics"]["test_nll"] for record in (*slow, *fast)]
    assert {f"{score['standard_error']:.2f}" for score in scores} == {"0.23"}
    first, second, third, fourth = (f"{score['value']:.2f}" for score in scores)
    looks = [[record["metrics"]["valid_nll"] for record in pair] for pair in pairs]
    linear, nonlinear = (f"{whole['value'] - best['value']:.2f}" for whole, best in looks)
    assert {f"{look['standard_error']:.2f}" for pair in looks for look in pair} == {"0.24"}
    text = " ".join(README.split())
    assert f"the validation set prefers ours by {linear} and {nonlinear} nats (each NLL ± 0.24): 10⁷ steps" in text
    assert (
        f"10⁷ steps of 64 points take {slow[0]['seconds']:.0f} seconds for `200H-784V`, m = 1, and "
        f"{slow[1]['seconds']:.0f} for `200H~784V`, and come to {first} and {second} nats on the test set; our recipe "
        f"takes {fast[0]['seconds']:.1f} and {fast[1]['seconds']:.1f}, the share of each in a program of two, and "
        f"comes to {third} and {fourth} (± 0.23)."
    ) in text


def every_record() -> Iterator[tuple[Cell, CellHistory]]:
    for each in map(load_experiment, experiment_names()):
        found = read_history(each, ROOT / "reproduction" / "records")
        yield from ((cell, found[cell.title]) for cell in each.cells if cell.title in found)
