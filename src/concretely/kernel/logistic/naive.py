"""The definition of a logistic draw."""

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ..philox import naive as philox


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
) -> tuple[Float[Tensor, "members m units"], Tensor, Float[Tensor, "members m units"]]:
    """Noisy logits over the temperature, their squashed values, and the log density of the former."""
    drawn = noise(key, samples * logits.shape[1]).view(len(logits), samples, -1)
    cool = temperature.view(-1, 1, 1)
    node = (logits.unsqueeze(1).float() + drawn) / cool.float()
    log_density = cool.log().float() - drawn.abs() - 2 * softplus(-drawn.abs())
    return node, squashed(node, squash), log_density


def squashed(node: Float[Tensor, "..."], squash: str) -> Tensor:
    """The values of nodes, kept off the edges of the unit interval that rounding would take them to."""
    if squash == "none":
        return node.new_empty((len(node), 0))
    value = logsigmoid(node).exp()
    if squash == "corner":
        return 2 * value - 1
    return value.clamp(torch.finfo(value.dtype).tiny, 1 - torch.finfo(value.dtype).eps / 2)


def slope(node: Float[Tensor, "..."], squash: str) -> Float[Tensor, "..."]:
    """The derivative of the value by the node."""
    return (2 if squash == "corner" else 1) * torch.sigmoid(node) * torch.sigmoid(-node)


def draw_backward(
    by_node: Tensor | None,
    by_value: Tensor | None,
    node: Float[Tensor, "members m units"],
    temperature: Float64[Tensor, " members"],
    squash: str,
) -> Float[Tensor, "members units"]:
    """The gradient of the logits, over all samples."""
    total = torch.zeros_like(node) if by_node is None else by_node
    total = total if by_value is None else total + by_value * slope(node, squash)
    return (total / temperature.view(-1, 1, 1).float()).sum(1)
