"""Small models, programs and data of a user, to call `fit` with."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn.functional import cross_entropy, softplus

import concretely as c
from concretely.training import checkpoint
from concretely.training.callback import Callbacks


def bits(points: int = 60, width: int = 6) -> Tensor:
    """Points of bits, some of which are often the same."""
    free = torch.rand(points, width, generator=torch.Generator().manual_seed(5)) < 0.4
    return torch.where(free[:, :1], free, ~free).float()


def write(path: Path, **arrays: Any) -> str:
    """Write arrays to a file, and return its path."""
    np.savez(path, **arrays)
    return str(path)


class Prior(nn.Module):
    """Two 4-way codes from learned logits, then bits from the codes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2, 4))
        self.decoder = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 6))

    def forward(self, draw: c.Draw, x: Tensor | None = None) -> Tensor:
        code = draw("code", c.OneHotCategorical(logits=self.logits))
        return draw("x", c.Bernoulli(logits=self.decoder(code.flatten(1))), observed=x)


class Posterior(nn.Module):
    """Codes from bits, with layers that have buffers and draw from torch's generator."""

    def __init__(self, width: int = 8, *, norm: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        between = [nn.BatchNorm1d(width)] * norm + [nn.Dropout(drop)] * bool(drop)
        self.encoder = nn.Sequential(nn.Linear(6, width), *between, nn.Tanh(), nn.Linear(width, 8))

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        draw("code", c.OneHotCategorical(logits=self.encoder(x).unflatten(-1, (2, 4))))


def build(width: int = 8, norm: bool = False, drop: float = 0.0) -> c.Model:
    """A small variational autoencoder."""
    return c.Model(Prior(width), Posterior(width, norm=norm, drop=drop))


def build_restless() -> c.Model:
    """The same with batch norm and dropout."""
    return build(norm=True, drop=0.3)


class Gate(nn.Module):
    """A program: a hard choice between two linear maps, with a cost for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.maps = nn.Linear(6, 2), nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, draw: c.Draw, x: Tensor, y: Tensor) -> Tensor:
        choice = draw("gate", c.OneHotCategorical(logits=self.gate(x)))
        outputs = c.tile(torch.stack([each(x) for each in self.maps], 1), choice)
        logits = (choice.unsqueeze(-1) * outputs).sum(1)
        return cross_entropy(logits, c.tile(y, choice), reduction="none")


class Steps(nn.Module):
    """A program that draws a node for each column of its input, whatever their number."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(1, 3)

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        names = [(f"z{place}", x[:, place, None]) for place in range(x.shape[1])]
        return torch.stack(
            [draw(name, c.OneHotCategorical(logits=self.score(part)))[:, 0] for name, part in names]
        ).sum(0)


def build_mixed() -> c.Model:
    """A model with a normal and a discrete latent."""
    encoder, decoder = nn.Linear(6, 6), nn.Linear(4, 6)

    def p(draw: c.Draw, x: Tensor | None = None) -> Tensor:
        z = draw("z", Independent(Normal(torch.zeros(2), 1.0), 1))
        b = draw("b", c.Bernoulli(logits=torch.zeros(2)))
        return draw("x", c.Bernoulli(logits=decoder(torch.cat([z, b], -1))), observed=x)

    def q(draw: c.Draw, x: Tensor) -> None:
        mean, spread, logits = encoder(x).chunk(3, -1)
        draw("z", Independent(Normal(mean, softplus(spread) + 0.1), 1))
        draw("b", c.Bernoulli(logits=logits))

    return c.Model(p, q)


def fitted(model: Any = build, data: Any = None, **given: Any) -> Any:
    """Call `fit` with few, large steps."""
    given = {"estimator": c.Pathwise(0.7), "steps": 30, "batch": 10, "lr": 0.01, "seed": 3} | given
    return c.fit(model, bits() if data is None else data, **given)


def said(model: Any, data: Any = None, **given: Any) -> list[str]:
    """What is said during a run."""
    found = list[str]()
    fitted(model, data, callbacks=Callbacks(note=found.append), **given)
    return found


def stopping(after: int) -> Callbacks:
    """Callbacks that interrupt training after some steps, as Ctrl-C does."""

    def step(taken: int) -> None:
        if taken == after:
            os.kill(os.getpid(), signal.SIGINT)

    return Callbacks(step=step, note=lambda sentence: None)


def saved(folder: Path) -> dict[str, Tensor]:
    """All tensors of the last checkpoint of a folder."""
    last = checkpoint.latest(folder)
    assert last is not None
    return last.tensors


def exported(folder: Path) -> dict[str, Tensor]:
    """The exported parameters of a folder."""
    return load_file(folder / "model.safetensors")
