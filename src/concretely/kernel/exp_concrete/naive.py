"""The definition of an ExpConcrete draw, and of its log density; or of the same by normal noise."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ... import noise as philox
from ..handwritten import spread, summed

SMALLEST = 2.0**-103
"""The smallest entry of a point of the simplex, where the slope of a log density, of order 1/x, is finite."""


def noise(
    key: Int64[Tensor, "members 2"], rows: int, n: int, normal: bool = False
) -> Float[Tensor, "members {rows} {n}"]:
    """Standard Gumbel or normal noise; the four words of a place belong to four rows."""
    places = -(-rows // 4)
    tail = philox.fractions(key, 4 * places * n, torch.float32, normal)
    if normal:  # by the smaller tail probability
        quantile: Tensor = torch.special.ndtri(tail.abs())
        drawn = quantile.copysign(tail)
    else:  # by the upper one; what lies next to 1 was rounded to it
        drawn = -(-(-(tail * (1 - 2.0**-24))).log1p()).log()
    return drawn.view(len(key), 4 * places, n)[:, :rows]


def noisy(
    logits: Float[Tensor, "members units n"], key: Int64[Tensor, "members 2"], samples: int, normal: bool = False
) -> tuple[Float[Tensor, "members m units n"], Float[Tensor, "members m units n"]]:
    """The noisy logits, up to a shift, and the noise: beside a logit of a thousand it would be rounded away."""
    members, units, n = logits.shape
    drawn = noise(key, samples * units, n, normal).reshape(members, samples, units, n)
    logits = logits.float()
    return (logits - logits.amax(-1, keepdim=True)).unsqueeze(1) + drawn, drawn


def draw(
    logits: Float[Tensor, "members units n"],
    temperature: Float64[Tensor, " members"],
    key: Int64[Tensor, "members 2"],
    samples: int,
    squash: str,
    length: int = 1,
    normal: bool = False,
) -> tuple[Float[Tensor, "members m units n"], Tensor, Float[Tensor, "members m rows"]]:
    """The log softmax of noisy logits over the temperature, their squashed values, and log densities of rows."""
    total, drawn = noisy(logits, key, samples, normal)
    node = ((total - total.amax(-1, keepdim=True)) / temperature.view(-1, 1, 1, 1).float()).log_softmax(-1)
    return node, squashed(node, squash), summed(log_density(drawn, temperature, normal), length)


def log_density(
    noise: Float[Tensor, "members m units n"], temperature: Float64[Tensor, " members"], normal: bool
) -> Float[Tensor, "members m units"]:
    """The log density of nodes, which depends on their noise alone, and not on its shift."""
    n = noise.shape[-1]
    cooled = (n - 1) * temperature.log().view(-1, 1, 1)
    if normal:
        return (log_scale(n) + cooled - deviation(noise).square().sum(-1).double() / 2).float()
    constant = math.lgamma(n) + cooled
    # neither drawn noise nor noise with its smallest entry at 0 is below -4: the plain exponential is safe
    return (constant - noise.sum(-1).double() - n * (-noise).exp().sum(-1).double().log()).float()


def log_scale(n: int) -> float:
    """The log density of normal noise of n categories where it is highest, whatever its shift."""
    return -((n - 1) * math.log(2 * math.pi) + math.log(n)) / 2


def deviation(noise: Float[Tensor, "members m units n"]) -> Float[Tensor, "members m units n"]:
    """Noise less its mean over the categories."""
    return noise - noise.mean(-1, keepdim=True)


def value_shape(node: Sequence[int], squash: str) -> tuple[int, ...]:
    """The shape of the values of nodes; of values that would be the nodes there are none."""
    if squash == "none":
        return node[0], 0
    return (*node[:-1], int(node[-1]).bit_length() - 1) if squash == "cube" else tuple(node)


def squashed(node: Float[Tensor, "*shape n"], squash: str) -> Tensor:
    """The values of nodes, kept off the edges that rounding would take them to."""
    if squash == "none":
        return node.new_empty(value_shape(node.shape, squash))
    value = node.exp()
    if squash == "cube":
        return (value @ corners(node.shape[-1], dtype=value.dtype, device=value.device)).clamp(-1, 1)
    return torch.where(node.isinf(), value, value.clamp(SMALLEST, 1))  # 0 is a limit


def corners(n: int, *, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n bits"]:
    """The corners of the hypercube as rows: the digits of the category, the highest first, as minus and plus one."""
    digit = torch.arange(n.bit_length() - 2, -1, -1, device=device)
    category = torch.arange(n, device=device).unsqueeze(-1)
    return (2 * (category >> digit & 1) - 1).to(dtype)


def draw_backward(
    by_node: Tensor | None,
    by_value: Tensor | None,
    node: Float[Tensor, "members m units n"],
    temperature: Float64[Tensor, " members"],
    squash: str,
    dtype: torch.dtype,
) -> Float[Tensor, "members units n"]:
    """The gradient of the logits, over all samples."""
    share = node.exp()
    total = torch.zeros_like(node) if by_node is None else by_node
    if by_value is not None:
        by_share = by_value
        if squash == "cube":
            by_share = by_value @ corners(node.shape[-1], dtype=by_value.dtype, device=by_value.device).mT
        total = total + by_share * share
    by_noisy = (total - share * total.sum(-1, keepdim=True)).sum(1)
    return (by_noisy / temperature.view(-1, 1, 1).float()).to(dtype)


def recovered(
    node: Float[Tensor, "members m units n"],
    logits: Float[Tensor, "members units n"],
    temperature: Float64[Tensor, " members"],
) -> Float[Tensor, "members m units n"]:
    """The noise behind nodes, its smallest entry at 0: a difference that may be small beside its terms."""
    noise = temperature.view(-1, 1, 1, 1) * node.double() - logits.double().unsqueeze(1)
    return (noise - noise.detach().amin(-1, keepdim=True)).float()


def score(
    node: Float[Tensor, "members m units n"],
    logits: Float[Tensor, "members units n"],
    temperature: Float64[Tensor, " members"],
    length: int = 1,
    normal: bool = False,
) -> Float[Tensor, "members m rows"]:
    """The log density of given nodes, of rows of units."""
    return summed(log_density(recovered(node, logits, temperature), temperature, normal), length)


def score_backward(
    by: Float[Tensor, "members m rows"],
    node: Float[Tensor, "members m units n"],
    logits: Float[Tensor, "members units n"],
    temperature: Float64[Tensor, " members"],
    needs_node: bool,
    needs_logits: bool,
    length: int = 1,
    normal: bool = False,
) -> tuple[Tensor, Tensor]:
    """The gradients of the nodes and of the logits, the latter over all samples; none of what has no need of it."""
    noise = recovered(node, logits, temperature)
    slope = -deviation(noise) if normal else node.shape[-1] * (-noise).softmax(-1) - 1
    by_noise = spread(by, length).unsqueeze(-1) * slope
    none = by.new_empty((len(by), 0))
    by_node = (temperature.view(-1, 1, 1, 1).float() * by_noise).to(node.dtype) if needs_node else none
    return by_node, -by_noise.sum(1).to(logits.dtype) if needs_logits else torch.empty_like(none)
