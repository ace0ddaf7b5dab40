"""Count where draws, log densities and gradients are right, over a sweep of logits, temperatures, sizes and dtypes.

Run it with `python -m benchmarks.exactness`. A configuration is one logit (or row of logits), temperature, number of
categories and dtype; those whose logit over the temperature the dtype cannot hold are left out.
"""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.distributions import RelaxedBernoulli, RelaxedOneHotCategorical
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.distributions.relaxed_categorical import ExpRelaxedCategorical

import concretely as c

from . import record

SEED = 0
DRAWS = 16
LOGITS = (0.0, 1.0, -1.0, 10.0, -10.0, 50.0, -50.0, 100.0, -100.0, 1e3, -1e3, 1e4, -1e4)
TEMPERATURES = (1e-3, 0.01, 0.1, 0.5, 2 / 3, 1.0, 2.0, 10.0)
CATEGORIES = (2, 3, 8, 64, 1024)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DIVERGENCE_TEMPERATURES = (2 / 3, 0.2, 0.1, 0.05)
SHARES = ("log_density_not_finite", "draw_refused", "gradient_wrong")
OUT = Path(__file__).parent / "records" / "exactness.json"


class Family(NamedTuple):
    """A class to test: how to build it, whether its logits have a category axis, and if its values have an edge."""

    name: str
    build: Callable[[Tensor, float], Any]
    has_categories: bool
    is_unit: bool


def _ours(build: Callable[..., Any]) -> Callable[[Tensor, float], Any]:
    return lambda logits, temperature: build(logits=logits, temperature=temperature)


def _torch(build: Callable[..., Any]) -> Callable[[Tensor, float], Any]:
    return lambda logits, temperature: build(
        torch.tensor(temperature, dtype=logits.dtype), logits=logits, validate_args=False
    )


FAMILIES = (
    Family("concretely Logistic", _ours(c.Logistic), False, False),
    Family("torch LogitRelaxedBernoulli", _torch(LogitRelaxedBernoulli), False, False),
    Family("concretely BinaryConcrete", _ours(c.BinaryConcrete), False, True),
    Family("torch RelaxedBernoulli", _torch(RelaxedBernoulli), False, True),
    Family("concretely ExpConcrete", _ours(c.ExpConcrete), True, False),
    Family("torch ExpRelaxedCategorical", _torch(ExpRelaxedCategorical), True, False),
    Family("concretely Concrete", _ours(c.Concrete), True, True),
    Family("torch RelaxedOneHotCategorical", _torch(RelaxedOneHotCategorical), True, True),
)


def main(out: Annotated[Path, typer.Option(help="Where to write the record.", show_default=False)] = OUT) -> None:
    """Count where this library and torch are correct."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    torch.manual_seed(SEED)
    results = [
        {"class": family.name, **counted(family)}
        for family in track(FAMILIES, description="sweep", console=console, transient=True)
    ]
    divergences = [divergence(build, t) for build in ("concretely", "torch") for t in DIVERGENCE_TEMPERATURES]
    table = Table("class", "configurations", "log density not finite", "draw refused", "gradient wrong")
    for row in results:
        table.add_row(row["class"], str(row["configurations"]), *(f"{row[k]:.1%}" if k in row else "" for k in SHARES))
    console.print(table)
    table = Table("divergence of logit 8 from 0", "temperature", "estimate", "standard error", "exact")
    for row in divergences:
        table.add_row(*(f"{row[key]:.4g}" if isinstance(row[key], float) else row[key] for key in row))
    console.print(table)
    recipe = {
        "benchmark": "exactness",
        "logits": LOGITS,
        "temperatures": TEMPERATURES,
        "categories": CATEGORIES,
        "dtypes": [str(dtype) for dtype in DTYPES],
        "draws": DRAWS,
    }
    record.write(out, recipe, seed=SEED, results={"sweep": results, "divergence": divergences})


def counted(family: Family) -> dict[str, Any]:
    """Return the shares of configurations with a wrong draw. Gradients are checked for nodes."""
    wrong = dict.fromkeys(SHARES, 0)
    total = 0
    for logits, temperature in sweep(family):
        variable = family.build(logits.requires_grad_(), temperature)
        value = variable.rsample((DRAWS,))
        finite = variable.log_prob(value).isfinite()
        total += finite[0].numel()
        wrong["log_density_not_finite"] += int((~finite).any(0).sum())
        wrong["draw_refused"] += int((~variable.support.check(value)).any(0).sum())
        if not family.is_unit:
            wrong["gradient_wrong"] += int((~right_gradient(family, logits, temperature, value)).sum())
    shares = {key: count / total for key, count in wrong.items() if not (family.is_unit and key == "gradient_wrong")}
    return {"configurations": total, **shares}


def sweep(family: Family) -> Iterator[tuple[Tensor, float]]:
    """Yield the logits and temperatures at which a class is tested."""
    for dtype in DTYPES:
        for temperature in TEMPERATURES:
            largest = torch.finfo(dtype).max * min(temperature, 1)
            held = torch.tensor([logit for logit in LOGITS if abs(logit) <= largest], dtype=dtype)
            if not family.has_categories:
                yield held, temperature
                continue
            for n in CATEGORIES:  # one logit against zeros, and all of them at random
                alone = torch.zeros(len(held), n, dtype=dtype)
                alone[:, 0] = held
                mixed = held[torch.randint(len(held), alone.shape)]
                yield torch.cat([alone, mixed]), temperature


def right_gradient(family: Family, logits: Tensor, temperature: float, value: Tensor) -> Tensor:
    """Return whether the pathwise gradient of a node is within 5 % of that of the definition at the drawn value."""
    cotangent = torch.randn_like(value)
    (gradient,) = torch.autograd.grad(value, logits, cotangent)
    weight = cotangent.double()
    if not family.has_categories:
        pull = weight
    else:
        pull = weight - value.detach().double().exp() * weight.sum(-1, keepdim=True)
    size = weight.abs().sum(-1, keepdim=True) if family.has_categories else weight.abs()
    close = (gradient.double() - pull.sum(0) / temperature).abs() <= 0.05 * size.sum(0) / temperature
    return close.all(-1) if family.has_categories else close


def divergence(library: str, temperature: float) -> dict[str, Any]:
    """Estimate the KL divergence of a relaxed Bernoulli variable of logit 8 from one of logit 0 from its own draws."""
    if library == "concretely":
        p, q = (c.BinaryConcrete(logits=torch.full((1000,), logit), temperature=temperature) for logit in (8.0, 0.0))
        ratio = c.monte_carlo_kl(p, q, samples=1000).double()
    else:
        p, q = (_torch(RelaxedBernoulli)(torch.full((1000,), logit), temperature) for logit in (8.0, 0.0))
        value = p.sample((1000,))
        ratio = (p.log_prob(value) - q.log_prob(value)).double().mean(0)
    return {
        "library": library,
        "temperature": temperature,
        "estimate": ratio.mean().item(),
        "standard_error": ratio.std().item() / math.sqrt(len(ratio)),
        "exact": 8 / math.tanh(4) - 2,
    }


if __name__ == "__main__":
    typer.run(main)
