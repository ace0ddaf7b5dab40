"""Plain PyTorch: a loss mapped over members, with its gradient by `torch.func`; eager, or compiled and captured.

Batches are drawn from packed bits on the device, with replacement, as is usual where nothing may be asked of the host.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.functional import linear, logsigmoid, softplus

from ...contender_step.network import bound
from ...training import BETAS, EPSILON, LEARNING_RATE, PRIOR_TEMPERATURE, TEMPERATURE
from .. import turn
from ..turn import Contender
from .case import RATE, Case, Given

EAGER_TIMES = 8
"""The number of steps of a turn if a step takes milliseconds."""

Parameters = dict[str, Tensor]
Loss = tuple[Tensor, Tensor]
"""The loss, and the running mean and variance after it."""


def eager(case: Case, given: Given) -> Contender:
    """Return the step in eager operations, with torch's fused Adam."""
    parameters, offset, running = initial(case, given)
    optimiser = torch.optim.Adam(parameters.values(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, fused=True)
    gradient, total = _gradient(case, given), torch.zeros((), device=given.device)

    def step() -> None:
        detached = {name: parameter.detach() for name, parameter in parameters.items()}
        slopes, loss = gradient(detached, offset, running)
        for name, parameter in parameters.items():
            parameter.grad = slopes[name]
        optimiser.step()
        total.sub_(loss)

    return _contender("torch by hand, vmap, eager", step, total, times=min(EAGER_TIMES, given.times), given=given)


def compiled(case: Case, given: Given) -> Contender:
    """Return the whole step compiled, and captured as a CUDA graph."""
    parameters, offset, running = initial(case, given)
    first, second = ({name: torch.zeros_like(parameter) for name, parameter in parameters.items()} for _ in range(2))
    gradient, total = _gradient(case, given), torch.zeros((), device=given.device)
    count = torch.zeros((), device=given.device)

    def step() -> None:
        slopes, loss = gradient(parameters, offset, running)
        count.add_(1)
        mean, scale = 1 - BETAS[0] ** count, 1 - BETAS[1] ** count
        for name, slope in slopes.items():
            first[name].lerp_(slope, 1 - BETAS[0])
            second[name].mul_(BETAS[1]).addcmul_(slope, slope, value=1 - BETAS[1])
            parameters[name].sub_(LEARNING_RATE * (first[name] / mean) / ((second[name] / scale).sqrt() + EPSILON))
        total.sub_(loss)

    torch.compiler.reset()
    work = turn.captured(torch.compile(step, fullgraph=True, dynamic=False), given.device)
    return _contender("torch by hand, vmap, compiled, captured", work, total, times=given.times, given=given)


def initial(case: Case, given: Given) -> tuple[Parameters, Tensor, Tensor]:
    """Return the weights by name, NVIL's offset, and its running mean and variance."""
    start = given.start
    arrays = {"top": start.top}
    for part, link in (("encoder", start.encoder), ("decoder", start.decoder), ("baseline", start.baseline)):
        for place, (matrix, bias) in enumerate(link):
            arrays |= {f"{part}.{place}.weight": matrix, f"{part}.{place}.bias": bias}
    parameters = {name: torch.tensor(array, device=given.device) for name, array in arrays.items()}
    offset = torch.tensor(start.offset, device=given.device) if start.baseline else torch.zeros(case.members, 0)
    running = torch.tensor([[0.0, 1.0]]).repeat(case.members, 1)
    return parameters, offset.to(given.device), running.to(given.device)


def apply(parameters: Parameters, part: str, h: Tensor) -> Tensor:
    """Apply affine maps with tanh between them."""
    places = sum(name.startswith(part) for name in parameters) // 2
    for place in range(places):
        h = linear(h, parameters[f"{part}.{place}.weight"], parameters[f"{part}.{place}.bias"])
        h = h.tanh() if place < places - 1 else h
    return h


def concrete(parameters: Parameters, offset: Tensor, running: Tensor, x: Tensor, samples: int) -> Loss:
    """Return the loss of one relaxed layer, scored before the sigmoid."""
    logits = apply(parameters, "encoder", 2 * x - 1)
    uniform = torch.rand((samples, *logits.shape), device=x.device).clamp(min=torch.finfo(x.dtype).tiny)
    noise = uniform.log() - (-uniform).log1p()
    y = (logits + noise) / TEMPERATURE
    log_q = _log_logistic(noise) + math.log(TEMPERATURE)
    log_p = _log_logistic(PRIOR_TEMPERATURE * y - parameters["top"]) + math.log(PRIOR_TEMPERATURE)
    log_x = _log_mass(apply(parameters, "decoder", (y / 2).tanh()), x)
    return -bound((log_p - log_q).sum(-1) + log_x).mean(), running


def vimco(parameters: Parameters, offset: Tensor, running: Tensor, x: Tensor, samples: int) -> Loss:
    """Return the loss of one discrete layer, by VIMCO with the geometric mean."""
    log_p, log_q = drawn(parameters, x, samples)
    log_w = log_p - log_q
    known = log_w.detach()
    others = (known.sum(0) - known) / (samples - 1)
    alone = torch.eye(samples, dtype=torch.bool, device=x.device).unsqueeze(-1)
    signal = bound(known) - bound(torch.where(alone, others, known.unsqueeze(1)))
    return -(bound(log_w) + _silent((signal * log_q).sum(0))).mean(), running


def nvil(parameters: Parameters, offset: Tensor, running: Tensor, x: Tensor, samples: int) -> Loss:
    """Return the loss of one discrete layer, by NVIL with a baseline, a running mean and a running deviation."""
    log_p, log_q = drawn(parameters, x, samples)
    log_w = log_p - log_q.detach()
    foreseen = apply(parameters, "baseline", x - offset).squeeze(-1)
    surprise = (log_w - foreseen).detach()
    running = RATE * running + (1 - RATE) * torch.stack([surprise.mean(), surprise.var(correction=0)])
    signal = (surprise - running[0]) / running[1].sqrt().clamp(min=1) / samples
    score = (signal * (log_q + foreseen)).sum(0)
    return -(log_w.mean(0) + _silent(score)).mean(), running


LOSSES: dict[str, Callable[..., Loss]] = {"concrete": concrete, "vimco": vimco, "nvil": nvil}


def drawn(parameters: Parameters, x: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Return the log probabilities of data and bits under p, and of bits under q that draws them."""
    logits = apply(parameters, "encoder", 2 * x - 1)
    bit = (torch.rand((samples, *logits.shape), device=x.device) < logits.sigmoid()).to(x.dtype)
    log_x = _log_mass(apply(parameters, "decoder", 2 * bit - 1), x)
    return _log_mass(parameters["top"], bit) + log_x, _log_mass(logits, bit)


def _gradient(case: Case, given: Given) -> Callable[..., tuple[Parameters, Tensor]]:
    """Return the gradients of all members on their own batches, and their mean loss; update `running`."""
    packed = torch.from_numpy(given.packed).to(given.device)
    places = 7 - torch.arange(8, dtype=torch.uint8, device=given.device)

    def loss(parameters: Parameters, offset: Tensor, running: Tensor, x: Tensor) -> Loss:
        return LOSSES[case.estimator](parameters, offset, running, x, case.samples)

    batched = vmap(grad_and_value(loss, has_aux=True), randomness="different")

    def gradient(parameters: Parameters, offset: Tensor, running: Tensor) -> tuple[Parameters, Tensor]:
        index = torch.randint(len(packed), (case.members, case.batch), device=given.device)
        x = ((packed[index].unsqueeze(-1) >> places) & 1).flatten(-2)[..., : given.width].float()
        slopes, (value, moved) = batched(parameters, offset, running, x)
        running.copy_(moved)
        return slopes, value.mean()

    return gradient


def _contender(name: str, work: Callable[[], Any], total: Tensor, *, times: int, given: Given) -> Contender:
    def bound() -> float:
        for _ in range(given.times - times):  # bounds grow from step to step: of as many as the others
            work()
        return total.item() / given.times

    return Contender(name, turn.repeated(work, times, given.device), times=times, bound=bound)


def _log_logistic(noise: Tensor) -> Tensor:
    """Return the log density of standard logistic noise."""
    return -noise.abs() - 2 * softplus(-noise.abs())


def _log_mass(logits: Tensor, bit: Tensor) -> Tensor:
    """Return the log mass of bits, all units of a layer together."""
    return logsigmoid((2 * bit - 1) * logits).sum(-1)


def _silent(score: Tensor) -> Tensor:
    """Return zero with the gradient of a number."""
    return score - score.detach()
