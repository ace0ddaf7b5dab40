"""The route of tokens to the experts with the k largest noisy scores, their weights and loads, as one autograd node."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import softplus

from ..kernel.operator import is_plain, is_watched, plain_apply
from .arithmetic import scalar
from .fused import pulled_again
from .top_k import Noise, density, load_given_others, survival

LEAST_SCALE = 1e-2
"""The smallest standard deviation of learned noise."""


def scale_of(spread: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the standard deviation of learned noise."""
    return softplus(spread) + LEAST_SCALE


class Routed(NamedTuple):
    """Where tokens go."""

    weights: Float[Tensor, "*batch k"]
    """The probabilities of the chosen experts, divided by their sum if k > 1."""
    probabilities: Float[Tensor, "*batch n"]
    load: Float[Tensor, "*batch n"]
    """The probability that an expert is chosen, given the noise of the others; without noise, whether it is chosen."""
    indices: Int64[Tensor, "*batch k"]


def route(
    logits: Float[Tensor, "*batch n"],
    bias: Float[Tensor, " n"],
    spread: Float[Tensor, "*batch n"] | None,
    noise: Float[Tensor, "*batch n"] | None,
    k: int,
    law: Noise,
) -> Routed:
    """Choose the k largest of logits with a bias and noise, whose scale is that of `spread`, or 1."""
    given = [tensor for tensor in (logits, spread, noise) if tensor is not None]
    is_one_node = noise is not None and k < logits.shape[-1] and len({tensor.dtype for tensor in given}) == 1
    if is_one_node and is_plain(given) and not is_watched():
        return Routed(*_ROUTE(logits, bias, spread, noise, k, law))
    return _routed(logits, spread, bias, noise, k, law)


def _routed(logits: Tensor, spread: Tensor | None, bias: Tensor, noise: Tensor | None, k: int, law: Noise) -> Routed:
    scores, scale = logits + bias.to(logits.dtype), None if spread is None else scale_of(spread)
    if noise is None:
        indices = scores.topk(k, -1).indices
        load = torch.zeros_like(scores).scatter(-1, indices, 1)
    else:
        noisy = scores + (noise if scale is None else scale * noise)
        top, indices = noisy.topk(min(k + 1, scores.shape[-1]), -1)
        indices, load = indices[..., :k], load_given_others(scores, scale, noisy, top, k, law)
    probabilities = logits.softmax(-1)
    # the softmax of the chosen logits are their probabilities, divided by the sum
    weights = logits.gather(-1, indices).softmax(-1) if k > 1 else probabilities.gather(-1, indices)
    return Routed(weights, probabilities, load, indices)


class _Route(torch.autograd.Function):
    """`route` with noise, of fewer than all experts."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, bias: Tensor, spread: Tensor | None, noise: Tensor, k: int, law: Noise
    ) -> tuple[Tensor, ...]:
        scores, scale = logits + bias.to(logits.dtype), None
        if spread is not None:
            scale = softplus(spread).add_(scalar(LEAST_SCALE))
        noisy = scores + noise if scale is None else torch.addcmul(scores, scale, noise)
        top, places = noisy.topk(k + 1, -1)
        inner, outer, indices = top[..., k - 1 : k], top[..., k:], places[..., :k]
        is_in = noisy >= inner
        least = torch.where(is_in, outer, inner).sub_(scores)  # the least noise with which an expert is chosen
        least = least if scale is None else least.div_(scale)
        load, probabilities = survival(least, law), logits.softmax(-1)
        weights = logits.gather(-1, indices).softmax(-1) if k > 1 else probabilities.gather(-1, indices)
        ctx.k, ctx.law = k, law
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(logits, spread, bias, scale, noise, places, is_in, least, probabilities, weights)
        return weights, probabilities, load, indices

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, spread, bias, scale, noise, places, is_in, least, probabilities, weights = ctx.saved_tensors
        k, law = ctx.k, ctx.law
        if torch.is_grad_enabled():
            gradients = pulled_again(_routed, (logits, spread), by[:3], bias, noise, k, law)
            return gradients[0], None, gradients[1], None, None, None
        by_weights, by_probabilities, by_load, _ = by
        by_logits = by_spread = None
        if by_load is not None:
            by_logits = density(least, law).mul_(by_load)
            by_logits = by_logits if scale is None else by_logits.div_(scale)
            # the load depends on the noisy scores next to the choice, too: the last inside and the first outside
            inside, edges = (by_logits * is_in).sum(-1, keepdim=True), places[..., k - 1 :]
            by_edges = torch.cat([inside - by_logits.sum(-1, keepdim=True), inside.neg()], -1)
            if scale is not None:
                by_scale = (least * by_logits).scatter_add_(-1, edges, by_edges * noise.gather(-1, edges))
                by_spread = softplus_backward(by_scale, spread, 1, 20)
            by_logits = by_logits.scatter_add_(-1, edges, by_edges)
        if by_weights is not None and k > 1:
            by_chosen = torch._softmax_backward_data(by_weights, weights, -1, weights.dtype)
            by_logits = torch.zeros_like(logits) if by_logits is None else by_logits
            by_logits.scatter_add_(-1, places[..., :k], by_chosen)
        elif by_weights is not None:
            chosen = torch.zeros_like(logits).scatter_(-1, places[..., :1], by_weights)
            by_probabilities = chosen if by_probabilities is None else chosen.add_(by_probabilities)
        if by_probabilities is not None:
            pulled = torch._softmax_backward_data(by_probabilities, probabilities, -1, logits.dtype)
            by_logits = pulled if by_logits is None else by_logits.add_(pulled)
        return by_logits, None, by_spread, None, None, None


_ROUTE: Callable[..., tuple[Tensor, ...]] = plain_apply(_Route)
softplus_backward = torch.ops.aten.softplus_backward.default


def count(
    indices: Int64[Tensor, "*batch k"], mask: Bool[Tensor, "*batch"] | None, n: int
) -> Float[Tensor, " {n}"] | Int64[Tensor, " {n}"]:
    """Return how often each of n experts is chosen, where the mask is True."""
    index = indices.flatten()
    if mask is None and is_plain((indices,)):
        if indices.is_cpu:
            return torch.bincount(index, minlength=n)
        return torch.zeros(n, device=index.device).scatter_(0, index, 1.0, reduce="add")
    if mask is None:
        chosen = torch.ones(index.shape, device=index.device)
    else:
        chosen = mask.unsqueeze(-1).expand_as(indices).flatten().to(torch.float32)
    return chosen.new_zeros(n).scatter_add(0, index, chosen)
