"""The record of a benchmark, with its environment but nothing that identifies a user or a host."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from concretely import environment
from concretely.experiment import record

from .timing import Spread, Timing

PACKAGES = (
    *environment.PACKAGES,
    "triton",
    "jax",
    "jaxlib",
    "numpyro",
    "tfp-nightly",
    "tensorflow-probability",
    "pyro-ppl",
    "lightning",
    "transformers",
)


def write(path: Path, recipe: Mapping[str, Any], *, seed: int, results: Any, on: str = "cpu") -> None:
    """Write the record of a benchmark on a device, with its environment."""
    described = environment.describe_environment(on, packages=PACKAGES)
    record.write_record(path, {"recipe": recipe, **described, "seed": seed, "results": results})


def described(task: Any, timings: Sequence[Timing[Any]]) -> dict[str, Any]:
    """Return the timings of a task as a record stores them, with ratios to our contenders."""
    ours = [timing for timing in timings if timing.contender.ours]
    return {
        **task.described,
        "contenders": [
            {
                **timing.contender.described,
                "first_call_ms": _rounded(timing.first * 1e3),
                "ms": described_spread(Spread.of(timing.rounds * 1e3)),
                "ratio": {other.contender.name: described_spread(timing.over(other)) for other in ours},
            }
            for timing in timings
        ],
    }


def described_spread(spread: Spread) -> dict[str, Any]:
    """Return measurements as a record stores them."""
    return {"median": _rounded(spread.median), "quartiles": [_rounded(spread.lower), _rounded(spread.upper)]}


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")
