"""Run the examples at their full number of steps, and record their numbers.

Run it with `python -m benchmarks.examples`. Examples whose libraries are not installed are left out.
"""

import runpy
import sys
import time
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from . import record

SEED = 0
FOLDER = Path(__file__).parent.parent / "examples"
OUT = Path(__file__).parent / "records" / "examples.json"
NEEDS = {"lightning_module": "lightning", "hugging_face": "transformers"}
"""The libraries that some examples need."""


def names() -> list[str]:
    """The names of all examples."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def load(name: str) -> Callable[..., dict[str, float]]:
    """Import an example, and return its function `main`."""
    main: Callable[..., dict[str, float]] = runpy.run_path(str(FOLDER / f"{name}.py"))["main"]
    return main


def result(name: str) -> dict[str, Any] | None:
    """Run an example, and return what it found; None if its library is not installed."""
    try:
        main = load(name)
        start = time.process_time()
        numbers = main()
    except ModuleNotFoundError as error:
        if error.name != NEEDS.get(name):
            raise
        return None
    return {
        "example": name,
        "steps": signature(main).parameters["steps"].default,
        "cpu_seconds": round(time.process_time() - start, 1),
        "found": numbers,
    }


def main(out: Annotated[Path, typer.Option(help="Where to write the record.")] = OUT) -> None:
    """Run the examples and record their numbers."""
    torch.set_num_threads(1)
    results = [row for name in names() if (row := result(name)) is not None]
    record.write(out, {"threads": 1}, seed=SEED, results=results)
    print(f"wrote {out}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
