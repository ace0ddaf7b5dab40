"""Check the laws on a device, then time the requested parts on it, and write every record as it grows."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .. import record
from . import ablation, cost, law, likelihood, node, own, recipe, step
from .law import Law
from .work import SEED

PARTS = ("laws", "nodes", "steps", "own", "likelihood", "costs", "programs", "recipes", "ablation")
PRECISIONS = ("highest", "high", "medium")


def main() -> int:
    """Run the benchmarks that the flags select."""
    wished = _flags()
    # JAX would otherwise allocate three quarters of the device memory when it is imported
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    device = torch.device(wished.device)
    torch.set_float32_matmul_precision(wished.precision)
    _say(f"matrix products of precision {wished.precision!r} on {device}")
    checked = {"device": device, "precision": wished.precision, "quick": wished.quick, "say": _say}
    laws = [] if wished.skip_laws else law.kept(**checked)
    if laws is None:
        return 1
    for part in wished.only:
        if part != "laws":
            started = time.perf_counter()
            _written(part, wished, laws, device)
            _say(f"{part} took {time.perf_counter() - started:.0f} s\n")
    return 0


def _written(part: str, wished: argparse.Namespace, laws: list[Law], device: torch.device) -> None:
    """Time a part, and write its record after every result."""
    rounds = 3 if wished.quick else wished.rounds
    settings = {
        "benchmark": f"chip {part}",
        "matmul_precision": wished.precision,
        "dtype": "float32",
        "rounds": {"likelihood": wished.likelihood_rounds, "recipes": 1, "ablation": ablation.ROUNDS}.get(part, rounds),
        "quick": wished.quick,
        "laws": [{**law._asdict(), "holds": law.holds} for law in laws],
    }
    # nodes multiply nothing
    path = wished.out / (f"chip-{part}.json" if part == "nodes" else f"chip-{part}-{wished.precision}.json")
    once = {"device": device, "quick": wished.quick, "say": _say}
    given = {**once, "rounds": rounds}
    parts: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "nodes": lambda: node.results(**given),
        "steps": lambda: step.results(**given, precision=wished.precision, cases=wished.cases),
        "own": lambda: own.results(**given, precision=wished.precision),
        "likelihood": lambda: likelihood.results(**{**given, "rounds": wished.likelihood_rounds}, points=wished.points),
        "costs": lambda: cost.results(cost.COSTS, **given),
        "programs": lambda: cost.results(cost.PROGRAMS, **given),
        "recipes": lambda: recipe.results(**once, seconds=wished.recipe_seconds, points=wished.points),
        "ablation": lambda: ablation.results(**once, seconds=wished.ablation_seconds),
    }
    results: list[dict[str, Any]] = []
    for result in parts[part]():
        results.append(result)
        record.write(path, settings, seed=SEED, results=results, on=str(device))


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chip", description=__doc__)
    folder = Path(__file__).parent.parent / "records"
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--out", type=Path, help="folder of the records, by default the committed ones on a GPU")
    parser.add_argument("--only", type=_chosen, default=PARTS, help=f"parts, separated by commas: {','.join(PARTS)}")
    parser.add_argument("--device", default=here, help="device, by default a GPU if there is one")
    parser.add_argument("--precision", choices=PRECISIONS, default="high", help="precision of float32 matrix products")
    parser.add_argument("--rounds", type=int, default=10, help="number of timed rounds")
    parser.add_argument(
        "--likelihood-rounds", type=int, default=3, help="number of timed rounds of a likelihood, which takes long"
    )
    parser.add_argument("--points", type=int, help="number of data points of a likelihood, by default 10,000")
    parser.add_argument("--recipe-seconds", type=float, default=60.0, help="seconds of training by the paper's recipe")
    parser.add_argument(
        "--ablation-seconds",
        type=float,
        default=ablation.SECONDS,
        help="seconds after which the ablation starts no more pairs",
    )
    parser.add_argument("--skip-laws", action="store_true", help="time without checking the laws first")
    parser.add_argument("--cases", type=_places, help="indices of the steps to time, such as 0,2; by default all")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that everything runs")
    wished = parser.parse_args()
    if wished.out is None:  # those of a CPU are no records of a chip
        wished.out = folder if torch.device(wished.device).type == "cuda" else Path("out") / "benchmarks"
    return wished


def _chosen(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    for part in chosen:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"unknown part {part!r}; choose from {', '.join(PARTS)}")
    return chosen


def _places(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
