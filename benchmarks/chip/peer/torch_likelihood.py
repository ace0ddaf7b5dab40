"""The multi-sample bound of data under a model with discrete latents, as a plain loop in PyTorch."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from concretely.model import Model

PAIRS = 50_000
"""The number of pairs of a sample and a data point that run at once."""

AT_ONCE = 500
"""The number of samples of a data point that run at once."""


@torch.no_grad()
def log_likelihood(model: Model, bits: Tensor, *, samples: int) -> Tensor:
    """Return the logarithm of the mean weight of every data point, in float64.

    The layers next to the data are the same for all samples, and are run once.
    """
    up, down = _links(model)
    top, at_once, bounds = model.p.top.logits.squeeze(-1), min(AT_ONCE, samples), []
    for part in bits.float().split(max(1, PAIRS // at_once)):
        logits, total = up[0](2 * part - 1), torch.full((len(part),), -math.inf, dtype=torch.float64).to(bits.device)
        for done in range(0, samples, at_once):
            log_w = _log_weights(logits, part, up[1:], down, top, min(at_once, samples - done))
            total = torch.logaddexp(total, log_w.double().logsumexp(0))
        bounds.append(total - math.log(samples))
    return torch.cat(bounds)


def _log_weights(
    logits: Tensor, x: Tensor, up: list[nn.Module], down: list[nn.Module], top: Tensor, samples: int
) -> Tensor:
    """Return the log-weights of some samples."""
    states, log_q = [], torch.zeros((), device=x.device)
    for link in (*up, None):
        shape = (samples, *logits.shape) if not states else logits.shape
        states.append(2 * (torch.rand(shape, device=x.device) < logits.sigmoid()).float() - 1)
        log_q = log_q + logsigmoid(states[-1] * logits).sum(-1)
        logits = logits if link is None else link(states[-1])
    log_p = logsigmoid(states[-1] * top).sum(-1)
    targets = [*reversed(states[:-1]), 2 * x - 1]
    for state, target, link in zip(reversed(states), targets, down, strict=True):
        log_p = log_p + logsigmoid(target * link(state)).sum(-1)
    return log_p - log_q


def _links(model: Model) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return plain networks with the weights of a model: the inference network and the generative network."""
    up = [layer.network for layer in model.q.layers]
    down = [*(layer.network for layer in model.p.layers), model.p.visible.network]
    plain = [[nn.Sequential(*network) for network in networks] for networks in (up, down)]
    return plain[0], plain[1]
