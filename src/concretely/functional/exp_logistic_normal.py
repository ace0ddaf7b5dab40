r"""The ExpConcrete variable with Gaussian instead of Gumbel noise, for a control experiment of the paper.

$$\log κ(y) = (n-1)(\log λ - \tfrac12 \log 2π) - \tfrac12 \log n - \tfrac12 \sum_k (d_k - \bar d)^2,
\quad d_k = λ y_k - \log α_k$$

See [maddison2017concrete], section 5.2 and appendix C.4.
"""

import math
from functools import partial

import torch
from jaxtyping import Bool, Float
from numpy.polynomial.hermite import hermgauss
from torch import Tensor

from . import normal
from .arithmetic import Temperature, invert_noise, log_temperature, over_categories
from .log_simplex import noise_behind, noise_of_key, pull, push
from .node import node_operators
from .noise import normal as noise
from .normal import LOG_TWO_PI

__all__ = ["draw", "log_density", "log_density_at_edge", "log_density_of_noise", "noise", "pull", "push", "score"]

category_axes = 1

ROOTS, WEIGHTS = (numbers.tolist() for numbers in hermgauss(24))  # torch.compile cannot trace hermgauss
NEWTON_STEPS = 30


def log_density_of_noise(noise: Float[Tensor, "*shape n"], temperature: Temperature) -> Float[Tensor, "*shape"]:
    """Return the log density of the value made from noise."""
    n = noise.shape[-1]
    constant = (n - 1) * (log_temperature(temperature, noise) - LOG_TWO_PI / 2) - math.log(n) / 2
    return constant - (noise - noise.mean(-1, keepdim=True)).square().sum(-1) / 2


def log_density(
    value: Float[Tensor, "*shape n"], logits: Float[Tensor, "*batch n"], temperature: Temperature
) -> Float[Tensor, "*out"]:
    """Return the log density of a value."""
    noise = invert_noise(value, logits, over_categories(temperature), up_to_shift=True)
    return log_density_of_noise(noise, temperature)


def log_density_at_edge(
    value: Float[Tensor, "*shape n"],
    logits: Float[Tensor, "*batch n"],
    temperature: Temperature,
    lost: Bool[Tensor, "*shape n"],
) -> Float[Tensor, "*out"]:
    r"""Return the log of the average density over a cell, all values that were rounded to one point of the simplex.

    $$λ^{m-1} \int \prod_{k ∉ Z} φ(d_k + u) \prod_{k ∈ Z} Φ(d_k + u) \, du, \quad m = n - |Z|$$

    The entries in Z (`lost`) lie anywhere below a border, and `value` contains this border in their place. The
    integrand is log-concave, so Gauss-Hermite quadrature around its peak converges fast.
    """
    noise = noise_behind(value, logits, temperature)
    left = (~lost).sum(-1, keepdim=True).to(torch.float64)
    centre = torch.where(lost, 0, noise).sum(-1, keepdim=True) / left
    spread = torch.where(lost, 0, noise - centre).square().sum(-1) / 2

    def log_integrand(u: Tensor) -> Tensor:
        lower = torch.where(lost.unsqueeze(-2), normal.log_cdf(noise.unsqueeze(-2) + u.unsqueeze(-1)), 0)
        return lower.sum(-1) - left * (u + centre).square() / 2

    peak, width = _peak(noise.detach(), lost, left, centre.detach())
    roots, weights = (torch.tensor(numbers, dtype=noise.dtype, device=noise.device) for numbers in (ROOTS, WEIGHTS))
    terms = log_integrand(peak + math.sqrt(2) * width * roots) + roots.square() + weights.log()
    log_integral = terms.logsumexp(-1) + (math.sqrt(2) * width).log().squeeze(-1)
    constant = (left.squeeze(-1) - 1) * log_temperature(temperature, noise) - left.squeeze(-1) * LOG_TWO_PI / 2
    return constant - spread + log_integral


def _peak(noise: Tensor, lost: Tensor, left: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position and the width of the integrand's peak, by Newton's method."""
    # the derivative of the log integrand is convex and decreasing: iterates from the left never overshoot
    peak = -centre
    slope = left
    for _ in range(NEWTON_STEPS):
        point = noise + peak
        # r = φ/Φ at x has the derivative -r (x + r)
        ratio = torch.exp(normal.log_density(point) - normal.log_cdf(point))
        ratio = torch.where(lost, ratio, 0)
        slope = left + (ratio * (point + ratio)).sum(-1, keepdim=True)
        peak = peak + (ratio.sum(-1, keepdim=True) - left * (peak + centre)) / slope
    return peak, slope.rsqrt()


draw, score = node_operators(
    "exp_logistic_normal",
    partial(noise_of_key, gaussian=True),
    push,
    log_density_of_noise,
    category_axes=category_axes,
    kernel="exp_concrete",
    suffix="_gaussian",
)
