"""The definition of a logistic node: how it is drawn, and its log density where it was drawn by another."""

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ... import noise as philox
from ..handwritten import spread, summed

SMALLEST = 2.0**-103
"""The smallest value on the unit interval, so far above zero that the slope of a log density is finite."""


def noise(key: Int64[Tensor, "members 2"], count: int) -> Float[Tensor, "members {count}"]:
    """Standard logistic noise, by the smaller of the two tail probabilities."""
    signed = philox.fractions(key, count, torch.float32, True)
    return torch.logit(signed.abs()).copysign(signed)


def draw(
    logits: Float[Tensor, "members units"],
    temperature: Float64[Tensor, " members"],
    key: Int64[Tensor, "members 2"],
    samples: int,
    squash: str,
    length: int = 1,
) -> tuple[Float[Tensor, "members m units"], Tensor, Float[Tensor, "members m rows"]]:
    """Noisy logits over the temperature, their squashed values, and the log density of the former, of rows of units."""
    members, units = logits.shape
    drawn = noise(key, samples * units).view(members, samples, units)
    node = (logits.unsqueeze(1).float() + drawn) / temperature.view(-1, 1, 1).float()
    return node, squashed(node, squash), summed(log_density(drawn, temperature), length)


def log_density(
    noise: Float[Tensor, "members m units"], temperature: Float64[Tensor, " members"]
) -> Float[Tensor, "members m units"]:
    """The log density of nodes, from their noise."""
    size = noise.abs()
    return temperature.log().float().view(-1, 1, 1) - size - 2 * softplus(-size)


def squashed(node: Float[Tensor, "..."], squash: str) -> Tensor:
    """The values of nodes, kept off the edges of the unit interval that rounding would take them to."""
    if squash == "none":
        return node.new_empty((len(node), 0))
    if squash == "corner":
        return torch.tanh(node / 2)
    return logsigmoid(node).exp().clamp(SMALLEST, 1 - torch.finfo(node.dtype).eps / 2)


def slope(node: Float[Tensor, "..."], squash: str) -> Float[Tensor, "..."]:
    """The derivative of the value by the node."""
    return (2 if squash == "corner" else 1) * torch.sigmoid(node) * torch.sigmoid(-node)


def draw_backward(
    by_node: Tensor | None,
    by_value: Tensor | None,
    node: Float[Tensor, "members m units"],
    temperature: Float64[Tensor, " members"],
    squash: str,
    dtype: torch.dtype,
) -> Float[Tensor, "members units"]:
    """The gradient of the logits, over all samples."""
    total = torch.zeros_like(node) if by_node is None else by_node
    total = total if by_value is None else total + by_value * slope(node, squash)
    return (total.sum(1) / temperature.unsqueeze(-1).float()).to(dtype)


def recovered(
    node: Float[Tensor, "members m units"],
    logits: Float[Tensor, "members units"],
    temperature: Float64[Tensor, " members"],
) -> Float[Tensor, "members m units"]:
    """The noise behind nodes, in float64 until its terms have cancelled."""
    return (temperature.view(-1, 1, 1) * node.double() - logits.unsqueeze(1).double()).float()


def score(
    node: Float[Tensor, "members m units"],
    logits: Float[Tensor, "members units"],
    temperature: Float64[Tensor, " members"],
    length: int = 1,
) -> Float[Tensor, "members m rows"]:
    """The log density of given nodes, of rows of units."""
    return summed(log_density(recovered(node, logits, temperature), temperature), length)


def score_backward(
    by: Float[Tensor, "members m rows"],
    node: Float[Tensor, "members m units"],
    logits: Float[Tensor, "members units"],
    temperature: Float64[Tensor, " members"],
    needs_node: bool,
    needs_logits: bool,
    length: int = 1,
) -> tuple[Tensor, Tensor]:
    """The gradients of the nodes and of the logits, the latter over all samples; none of what has no need of it."""
    pull = spread(by, length) * torch.tanh(recovered(node, logits, temperature) / 2)
    none = by.new_empty((len(by), 0))
    by_node = (-temperature.view(-1, 1, 1).float() * pull).to(node.dtype) if needs_node else none
    return by_node, pull.sum(1).to(logits.dtype) if needs_logits else torch.empty_like(none)
