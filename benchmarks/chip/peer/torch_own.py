"""The training step of a user's own model by hand in PyTorch: eager, or with its loss compiled.

Batches are drawn from the data on the device, with replacement. The update is torch's Adam, fused on a GPU. The loss is
written either with formulas of its own, or with the classes of torch.distributions.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.distributions.relaxed_categorical import ExpRelaxedCategorical
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from ...training import BETAS, EPSILON, LEARNING_RATE, PRIOR_TEMPERATURE, TEMPERATURE
from .. import turn
from ..turn import Contender
from .own_model import CATEGORIES, Network, OwnCase, seeded

EAGER_TIMES = 32
"""How many steps a turn has where each takes a millisecond."""


def loss(network: Network, x: Tensor, samples: int) -> Tensor:
    """Minus the multi-sample bound of the relaxed graph, in log space."""
    logits = network.encoder(2 * x - 1)
    logits = logits.expand(samples, *logits.shape)
    if logits.dim() == 3:
        log_w, z = _binary(logits, network.logits)
    else:
        log_w, z = _categorical(logits, network.logits)
    made = network.decoder(z.flatten(0, 1)).unflatten(0, z.shape[:2])
    log_x = -binary_cross_entropy_with_logits(made, x.expand_as(made), reduction="none").flatten(2).sum(-1)
    return -((log_w + log_x).logsumexp(0) - math.log(samples)).mean()


def _binary(logits: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    uniform = torch.rand_like(logits).clamp(min=1e-7, max=1 - 1e-7)
    noise = uniform.log() - (-uniform).log1p()
    y = (logits + noise) / TEMPERATURE
    log_q = _logistic(noise) + math.log(TEMPERATURE)
    log_p = _logistic(PRIOR_TEMPERATURE * y - prior) + math.log(PRIOR_TEMPERATURE)
    return (log_p - log_q).sum(-1), y.sigmoid()


def _categorical(logits: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    noise = -torch.empty_like(logits).exponential_().log()
    y = ((logits + noise) / TEMPERATURE).log_softmax(-1)
    log_w = _concrete(y, prior, PRIOR_TEMPERATURE) - _concrete(y, logits, TEMPERATURE)
    return log_w.sum(-1), y.exp()


def _logistic(noise: Tensor) -> Tensor:
    return -noise.abs() - 2 * softplus(-noise.abs())


def _concrete(y: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """The log density of an ExpConcrete variable."""
    scale = math.lgamma(CATEGORIES) + (CATEGORIES - 1) * math.log(temperature)
    score = logits - temperature * y
    return scale + score.sum(-1) - CATEGORIES * score.logsumexp(-1)


def loss_by_distributions(network: Network, x: Tensor, samples: int) -> Tensor:
    """`loss` by the classes of torch.distributions in log space, as a user writes it."""
    temperature, prior_temperature = x.new_tensor([TEMPERATURE, PRIOR_TEMPERATURE])
    logits = network.encoder(2 * x - 1)
    is_binary = logits.dim() == 2
    kind: Any = LogitRelaxedBernoulli if is_binary else ExpRelaxedCategorical
    q, p = kind(temperature, logits=logits), kind(prior_temperature, logits=network.logits)
    node = q.rsample((samples,))
    z = node.sigmoid() if is_binary else node.exp()
    log_w = (p.log_prob(node) - q.log_prob(node)).sum(-1)
    made = network.decoder(z.flatten(0, 1)).unflatten(0, z.shape[:2])
    log_x = Bernoulli(logits=made).log_prob(x).flatten(2).sum(-1)
    return -((log_w + log_x).logsumexp(0) - math.log(samples)).mean()


def trainer(
    case: OwnCase, data: Tensor, device: torch.device, *, compiled: bool = False, loss: Any = loss
) -> Callable[[], Tensor]:
    """Return a function that takes a step of a case and returns its bound."""
    network = seeded(case, 0).to(device)
    fused = device.type == "cuda"
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, fused=fused)
    data = data.to(device)
    called: Any = torch.compile(loss, mode="reduce-overhead", dynamic=False) if compiled else loss

    def step() -> Tensor:
        x = data[torch.randint(len(data), (case.batch,), device=device)]
        optimizer.zero_grad(set_to_none=True)
        value: Tensor = called(network, x, case.samples)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return -value.detach()

    return step


def contender(name: str, case: OwnCase, data: Tensor, device: torch.device, *, times: int, compiled: bool) -> Contender:
    """The step of a case."""
    take, total, taken = trainer(case, data, device, compiled=compiled), torch.zeros((), device=device), [0]

    def step() -> None:
        total.add_(take())
        taken[0] += 1

    own = min(times, EAGER_TIMES)

    def bound() -> float:
        while taken[0] < times:  # bounds grow from step to step: of as many as the others
            step()
        return total.item() / taken[0]

    return Contender(name, turn.repeated(step, own, device), times=own, bound=bound)
