"""A learned temperature: an estimator of one's own whose temperature is a parameter, trained by `fit` with the model.

The model reads one of eight slots of a memory. Relaxed reads mix slots, so the relaxed cost is lower at a low
temperature, and the gap between the relaxed and the discrete cost closes. Run it with `python examples/temperature.py`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import concretely as c

SLOTS, KEY, VALUE = 8, 6, 3


class LearnedTemperature(nn.Module):
    """Pathwise gradients at a temperature that is learned."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(start).log())

    def forward(self, target: Any, *inputs: Any, **how: Any) -> c.Estimate:
        return c.Pathwise(self.log_temperature.exp())(target, *inputs, **how)


class Memory(nn.Module):
    """Reads the slot whose key is like the query, and pays for the squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query = nn.Linear(KEY, 16), nn.Linear(KEY, 16)

    def forward(self, draw: c.Draw, keys: Tensor, values: Tensor, query: Tensor, wanted: Tensor) -> Tensor:
        likeness = F.cosine_similarity(self.key(keys), self.query(query).unsqueeze(1), dim=-1)
        slot = draw("slot", c.OneHotCategorical(logits=8 * likeness))
        read = (slot.unsqueeze(-1) * c.tile(values, slot)).sum(1)
        return (read - c.tile(wanted, slot)).square().sum(-1)


def memories(size: int, seed: int) -> tuple[Tensor, ...]:
    """Return keys, values, noisy queries, and the values that they ask for."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(size, SLOTS, width, generator=generator) for width in (KEY, VALUE))
    rows, slot = torch.arange(size), torch.randint(SLOTS, (size,), generator=generator)
    query = keys[rows, slot] + 0.2 * torch.randn(size, KEY, generator=generator)
    return keys, values, query, values[rows, slot]


def main(steps: int = 1500) -> dict[str, float]:
    torch.manual_seed(0)
    train, test, found = memories(5000, 0), memories(2000, 1), {}
    learned = LearnedTemperature(start=4.0)
    for name, estimator in {"fixed at 4": c.Pathwise(4.0), "learned": learned}.items():
        run = c.fit(Memory, train, estimator=estimator, steps=steps, lr=1e-2)
        with torch.no_grad():
            found[f"{name}, relaxed cost"] = c.estimate(run.model, *test, estimator=estimator, samples=10).loss.item()
            found[f"{name}, discrete cost"] = c.estimate(run.model, *test, estimator=c.RLOO(), samples=10).loss.item()
    found["learned temperature"] = learned.log_temperature.exp().item()
    for name, value in found.items():
        print(f"{name}: {value:.3f}")
    return found


if __name__ == "__main__":
    main()
