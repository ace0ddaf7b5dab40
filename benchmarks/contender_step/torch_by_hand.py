"""Plain PyTorch with torch.distributions."""

import torch
from torch import Tensor
from torch.distributions import Bernoulli
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli

from ..training import PRIOR_TEMPERATURE, TEMPERATURE, Training
from . import eager
from .base import Contender
from .network import Network, bound, vimco


def concrete(network: Network, x: Tensor, samples: int) -> Tensor:
    """Return the loss of one relaxed layer, scored before the sigmoid."""
    q = LogitRelaxedBernoulli(torch.tensor(TEMPERATURE), logits=network.encoder[0](2 * x - 1), validate_args=False)
    p = LogitRelaxedBernoulli(torch.tensor(PRIOR_TEMPERATURE), logits=network.top, validate_args=False)
    y = q.rsample((samples,))
    log_x = Bernoulli(logits=network.decoder[0](2 * y.sigmoid() - 1), validate_args=False).log_prob(x)
    return -bound((p.log_prob(y) - q.log_prob(y)).sum(-1) + log_x.sum(-1)).mean()


def discrete(network: Network, x: Tensor, samples: int) -> Tensor:
    """Return the loss of two discrete layers, by VIMCO."""
    q1 = Bernoulli(logits=network.encoder[0](2 * x - 1), validate_args=False)
    b1 = q1.sample((samples,))
    h1 = 2 * b1 - 1
    q2 = Bernoulli(logits=network.encoder[1](network.centred(h1)), validate_args=False)
    b2 = q2.sample()
    p2 = Bernoulli(logits=network.top, validate_args=False)
    p1 = Bernoulli(logits=network.decoder[0](2 * b2 - 1), validate_args=False)
    px = Bernoulli(logits=network.decoder[1](h1), validate_args=False)
    log_q = (q1.log_prob(b1) + q2.log_prob(b2)).sum(-1)
    log_p = (p1.log_prob(b1) + p2.log_prob(b2)).sum(-1) + px.log_prob(x).sum(-1)
    return -vimco(log_p - log_q, log_q).mean()


def contenders(task: Training) -> list[Contender]:
    """Return the contender for the method of the task."""
    network = Network(task)
    loss = concrete if task.method == "concrete" else discrete
    name = "torch by hand, torch.distributions"
    return [eager.contender(name, network, lambda x: loss(network, x, task.samples), task=task)]
