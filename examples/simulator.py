"""A black-box cost: a simulator in NumPy prices the reorder levels of a shop, and `c.RLOO` learns which to choose.

The simulator returns numbers without gradients. Every row of the batch draws its own levels. There are 1,296 choices,
so the best is known by trying all. Run it with `python examples/simulator.py`.
"""

import itertools

import numpy as np
import torch
from torch import Tensor, nn

import concretely as c

PRODUCTS, LEVELS, DAYS = 4, 6, 30


def simulate(level: np.ndarray, seed: int) -> np.ndarray:
    """Return the cost a day of reorder levels (rows, products): goods in stock, missed sales and a crowded store."""
    random = np.random.default_rng(seed)
    mean = np.array([1.0, 2.0, 3.0, 4.0])
    stock, cost = level.astype(float), np.zeros(len(level))
    for _ in range(DAYS):
        demand = random.poisson(mean, (len(level), PRODUCTS))
        missed = np.maximum(demand - stock, 0)
        left = np.maximum(stock - demand, 0)
        cost += (5 * missed + left).sum(-1) + 2 * np.maximum(stock.sum(-1) - 12, 0)
        stock = np.where(left < level / 2, level, left)  # a new delivery when half is gone
    return cost / DAYS


class Policy(nn.Module):
    """A distribution over reorder levels, and what a draw costs."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(PRODUCTS, LEVELS))

    def forward(self, draw: c.Draw, seed: Tensor) -> Tensor:
        level = draw("level", c.OneHotCategorical(logits=self.logits.expand(len(seed), -1, -1)))
        cost = simulate(level.argmax(-1).cpu().numpy(), seed=int(seed[0]))
        return torch.from_numpy(cost).to(self.logits)


def main(steps: int = 800) -> dict[str, float]:
    torch.manual_seed(0)
    seeds = torch.arange(10_000)
    run = c.fit(Policy, seeds, estimator=c.RLOO(), samples=8, steps=steps, batch=16, lr=0.05)
    choices = np.array(list(itertools.product(range(LEVELS), repeat=PRODUCTS)))
    costs = np.mean([simulate(choices, seed) for seed in range(50_000, 50_020)], axis=0)
    log_probs = run.model.logits.detach().log_softmax(-1)
    probs = sum(log_probs[k, choices[:, k]] for k in range(PRODUCTS)).exp().numpy()
    found = {
        "random levels": float(costs.mean()),
        "learned policy": float(probs @ costs),
        "most likely levels": float(costs[probs.argmax()]),
        "best of 1,296": float(costs.min()),
    }
    for name, cost in found.items():
        print(f"{name}: {cost:.2f} a day")
    return found


if __name__ == "__main__":
    main()
