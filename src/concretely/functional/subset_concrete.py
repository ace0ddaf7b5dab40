"""The relaxation of a subset: noisy scores, of which exactly k are positive, and a threshold that keeps their sum at k.

Let each item have a score with a logistic law around its centred logit. Given that exactly k scores are positive, the
positive ones are a draw of the conditional Bernoulli law. So a subset is drawn first, then scores with these signs.
"""

import math
from typing import Any, NamedTuple, TypeGuard

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ..kernel.operator import is_plain, operator, plain_apply
from .arithmetic import Temperature, cast, compute_dtype, divide, log_temperature, over_categories, to_float64
from .draw import is_one_number, is_recorded, of_member
from .logistic import standard_log_density
from .subset import are_few, are_many, choose, chunks, fits_kernel, in_rows, log_probability
from .subset import push as push_subset
from .subset_chunk import relax_chunk
from .subset_few import pull_few, relax_few
from .threshold import point_of, threshold

NODE = 1e300
"""A score divided by the temperature that stands for infinity."""


class Scores(NamedTuple):
    """Noisy scores in float64."""

    node: Float[Tensor, "*shape n"]
    """The scores divided by the temperature."""
    chosen: Bool[Tensor, "*shape n"]
    """Which scores are positive: exactly k."""
    noise: Float[Tensor, "*shape n"]
    """The scores minus the centred logits."""


def location(logits: Float[Tensor, "*batch n"], k: int) -> Float[Tensor, "*batch n"]:
    """Return the centres of the scores: logits whose sigmoids sum to k, in float64."""
    if 0 < k < logits.shape[-1]:
        return to_float64(logits) - threshold(to_float64(logits), k)
    return to_float64(logits)


def push(
    logits: Float[Tensor, "*batch n"], k: int, temperature: Temperature, noise: Float[Tensor, "*shape 2 n"]
) -> Scores:
    """Return the scores that noise leads to. Their gradient is that of logits plus constant noise."""
    return _scored(logits, k, temperature, noise, push_subset(logits, k, noise) > 0.5)


def _scored(logits: Tensor, k: int, temperature: Temperature, noise: Tensor, chosen: Tensor) -> Scores:
    """Return the scores of given subsets."""
    centred = location(logits, k)
    with torch.no_grad():
        scores = _scores(centred, torch.where(chosen, 1.0, -1.0), noise)
    moved = scores + (centred - centred.detach())
    limit = torch.where(chosen, math.inf, -math.inf)
    node = divide(moved, over_categories(temperature), lambda _: limit)
    return Scores(node, chosen, scores - centred.detach())


def _scores(centred: Tensor, sign: Tensor, noise: Tensor) -> Tensor:
    """Return scores with these signs, by the inverse CDF of a logistic variable above zero, without cancellation."""
    fraction = to_float64(noise[..., 1, :])
    return (softplus(sign * centred + torch.log1p(-fraction)) - fraction.log()) * sign


def draw(
    logits: Float[Tensor, "*batch n"], k: int, temperature: Temperature, noise: Float[Tensor, "*shape 2 n"]
) -> Float[Tensor, "*shape n"]:
    """Return the values that noise leads to: `squash` of `push`, as one autograd node if possible."""
    if relax.runs_kernel(logits, None, noise, k) and is_one_number(temperature):
        (rows, uniform), shape = in_rows(logits, noise)
        relaxed: Tensor = relax.launched(rows, of_member(logits, temperature), uniform, k)[0]
        return relaxed.view(shape)
    few = draw_few(logits, k, temperature, noise)
    if few is not None:
        return few
    if _is_one_node(temperature, logits, k):
        value: Tensor = plain_apply(_Draw)(logits, k, temperature, noise, None)
        return value
    return squash(push(logits, k, temperature, noise), k, temperature, logits.dtype)


def draw_few(
    logits: Float[Tensor, "*batch n"], k: int, temperature: Temperature, noise: Float[Tensor, "*shape 2 n"]
) -> Float[Tensor, "*shape n"] | None:
    """Return what `draw` does if there are few subsets, else None. It is also None if a logit is not finite."""
    is_traced = torch._C._get_tracing_state() is not None
    if is_traced or not (_is_one_node(temperature, logits, k) and are_few(logits, k)):
        return None
    few = relax_few(logits, noise, k, temperature)
    return None if few is None else plain_apply(_Draw)(logits, k, temperature, noise, few)


def _is_one_node(temperature: Temperature, logits: Tensor, k: int) -> TypeGuard[float]:
    """Return whether values can be computed as one autograd node."""
    is_relaxed = isinstance(temperature, float) and temperature > 0 and 0 < k < logits.shape[-1]
    return is_relaxed and is_recorded(logits)


@operator(
    "subset_relax",
    kernel="subset_concrete",
    eligible=lambda logits, temperature, noise, k: fits_kernel(logits, k),
    nondifferentiable=(1,),
    saved=(1,),
)
def relax(
    logits: Float[Tensor, "members units n"],
    temperature: Float[Tensor, " members"],
    noise: Float[Tensor, "members samples units 2 n"],
    k: int,
) -> tuple[Float[Tensor, "members samples units n"], Float[Tensor, "members samples units n"]]:
    """Return the values that noise leads to, and in float32 their derivatives by their own nodes.

    The temperatures have no gradient.
    """
    chosen = choose.definition(logits, noise, k) > 0.5
    own = logits.unsqueeze(1).expand(chosen.shape)
    warm = temperature.view(-1, 1, 1)
    scores = _scored(own, k, warm, noise, chosen)
    value = squash(scores, k, warm, logits.dtype)
    with torch.no_grad():
        node = scores.node.clamp(-NODE, NODE)  # infinite at temperature zero
        node = node - threshold(node, k)
        slope = torch.sigmoid(node) * torch.sigmoid(-node)
    return value, slope.float()


