"""A model whose rank 1 kills its process in a step, once."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import concretely as c


class Posterior(nn.Module):
    """Bits from pictures, until the end of a rank."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.encoder, self.calls, self.mark = nn.Linear(64, 6), 0, Path(mark)

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        self.calls += self.training
        if self.calls == 6 and os.environ.get("RANK") == "1" and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        draw("h", c.Bernoulli(logits=self.encoder(x)))


class Prior(nn.Module):
    """Pictures from bits."""

    def __init__(self) -> None:
        super().__init__()
        self.logits, self.decoder = nn.Parameter(torch.zeros(6)), nn.Linear(6, 64)

    def forward(self, draw: c.Draw, x: Tensor | None = None) -> Tensor:
        h = draw("h", c.Bernoulli(logits=self.logits))
        return draw("x", c.Bernoulli(logits=self.decoder(h)), observed=x)


def main(out: str) -> None:
    """Train by `fit`."""
    torch.manual_seed(0)
    x = (torch.rand(200, 64) < 0.3).float()
    run = c.fit(build("died"), x, batch=20, steps=10, lr=0.01, out=out, checkpoint_seconds=0.0)
    os.write(1, f"{run.step}\n".encode())  # at once, since ranks share the stream


def build(mark: str) -> c.Model:
    """A small model of digits. `mark` is a file that says that the rank was killed before."""
    return c.Model(Prior(), Posterior(mark))


if __name__ == "__main__":
    main(sys.argv[1])
