"""Feature selection with hard gates: `c.gumbel_sigmoid` multiplies every feature by exactly 0 or 1.

The loss adds a price for each gate that is open on average. Run it with `python examples/gates.py`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import concretely as c

FEATURES, USEFUL, PRICE = 40, 5, 0.01


class Selector(nn.Module):
    """A classifier behind one gate for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.full((FEATURES,), 2.0))
        self.network = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.logits.expand(x.shape)  # every row draws its own gates
        gates = c.gumbel_sigmoid(logits, tau=0.5, hard=True) if self.training else (logits > 0).to(x.dtype)
        return self.network(gates * x)

    @property
    def open(self) -> Tensor:
        """The expected number of open gates."""
        return self.logits.sigmoid().sum()


def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return rows and labels, which depend on the first features alone."""
    x = torch.randn(size, FEATURES, generator=generator)
    return x, (x[:, :USEFUL].sum(-1) + x[:, 0] * x[:, 1] > 0).long()


def main(steps: int = 3000) -> dict[str, float]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Selector()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        x, y = batch(128, generator)
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + PRICE * model.open).backward()
        optimizer.step()
    x, y = batch(10_000, generator)
    chosen = model.logits > 0
    with torch.no_grad():
        found = {
            "useful features kept": chosen[:USEFUL].sum().item(),
            "useless features kept": chosen[USEFUL:].sum().item(),
            "accuracy": (model.eval()(x).argmax(-1) == y).double().mean().item(),
        }
    print(f"kept {found['useful features kept']} of {USEFUL} useful features", end=" ")
    print(f"and {found['useless features kept']} of {FEATURES - USEFUL} others; accuracy {found['accuracy']:.3f}")
    return found


if __name__ == "__main__":
    main()
