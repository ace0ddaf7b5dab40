"""The layers of the model in PyTorch, and the losses of its log-weights."""

import itertools
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..training import RATE, WIDTH, Affine, Link, Training


class Network(nn.Module):
    """The deterministic part of a model, which maps the states of one layer to the logits of the next."""

    average: Tensor

    def __init__(self, task: Training) -> None:
        super().__init__()
        top, encoder, decoder = task.weights
        self.top = nn.Parameter(torch.from_numpy(top))
        self.encoder = nn.ModuleList(map(sequential, encoder))
        self.decoder = nn.ModuleList(map(sequential, decoder))
        self.register_buffer("average", torch.zeros(WIDTH))

    def centred(self, states: Tensor) -> Tensor:
        """Return states minus their running average, and update the average."""
        centred = states - self.average
        self.average.lerp_(states.mean((0, 1)), 1 - RATE)
        return centred


def sequential(link: Link) -> nn.Sequential:
    """Return a link as a module, with its weights."""
    layers = [nn.Linear(*reversed(matrix.shape)) for matrix, _ in link]
    fill(layers, link)
    return nn.Sequential(*itertools.chain.from_iterable((layer, nn.Tanh()) for layer in layers))[:-1]


@torch.no_grad()
def fill(layers: Iterable[nn.Module], affines: Iterable[Affine]) -> None:
    """Set the weights of layers."""
    for layer, weights in zip(layers, affines, strict=True):
        for parameter, array in zip((layer.weight, layer.bias), weights, strict=True):
            parameter.copy_(torch.from_numpy(array))


def bound(log_w: Tensor) -> Tensor:
    """Return the bound of many samples, for every data point."""
    return log_w.logsumexp(0) - math.log(len(log_w))


def vimco(log_w: Tensor, log_q: Tensor) -> Tensor:
    """Return the bound, with the gradient of its draws by VIMCO with the geometric mean."""
    with torch.no_grad():
        others = (log_w.sum(0) - log_w) / (len(log_w) - 1)
        alone = torch.eye(len(log_w), dtype=torch.bool).unsqueeze(-1)
        signal = bound(log_w) - bound(torch.where(alone, others, log_w.unsqueeze(1)))
    score = (signal * log_q).sum(0)
    return bound(log_w) + score - score.detach()
