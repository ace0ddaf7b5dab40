"""Models of a user's own, as modules that all torch contenders share, and as programs of this library."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import concretely as c

Kind = Literal["convolution", "mlp"]


@dataclass(frozen=True)
class OwnCase:
    """A model, its number of samples, and its sizes: the side of an image, the channels or units, and the batch."""

    kind: Kind
    samples: int
    side: int = 28
    units: int = 32
    channels: int = 32
    batch: int = 64

    @property
    def title(self) -> str:
        """The case in a line."""
        what = f"convolutional VAE of {self.units} 8-way units" if self.kind == "convolution" else "MLP"
        size = f"{self.side**2}-{self.units}-{self.side**2}" if self.kind == "mlp" else f"{self.side} × {self.side}"
        return f"own {what}, {size}, batch {self.batch}, m = {self.samples}"

    @property
    def described(self) -> dict[str, Any]:
        """What a record says of the case."""
        return {name: getattr(self, name) for name in ("kind", "samples", "side", "units", "channels", "batch")}


CATEGORIES = 8


class Network(nn.Module):
    """The encoder, the decoder and the logits of the prior."""

    def __init__(self, case: OwnCase) -> None:
        super().__init__()
        pixels, channels, quarter = case.side**2, case.channels, case.side // 4
        if case.kind == "mlp":
            self.logits = nn.Parameter(torch.zeros(case.units))
            self.encoder: nn.Module = nn.Linear(pixels, case.units)
            self.decoder: nn.Module = nn.Linear(case.units, pixels)
            return
        self.logits = nn.Parameter(torch.zeros(case.units, CATEGORIES))
        self.encoder = nn.Sequential(
            nn.Conv2d(1, channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * channels * quarter**2, case.units * CATEGORIES),
            nn.Unflatten(1, (case.units, CATEGORIES)),
        )
        self.decoder = nn.Sequential(
            nn.Flatten(),
            nn.Linear(case.units * CATEGORIES, 2 * channels * quarter**2),
            nn.ReLU(),
            nn.Unflatten(1, (2 * channels, quarter, quarter)),
            nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, 1, 4, stride=2, padding=1),
        )


def images(case: OwnCase, points: int, seed: int) -> Tensor:
    """Bits of which about 13 in 100 are set, as flat points or as images."""
    generator = torch.Generator().manual_seed(seed)
    rates = torch.rand(case.side**2, generator=generator) ** 4
    bits = (torch.rand(points, case.side**2, generator=generator) < rates).float()
    return bits if case.kind == "mlp" else bits.view(-1, 1, case.side, case.side)


class Generative(nn.Module):
    """The program p."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, draw: c.Draw, x: Tensor | None = None) -> Tensor:
        """Draw the latents, and score the image."""
        logits = self.network.logits
        law = c.Bernoulli(logits=logits) if logits.dim() == 1 else c.OneHotCategorical(logits=logits)
        return draw("x", c.Bernoulli(logits=self.network.decoder(draw("z", law))), observed=x)


class Inference(nn.Module):
    """The program q."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        """Draw the latents given an image."""
        logits = self.network.encoder(2 * x - 1)
        draw("z", c.Bernoulli(logits=logits) if logits.dim() == 2 else c.OneHotCategorical(logits=logits))


def build(case: OwnCase, seed: int) -> c.Model:
    """A model of this library. All with one seed start from the same weights."""
    network = seeded(case, seed)
    return c.Model(Generative(network), Inference(network))


def seeded(case: OwnCase, seed: int) -> Network:
    """The networks with the weights of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return Network(case)
