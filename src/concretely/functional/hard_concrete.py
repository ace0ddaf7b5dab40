r"""The hard Concrete variable, a binary Concrete variable that is stretched beyond [0, 1] and clipped to it.

$$Z = \min(1, \max(0, γ + (ζ - γ) σ((L + \log α) / λ))), \quad γ < 0, \; ζ > 1$$

It has atoms at 0 and 1. See [louizos2018learning].
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.nn.functional import logsigmoid

from ..kernel.operator import plain_apply
from . import logistic
from .arithmetic import Temperature, cast, compute_dtype, divide, over_categories, scalar, to_float64
from .draw import draw_node, is_recorded
from .edge import inside, near_one, near_zero
from .integral import ROOTS, SHARES
from .logistic import log_density
from .noise import Source

Stretch = tuple[float, float]
"""The ends γ and ζ of the stretched interval."""
NARROW = 0.01
"""Below this distance of both intervals, an unclipped node has a sigmoid that may round to 1."""


def node_at(value: float, stretch: Stretch) -> float:
    """Return the node, the log-odds before stretching, that leads to a value in [0, 1]."""
    low, high = stretch
    return math.log(value - low) - math.log(high - value)


def squash(node: Float[Tensor, "..."], stretch: Stretch, dtype: torch.dtype) -> Float[Tensor, "..."]:
    """Stretch and clip the sigmoid of a node. A value inside is never rounded to 0 or 1."""
    low, high = stretch
    # in place, as torch's tangent of a single number times a float is in float64
    value = torch.exp(logsigmoid(node)).clone().mul_(high - low).add_(low)
    value = inside(value, near_zero(dtype).last, 1 - near_one(dtype).last)
    value = torch.where(node <= node_at(0, stretch), torch.zeros_like(value), value)
    return torch.where(node >= node_at(1, stretch), torch.ones_like(value), value)


def squash_without_gradient(node: Tensor, stretch: Stretch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the result of `squash` in few operations, and the sigmoid σ of the node or its negative, for σ (1 - σ)."""
    share, (start, end) = torch.sigmoid(node), ends(stretch)
    value = share.mul(scalar(stretch[1] - stretch[0])).add_(scalar(stretch[0])).clamp_(*_between(dtype))
    # this operation of torch returns 0 where the node is not strictly between both ends
    clipped: Tensor = hardtanh_backward(value, node, start, end)
    clipped.add_(torch.ge(node, scalar(end), out=value))
    if min(-stretch[0], stretch[1] - 1) < NARROW:
        share = torch.sigmoid(node.abs().neg_())  # since 1 - σ loses digits near 1
    return clipped, share


@lru_cache(maxsize=64)
def ends(stretch: Stretch) -> tuple[float, float]:
    """Return the nodes that lead to 0 and to 1."""
    return node_at(0, stretch), node_at(1, stretch)


def draw(
    logits: Float[Tensor, "..."],
    temperature: Temperature,
    stretch: Stretch,
    *,
    sample_shape: Sequence[int] = (),
    generator: Source | None = None,
) -> Float[Tensor, "..."]:
    """Draw values with a pathwise gradient, in at least float32."""
    dtype = logits.dtype
    if isinstance(temperature, float) and temperature > 0 and is_recorded(logits):
        if logits.is_cpu:
            shape = Size(sample_shape) + logits.shape
            noise = logistic.noise(shape, compute_dtype(dtype), device=logits.device, generator=generator)
            return _DRAW(logits, noise, temperature, stretch, dtype)
        node = draw_node(logistic, logits, temperature, sample_shape=sample_shape, generator=generator).value
        return _DRAW(node, None, 1.0, stretch, dtype)
    node = draw_node(logistic, logits, temperature, sample_shape=sample_shape, generator=generator).value
    return squash(node, stretch, dtype)


class _Draw(torch.autograd.Function):
    """Values made from logits and noise, or from nodes if there is no noise, as one autograd node."""

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, noise: Tensor | None, temperature: float, stretch: Stretch, dtype: torch.dtype
    ) -> Tensor:
        node = given if noise is None else logistic.push(given, temperature, noise)
        ctx.temperature, ctx.width, ctx.ends = temperature, stretch[1] - stretch[0], ends(stretch)
        ctx.save_for_backward(given, noise, node)
        return squash_without_gradient(node, stretch, dtype)[0]

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        given, noise, node = ctx.saved_tensors
        if torch.is_grad_enabled() and noise is not None:
            node = logistic.push(given, ctx.temperature, noise)
        kept = hardtanh_backward(by[0], node.detach(), *ctx.ends)
        # σ(node) σ(-node) is half the inverse of 1 + cosh(node)
        gradient = (kept / (torch.cosh(node) + 1)).sum_to_size(given.shape) * (0.5 * ctx.width / ctx.temperature)
        return cast(gradient, given.dtype), None, None, None, None


_DRAW: Callable[..., Tensor] = plain_apply(_Draw)
hardtanh_backward = torch.ops.aten.hardtanh_backward.default


@cache
def _between(dtype: torch.dtype) -> tuple[float, float]:
    """Return the smallest and the largest value of a dtype between 0 and 1 that a clipped value may take."""
    return near_zero(dtype).last, 1 - near_one(dtype).last


def log_exceeds(
    node: float, logits: Float[Tensor, "..."], temperature: Temperature, *, below: bool = False
) -> Float[Tensor, "..."]:
    """Return the log probability that a node is above a point or, if `below`, below it, in float64."""
    distance = to_float64(logits) - temperature * node
    return logsigmoid(-distance if below else distance)


