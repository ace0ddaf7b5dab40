"""Which temperature, and which KL, suit a latent variable of n states: small models of digits, trained side by side.

A model has about 30 bits of latents between networks of one hidden layer. Models that differ in temperature and seed
are trained as one program. Each is scored by its discrete graph on the validation set; the test set is not used.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

import concretely as c
from concretely.data import Dataset
from concretely.objective import log_weights
from concretely.temperature import PAPER, PAPER_PRIOR

from . import record

RECORD = Path(__file__).parent / "records" / "temperature.json"
UNITS = {2: 30, 4: 15, 8: 10, 16: 8, 64: 5}
"""The number of latent variables by their number of states."""
TEMPERATURES = (1.0, 2 / 3, 1 / 2, 1 / 3)
STEPS, BATCH, RATE, HIDDEN, SCORED = 3_000, 64, 3e-3, 128, 200
SEEDS = 3


class Affine(nn.Module):
    """A linear layer for each member, with the initial values of torch."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        edge = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-edge, edge))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-edge, edge))

    def forward(self, x: Tensor) -> Tensor:
        repeats = len(x) // len(self.weight)  # scoring draws several samples of each member
        return torch.baddbmm(self.bias.repeat(repeats, 1, 1), x, self.weight.repeat(repeats, 1, 1))


def build(members: int, states: int, pixels: int) -> c.Model:
    """Return members with latents of a number of states as one model of inputs (members, batch, pixels)."""
    units = UNITS[states]
    width = units if states == 2 else units * states
    encoder = nn.Sequential(Affine(members, pixels, HIDDEN), nn.ReLU(), Affine(members, HIDDEN, width))
    decoder = nn.Sequential(Affine(members, width, HIDDEN), nn.ReLU(), Affine(members, HIDDEN, pixels))
    prior = nn.Parameter(torch.zeros(members, 1, width))

    def node(logits: Tensor) -> Distribution:
        if states == 2:
            return c.Bernoulli(logits=logits)
        return c.OneHotCategorical(logits=logits.unflatten(-1, (units, states)))

    def p(draw: c.Draw, x: Tensor) -> None:
        z = draw("z", node(prior.expand(-1, x.shape[1], -1)))
        draw("x", c.Bernoulli(logits=decoder(z if states == 2 else z.flatten(-2))), observed=x)

    def q(draw: c.Draw, x: Tensor) -> None:
        draw("z", node(encoder(2 * x - 1)))

    return c.Model(p, q)


def train(data: Dataset, states: int, kl: str, pairs: Sequence[tuple[float, float]], *, steps: int) -> list[Any]:
    """Train a model for each pair of temperatures and each seed; return their scores at a third and at the end.

    With `kl="warm-up"`, the KL between densities has a weight that rises linearly to 1 within a third of the steps.
    """
    torch.manual_seed(0)
    members = len(pairs) * SEEDS
    x, valid = data.train[:].float(), data.valid[:].float()
    model = build(members, states, x.shape[1])
    temperature, prior = (
        torch.tensor(pair).repeat_interleave(SEEDS).view(-1, 1, 1) for pair in zip(*pairs, strict=True)
    )
    estimator = c.Pathwise(temperature, prior, kl="density" if kl == "warm-up" else kl)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    scores = []
    for step in range(1, steps + 1):
        batch = x[torch.randint(len(x), (members, BATCH))]
        if kl == "warm-up":
            mode, prior_mode = c.mode.Relaxed(temperature), c.mode.Relaxed(prior)
            terms = log_weights(model, batch, mode=mode, prior_mode=prior_mode, samples=1, batch_dims=2)
            weight = min(1.0, step / (steps // 3))
            loss = -(terms.log_p["x"] + weight * (terms.log_p["z"] - terms.log_q["z"])).mean()
        else:
            loss = c.estimate(model, batch, estimator=estimator, batch_dims=2).loss
        optimizer.zero_grad()
        (members * loss).backward()
        optimizer.step()
        if step in (steps // 3, steps):
            scores.append(score(model, valid.expand(members, -1, -1)))
    return [
        {
            "temperature": pair[0],
            "prior_temperature": None if kl == "analytic" else pair[1],
            **{name: [score[name][i * SEEDS : (i + 1) * SEEDS] for score in scores] for name in ("nll", "discrete_kl")},
        }
        for i, pair in enumerate(pairs)
    ]


@torch.no_grad()
def score(model: c.Model, x: Tensor) -> dict[str, list[float]]:
    """Return the NLL and the KL of the discrete graph of each member."""
    parts = [c.estimate(model, x, estimator=c.Reinforce(), samples=20, batch_dims=2) for _ in range(SCORED // 20)]
    nll = -c.bound(torch.cat([part.log_w for part in parts])).mean(-1)
    kl = torch.stack([part.kl["z"] for part in parts]).mean((0, 2))
    return {
        "nll": [round(value, 3) for value in nll.tolist()],
        "discrete_kl": [round(value, 3) for value in kl.tolist()],
    }


def measure(states: int, *, steps: int = STEPS) -> dict[str, Any]:
    """Return the results for a number of states."""
    data, started = c.load_data("digits"), time.perf_counter()
    treatments = {
        "analytic": [(temperature, temperature) for temperature in TEMPERATURES],
        "density": [(PAPER(states), PAPER_PRIOR(states))],
        "warm-up": [(PAPER(states), PAPER_PRIOR(states))],
    }
    rows = [
        {"kl": kl, **row} for kl, pairs in treatments.items() for row in train(data, states, kl, pairs, steps=steps)
    ]
    for row in rows:
        print(states, row, flush=True)
    seconds = round(time.perf_counter() - started)
    return {"states": states, "units": UNITS[states], "rows": rows, "seconds": seconds}


def main() -> None:
    """Measure, and write the record. Results of other numbers of states stay in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, nargs="+", choices=UNITS, default=list(UNITS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--record", type=Path, default=RECORD)
    wished = parser.parse_args()
    torch.distributions.Distribution.set_default_validate_args(False)
    recipe = {"data": "digits", "split": "valid", "steps": wished.steps, "batch": BATCH, "lr": RATE}
    recipe |= {"hidden": HIDDEN, "score_samples": SCORED, "seeds": SEEDS}
    for states in wished.states:
        old = json.loads(wished.record.read_text(encoding="utf-8")) if wished.record.exists() else {}
        kept = [row for row in old.get("results", []) if row["states"] != states and old["recipe"] == recipe]
        results = sorted([*kept, measure(states, steps=wished.steps)], key=lambda row: row["states"])
        record.write(wished.record, recipe, seed=0, results=results)


if __name__ == "__main__":
    main()
