"""This library's variables in a function written by hand, without graph, model and estimator."""

import torch
from torch import Tensor

import concretely as c

from ..training import PRIOR_TEMPERATURE, TEMPERATURE, Training
from . import eager
from .base import Contender
from .network import Network, bound, vimco


def concrete(network: Network, x: Tensor, samples: int) -> Tensor:
    """Return the loss of one relaxed layer."""
    q, p = unit(network.encoder[0](2 * x - 1)).relax(TEMPERATURE), unit(network.top).relax(PRIOR_TEMPERATURE)
    node, log_q = q.node.rsample_and_log_prob((samples,))
    log_p, h = p.node.log_prob(node), torch.tanh(node / 2)
    log_x = c.Bernoulli(logits=network.decoder[0](h), validate_args=False).log_prob(x)
    return -bound((log_p - log_q).sum(-1) + log_x.sum(-1)).mean()


def discrete(network: Network, x: Tensor, samples: int) -> Tensor:
    """Return the loss of two discrete layers, by VIMCO."""
    h1, log_q1 = unit(network.encoder[0](2 * x - 1)).sample_and_log_prob((samples,))
    h2, log_q2 = unit(network.encoder[1](network.centred(h1.squeeze(-1)))).sample_and_log_prob()
    log_p2 = unit(network.top).log_prob(h2)
    log_p1 = unit(network.decoder[0](h2.squeeze(-1))).log_prob(h1)
    log_x = c.Bernoulli(logits=network.decoder[1](h1.squeeze(-1)), validate_args=False).log_prob(x)
    log_q = (log_q1 + log_q2).sum(-1)
    return -vimco((log_p1 + log_p2).sum(-1) + log_x.sum(-1) - log_q, log_q).mean()


def unit(logits: Tensor) -> c.Hypercube:
    """Return binary units on -1 and 1."""
    return c.Hypercube(logits=logits.unsqueeze(-1), validate_args=False)


def contenders(task: Training) -> list[Contender]:
    """Return the contender for the method of the task."""
    network = Network(task)
    loss = concrete if task.method == "concrete" else discrete
    name = "concretely variables, no graph"

    def estimate(x: Tensor) -> Tensor:
        return loss(network, x, task.samples)

    return [
        eager.contender(name, network, estimate, task=task, ours=True),
        eager.contender(f"{name}, compiled", network, torch.compile(estimate, fullgraph=True), task=task, ours=True),
    ]
