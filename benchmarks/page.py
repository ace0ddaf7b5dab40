"""The records of `benchmarks.chip` on one page: what was asked beside what was measured, and figures of all else.

Run it with `python -m benchmarks.page`. The page is a single HTML file that needs nothing else, neither files nor a
network nor scripts.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from concretely.experiment.record import format_value
from concretely.file import atomic_write

from . import chart

HERE = Path(__file__).parent
PARTS = ("nodes", "steps", "likelihood", "costs", "programs", "recipes")
RECORDS, OUT = HERE / "records", Path("out/benchmarks.html")


class Picture(NamedTuple):
    """A figure, its caption and its numbers."""

    caption: str
    svg: str
    rows: tuple[tuple[str, str, str], ...] = ()


class Section(NamedTuple):
    """Figures of one kind, and an explanation."""

    title: str
    text: str
    pictures: list[Picture]


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--records", type=Path, default=RECORDS, help="the folder of the records")
    parser.add_argument("--out", type=Path, default=OUT, help="the page")
    wished = parser.parse_args()
    text = page(read(wished.records))
    wished.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(wished.out) as place:
        place.write_text(text, encoding="utf-8")
    print(f"open {wished.out}")


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the records of `benchmarks.chip` in a folder."""
    paths = [path for part in PARTS for path in sorted(folder.glob(f"chip-{part}*.json"))]
    records = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if not records:
        raise SystemExit(
            f"records must be files chip-*.json, got none in {folder}: run python -m benchmarks.chip first"
        )
    return records


