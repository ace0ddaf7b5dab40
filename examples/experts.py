"""A mixture of experts in a plain module: a gate sends each row to one expert, and `c.gumbel_softmax` trains the gate.

No part of the module or of its training loop knows about this library, but for one line. Run it with
`python examples/experts.py`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import concretely as c

EXPERTS, WIDTH = 4, 6


class Mixture(nn.Module):
    """One of several linear experts for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, EXPERTS))
        self.experts = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.gate(x)
        if self.training:
            choice = c.gumbel_softmax(logits, tau=1.0, hard=True)
        else:
            choice = F.one_hot(logits.argmax(-1), EXPERTS).to(x.dtype)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return (choice.unsqueeze(-1) * outputs).sum(1).squeeze(-1)


def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return rows and targets: the signs of the first two entries decide which linear map makes the target."""
    x = torch.randn(size, WIDTH, generator=generator)
    maps = torch.randn(EXPERTS, WIDTH, generator=torch.Generator().manual_seed(1))
    return x, (maps[2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long()] * x).sum(-1)


def main(steps: int = 3000) -> dict[str, float]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Mixture()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x, y = batch(128, generator)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    x, y = batch(10_000, generator)
    one = torch.linalg.lstsq(x, y.unsqueeze(-1)).solution.squeeze(-1)
    with torch.no_grad():
        found = {
            "one linear map": F.mse_loss(x @ one, y).item(),
            "mixture of experts": F.mse_loss(model.eval()(x), y).item(),
        }
    for name, error in found.items():
        print(f"{name}: mean squared error {error:.3f}")
    return found


if __name__ == "__main__":
    main()
