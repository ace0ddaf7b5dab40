r"""The hard Concrete variable, a binary Concrete variable that is stretched beyond [0, 1] and clipped to it.

$$Z = \min(1, \max(0, γ + (ζ - γ) σ((L + \log α) / λ))), \quad γ < 0, \; ζ > 1$$

It has atoms at 0 and 1. See [louizos2018learning].
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from .arithmetic import Temperature, divide, to_float64
from .edge import inside, near_one, near_zero
from .integral import ROOTS, SHARES
from .logistic import log_density

Stretch = tuple[float, float]
"""The ends γ and ζ of the stretched interval."""


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
    value = torch.where(node <= node_at(0, stretch), 0, value)
    return torch.where(node >= node_at(1, stretch), 1, value)


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
    start, end = node_at(0, stretch), node_at(1, stretch)
    sharp = 16.0 if isinstance(temperature, Tensor) else min(max(temperature, 1.0), 16.0)
    panels = math.ceil((end - start) * sharp / 4)
    half = (end - start) / (2 * panels)
    logits = to_float64(logits)
    roots, shares = (torch.tensor(numbers, dtype=torch.float64, device=logits.device) for numbers in (ROOTS, SHARES))
    mean, square = torch.zeros_like(logits), torch.zeros_like(logits)
    step = temperature.unsqueeze(-1) if isinstance(temperature, Tensor) else temperature
    for panel in range(panels):
        node = start + half * (2 * panel + 1 + roots)
        sigmoid = torch.sigmoid(node)
        value, weight = low + (high - low) * sigmoid, half * shares * (high - low) * sigmoid * torch.sigmoid(-node)
        above = weight * torch.sigmoid(logits.unsqueeze(-1) - step * node)
        mean, square = mean + above.sum(-1), square + (2 * value * above).sum(-1)
    return mean, square