def page(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as HTML."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((HERE / "page.html").read_text(encoding="utf-8"))
    report = files("concretely.report").joinpath("page.html").read_text(encoding="utf-8")
    return template.render(
        style=report.partition("<style>")[2].partition("</style>")[0],  # that of all reports
        asked=list(_asked(records)),
        sections=[section for section in map(_section, records) if section.pictures],
        laws=list(_laws(records)),
        environments=list(dict.fromkeys(map(_environment, records))),
        quick=any(record["recipe"]["quick"] for record in records),
    )


def _asked(records: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield every limit and the measurement."""
    for record in records:
        for row in (row for result in record["results"] for row in result.get("asked", [])):
            yield {
                "what": row["what"] + _precision(record),
                "limit": f"{'≤' if row['sense'] == 'at most' else '≥'} {row['limit']:g} {row['unit']}",
                "measured": _measured(row),
                "verdict": "yes" if row["holds"] else "no",
            }


def _section(record: Mapping[str, Any]) -> Section:
    part = record["recipe"]["benchmark"].removeprefix("chip ")
    match part:
        case "nodes":
            text = "The time of a sample, its log density and its gradient. One pass is the time to copy the logits."
            return Section("Nodes", text, [_node(result) for result in record["results"]])
        case "steps":
            text = "The time of a forward pass, a backward pass and an update, in microseconds for each model of one "
            text += "program."
            return Section(f"Training steps{_precision(record)}", text, [_step(result) for result in record["results"]])
        case "likelihood":
            text = "The time to compute the multi-sample bound of a test set, in seconds."
            pictures = [_likelihood(result) for result in record["results"]]
            return Section(f"Likelihood{_precision(record)}", text, pictures)
        case "recipes":
            text = "The validation NLL of a model of MNIST against seconds of training. Seconds do not include "
            text += "validation, nor the first steps, in which programs are compiled and recorded. Each test NLL is "
            text += "that of one run, with its standard error over test points."
            return Section(f"Time to a likelihood{_precision(record)}", text, _recipes(record["results"]))
        case "programs":
            text = "The time of a step of each of several programs that share the device. Each program has a thread "
            text += "and a stream."
            return Section(f"Several programs at once{_precision(record)}", text, _costs(record["results"]))
        case _:
            text = "The time of a training step of this library as one size grows. Where a line is as steep as the "
            text += "dotted one, the time is proportional to the size. Where it is flat, a larger size costs nothing."
            return Section(f"Cost against size{_precision(record)}", text, _costs(record["results"]))


def _node(result: Mapping[str, Any]) -> Picture:
    caption = f"{result['kind']} node, {' × '.join(f'{size:,}' for size in result['shape'])} logits"
    return _contenders(caption, result, of="passes", unit="passes")


def _step(result: Mapping[str, Any]) -> Picture:
    many = f"{result['members']} model{'s' * (result['members'] > 1)}"
    caption = f"{result['architecture']}, {result['method']}, m = {result['samples']}, {many}, batch {result['batch']}"
    return _contenders(caption, result, of="us", unit="µs per model and step")


def _likelihood(result: Mapping[str, Any]) -> Picture:
    seconds = [{**row, "s": _scaled(row["us"], 1e-6)} for row in result["contenders"]]
    caption = f"{result['architecture']}, {result['samples']:,} samples of {result['points']:,} points"
    return _contenders(caption, {**result, "contenders": seconds}, of="s", unit="seconds")


def _contenders(caption: str, result: Mapping[str, Any], *, of: str, unit: str) -> Picture:
    """Return a figure of the contenders of a result, and their ratios to our fastest."""
    known = [row for row in result["contenders"] if of in row]
    limits = [row["limit"] for row in result["asked"] if row["sense"] == "at most"]
    ours = min((row for row in known if row["ours"]), key=lambda row: row[of]["median"], default=None)
    rows = [
        (row["name"], _spread(row[of]), _spread(row["ratio"][ours["name"]]) if ours else "")
        for row in sorted(known, key=lambda row: row[of]["median"])
    ]
    figure = chart.dots(known, of=of, unit=unit, limit=limits[0] if limits else None)
    return Picture(caption, chart.svg(figure), (("contender", unit, "÷ ours"), *rows))


def _costs(results: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Return a figure for every size with at least two values."""
    return [_cost(result) for result in results if len(result["points"]) > 1]


def _cost(result: Mapping[str, Any]) -> Picture:
    fixed = ", ".join(f"{name} {value}" for name, value in result["fixed"].items())
    return Picture(f"Against {result['against']}; {fixed}", chart.svg(chart.cost(result)))


def _recipes(results: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Return one figure with the curves of all recipes and their results, or none if there are no curves."""
    known = [result for result in results if result["valid"]["curve"]]
    if not known:
        return []
    settings, valid, test = known[0]["settings"], known[0]["valid"], known[0]["test"]
    validation, end = (f"{scored['samples']:,} samples of {scored['points']:,} points" for scored in (valid, test))
    caption = f"{settings['notation']}, validation by {validation}, test by {end}"
    rows = [
        (
            result["name"],
            format_value(result["test"]["nll"], result["test"]["standard_error"]),
            _length(result),
        )
        for result in known
    ]
    heads = "recipe", "test NLL", "steps and seconds"
    return [Picture(caption, chart.svg(chart.curves(known)), (heads, *rows))]


def _length(result: Mapping[str, Any]) -> str:
    """Return how long a recipe was trained, in steps and seconds.

    >>> _length({"step": 10, "seconds": 2.0, "settings": {"steps": 1000}})
    '10 of 1,000 in 2 s'
    """
    steps = result["settings"]["steps"]
    return f"{result['step']:,}{f' of {steps:,}' * (result['step'] < steps)} in {chart.number(result['seconds'])} s"


def _laws(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Return the laws that held before anything was timed, each with the largest number found."""
    largest: dict[tuple[str, float], float] = {}
    for law in (law for record in records for law in record["recipe"]["laws"]):
        key = law["name"], law["limit"]
        largest[key] = max(largest.get(key, 0.0), law["found"])
    for (name, limit), number in largest.items():
        yield name, f"{number:.2g}", f"{limit:g}"


def _environment(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the device, the versions and the commit in words."""
    device, commit = record["device"], record["commit"]
    cores = f"{device['cpu']}, {device['cores']} core{'s' * (device['cores'] != 1)}"
    return (
        ("device", f"{device['gpu']} beside {cores}" if "gpu" in device else cores),
        ("versions", ", ".join(f"{name} {version}" for name, version in record["versions"].items())),
        ("commit", (commit["hash"] + ", with changes" * commit["dirty"]) if commit else "not in a repository"),
    )


def _precision(record: Mapping[str, Any]) -> str:
    """Return the precision of matrix products in words, or an empty string for nodes, which have none."""
    recipe = record["recipe"]
    words = {"highest": "float32", "high": "TF32", "medium": "bfloat16"}
    return "" if recipe["benchmark"] == "chip nodes" else f", {words[recipe['matmul_precision']]} products"


def _measured(row: Mapping[str, Any]) -> str:
    """Format a measurement: the spread of many, or one with a standard error.

    >>> _measured({"measured": {"median": 91.97, "quartiles": [91.97, 91.97]}, "standard_error": 0.23})
    '91.97 ± 0.23'
    """
    error = row.get("standard_error")
    return _spread(row["measured"]) if error is None else format_value(row["measured"]["median"], error)


def _spread(spread: Mapping[str, Any]) -> str:
    """Format a median and its quartiles.

    >>> _spread({"median": 2.0, "quartiles": [1.5, 2.25]})
    '2 (1.5 – 2.25)'
    """
    median, low, high = map(chart.number, (spread["median"], *spread["quartiles"]))
    return f"{median} ({low} – {high})"


def _scaled(spread: Mapping[str, Any], factor: float) -> dict[str, Any]:
    return {"median": spread["median"] * factor, "quartiles": [quartile * factor for quartile in spread["quartiles"]]}


if __name__ == "__main__":
    main()