class _Draw(torch.autograd.Function):
    """Values made from noise, as one autograd node.

    A common shift of all scores does not change the values, so no gradient passes through the location.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, k: int, temperature: float, noise: Tensor, few: tuple[Tensor, ...] | None
    ) -> Tensor:
        ctx.k, ctx.temperature, ctx.is_few = k, temperature, few is not None
        drawn = few or _draw_many(logits, k, temperature, noise) or _draw_any(logits, k, temperature, noise)
        slope, total, value = drawn
        ctx.save_for_backward(logits, noise, slope, total)
        return value

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, noise, slope, total = ctx.saved_tensors
        if torch.is_grad_enabled():
            value = squash(push(logits, ctx.k, ctx.temperature, noise), ctx.k, ctx.temperature, logits.dtype)
            (gradient,) = torch.autograd.grad(value, logits, by[0], create_graph=True)
            return gradient, None, None, None, None
        if ctx.is_few and is_plain(by):
            return pull_few(slope, total, by[0]), None, None, None, None
        pulled = slope * by[0]
        pulled = pulled.addcmul_(slope, pulled.sum(-1, keepdim=True).div_(total), value=-1)
        return cast(pulled.sum_to_size(logits.shape), logits.dtype), None, None, None, None


def _draw_any(logits: Tensor, k: int, temperature: float, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return derivatives of values by the logits at a constant threshold, their sums, and the values."""
    sign = push_subset(logits, k, noise).double().mul_(2).sub_(1)
    wide = to_float64(logits)
    node = _scores(wide - point_of(wide, k), sign, noise).div_(temperature)
    node = node - point_of(node, k)
    value = torch.sigmoid(node)
    slope = torch.sigmoid(-node).mul_(value).div_(temperature)
    return slope, _total(slope), _ordered(cast(value, logits.dtype), sign > 0)


def _total(slope: Tensor) -> Tensor:
    """Return the sums of derivatives, which may all be too small for floats."""
    return slope.sum(-1, keepdim=True).clamp_(min=torch.finfo(slope.dtype).tiny)


def _draw_many(logits: Tensor, k: int, temperature: float, noise: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return what `_draw_any` does, for some rows of many on a CPU at a time, or None."""
    if not are_many(logits, noise) or are_few(logits, k):
        return None
    ((rows,), (uniform,)), shape = in_rows(logits, noise)
    slope, value = (rows.new_empty(shape, dtype=dtype) for dtype in (compute_dtype(logits.dtype), logits.dtype))
    slopes, values = (tensor.view(len(uniform), *rows.shape) for tensor in (slope, value))
    for part in chunks(values):
        given, into = (rows[part], uniform[:, part]), (slopes[:, part], values[:, part])
        if not relax_chunk(*given, k, temperature, slope=into[0], value=into[1]):
            own_slope, _, own_value = _draw_any(given[0], k, temperature, given[1])
            into[0].copy_(own_slope)
            into[1].copy_(own_value)
    return slope, _total(slope), value


def squash(scores: Scores, k: int, temperature: Temperature, dtype: torch.dtype) -> Float[Tensor, "*shape n"]:
    """Return the values σ(node - c), with the c for which they sum to k. At temperature zero they are 0 and 1."""
    node, chosen, _ = scores
    if not 0 < k < node.shape[-1] or (not isinstance(temperature, Tensor) and temperature == 0):
        return chosen.to(dtype) + (0 * node.clamp(-1, 1)).to(dtype)
    finite = torch.where(node.isinf(), torch.where(chosen, 1.0, -1.0), node)
    value = torch.where(node.isinf(), chosen.to(node.dtype), logsigmoid(finite - threshold(finite, k)).exp())
    return round_in_order(value, chosen, dtype)


def round_in_order(
    value: Float[Tensor, "*shape n"], chosen: Bool[Tensor, "*shape n"], dtype: torch.dtype
) -> Float[Tensor, "*shape n"]:
    """Round values to a dtype so that those of chosen items stay larger than all others."""
    narrow = cast(value, dtype)
    return narrow + (_ordered(narrow.detach(), chosen) - narrow).detach()


def _ordered(narrow: Tensor, chosen: Tensor) -> Tensor:
    """Lower values that are not smaller than those of all chosen items, by rounding, to the next smaller number."""
    lowest = to_float64(torch.where(chosen, narrow, math.inf).amin(-1, keepdim=True))
    below = cast(lowest * (1 - 0.75 * torch.finfo(narrow.dtype).eps), narrow.dtype)
    return torch.where(chosen, narrow, torch.minimum(narrow, below))


def log_density(
    node: Float[Tensor, "*shape n"], logits: Float[Tensor, "*batch n"], k: int, temperature: Temperature
) -> Float[Tensor, "*out"]:
    """Return the log density of scores, divided by the temperature, in float64. It is -∞ unless k are positive."""
    centred = location(logits, k)
    noise = over_categories(temperature) * to_float64(node) - centred
    density = log_density_of_noise(noise, centred, k, temperature)
    return torch.where((~node.signbit()).sum(-1) == k, density, -math.inf)


def log_density_of_noise(
    noise: Float[Tensor, "*shape n"], centred: Float[Tensor, "*batch n"], k: int, temperature: Temperature
) -> Float[Tensor, "*out"]:
    """Return the log density of the scores with this noise, given their `location`, in float64."""
    own = standard_log_density(noise.clone()).sum(-1) + noise.shape[-1] * log_temperature(temperature, noise)
    return own - log_probability(centred, k)