def log_mixed_density(
    value: Float[Tensor, "..."], logits: Float[Tensor, "..."], temperature: Temperature, stretch: Stretch
) -> Float[Tensor, "..."]:
    """Return the log probability of 0 and of 1, and the log density of values between them, in float64."""
    low, high = stretch
    value = to_float64(value)
    between = torch.where((value <= 0) | (value >= 1), 0.5, value)
    node = (between - low).log() - (high - between).log()
    log_slope = (between - low).log() + (high - between).log() - math.log(high - low)
    density = log_density(node, logits, temperature) - log_slope
    return with_atoms(density, value, logits, temperature, stretch)


def log_mixed_density_of_node(
    node: Float[Tensor, "..."],
    log_prob: Float[Tensor, "..."],
    value: Float[Tensor, "..."],
    logits: Float[Tensor, "..."],
    temperature: Temperature,
    stretch: Stretch,
) -> Float[Tensor, "..."]:
    """Return `log_mixed_density` of a drawn value, from its node and the log density of the latter."""
    node = to_float64(node)
    slope = logsigmoid(node) + logsigmoid(-node) + math.log(stretch[1] - stretch[0])
    return with_atoms(to_float64(log_prob) - slope, value, logits, temperature, stretch)


def with_atoms(
    density: Float[Tensor, "..."],
    value: Float[Tensor, "..."],
    logits: Float[Tensor, "..."],
    temperature: Temperature,
    stretch: Stretch,
) -> Float[Tensor, "..."]:
    """Replace the log density at 0 and at 1 by the log probability of these atoms."""
    zero = log_exceeds(node_at(0, stretch), logits, temperature, below=True)
    one = log_exceeds(node_at(1, stretch), logits, temperature)
    return torch.where(value <= 0, zero, torch.where(value >= 1, one, density))


def cdf(
    value: Float[Tensor, "..."], logits: Float[Tensor, "..."], temperature: Temperature, stretch: Stretch
) -> Float[Tensor, "..."]:
    """Return the probability of at most a value in [0, 1], in float64."""
    low, high = stretch
    value = to_float64(value)
    node = (value - low).log() - (high - value).log()
    return torch.where(value >= 1, 1, torch.sigmoid(temperature * node - to_float64(logits)))


def median(logits: Float[Tensor, "..."], temperature: Temperature, stretch: Stretch) -> Float[Tensor, "..."]:
    """Return the median, in float64. It is 0 unless values above 0 have a probability of more than 1/2."""
    logits = to_float64(logits)
    node = divide(logits.clone(), temperature, lambda total: torch.where(total >= 0, math.inf, -math.inf))
    return squash(node, stretch, torch.float64)


def moments(
    logits: Float[Tensor, "..."], temperature: Temperature, stretch: Stretch
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Return the mean and the mean square in float64: ∫ P(Z > z) dz and ∫ 2z P(Z > z) dz over [0, 1].

    Over the node, the integrand is analytic within a distance of π / max(λ, 1) of the real line. Gauss-Legendre
    quadrature is exact to rounding on panels of about that length.
    """
    low, high = stretch
    logits = to_float64(logits)
    mean, square = torch.zeros_like(logits), torch.zeros_like(logits)
    for node, weight in _panels(stretch, logits, temperature):
        sigmoid = torch.sigmoid(node)
        value, slope = low + (high - low) * sigmoid, (high - low) * sigmoid * torch.sigmoid(-node)
        above = weight * slope * torch.sigmoid(logits.unsqueeze(-1) - over_categories(temperature) * node)
        mean, square = mean + above.sum(-1), square + (2 * value * above).sum(-1)
    return mean, square


def divergence(
    p: tuple[Float[Tensor, "..."], Temperature], q: tuple[Float[Tensor, "..."], Temperature], stretch: Stretch
) -> Float[Tensor, "..."]:
    """Return KL(p || q) in float64, from the logits and temperatures: terms of both atoms, and an integral."""
    total = torch.zeros((), dtype=torch.float64, device=p[0].device)
    for end, below in ((node_at(0, stretch), True), (node_at(1, stretch), False)):
        own, other = (log_exceeds(end, *parameters, below=below) for parameters in (p, q))
        total = total + own.exp() * (own - other)
    for node, weight in _panels(stretch, total, p[1], q[1]):
        own, other = (
            log_density(node, to_float64(logits).unsqueeze(-1), over_categories(temperature))
            for logits, temperature in (p, q)
        )
        total = total + (weight * own.exp() * (own - other)).sum(-1)
    return total


def _panels(
    stretch: Stretch, like: Tensor, *temperatures: Temperature
) -> Iterator[tuple[Float[Tensor, " points"], Float[Tensor, " points"]]]:
    """Yield points and weights of Gauss-Legendre quadrature over the nodes that lead to values between 0 and 1."""
    start, end = node_at(0, stretch), node_at(1, stretch)
    sharp = max(
        16.0 if isinstance(temperature, Tensor) else min(max(temperature, 1.0), 16.0) for temperature in temperatures
    )
    panels = math.ceil((end - start) * sharp / 4)
    half = (end - start) / (2 * panels)
    roots, shares = (torch.tensor(numbers, dtype=torch.float64, device=like.device) for numbers in (ROOTS, SHARES))
    for panel in range(panels):
        yield start + half * (2 * panel + 1 + roots), half * shares
