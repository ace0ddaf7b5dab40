"""The relaxation of a subset: noisy scores, of which exactly k are positive, and a threshold that keeps their sum at k.

Let each item have a score with a logistic law around its centred logit. Given that exactly k scores are positive, the
positive ones are a draw of the conditional Bernoulli law. So a subset is drawn first, then scores with these signs.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ..kernel.operator import operator
from .arithmetic import Temperature, cast, compute_dtype, divide, log_temperature, over_categories, to_float64
from .draw import is_one_number, is_recorded, of_member
from .logistic import standard_log_density
from .subset import are_few, are_many, choose, chunks, fits_kernel, in_rows, log_probability, states_of
from .subset import push as push_subset
from .subset_chunk import relax_chunk
from .threshold import FEW, point_of, solve_few, solve_rough, threshold

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
    is_relaxed = isinstance(temperature, float) and temperature > 0 and 0 < k < logits.shape[-1]
    if is_relaxed and is_recorded(logits):
        value: Tensor = _Draw.apply(logits, k, temperature, noise)  # type: ignore[no-untyped-call]
        return value
    return squash(push(logits, k, temperature, noise), k, temperature, logits.dtype)


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
    def forward(ctx: Any, logits: Tensor, k: int, temperature: float, noise: Tensor) -> Tensor:
        ctx.k, ctx.temperature = k, temperature
        found = _draw_few(logits, k, temperature, noise) or _draw_many(logits, k, temperature, noise)
        slope, value = found or _draw_any(logits, k, temperature, noise)
        ctx.save_for_backward(logits, noise, slope)
        return value

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor, None, None, None]:
        logits, noise, slope = ctx.saved_tensors
        if torch.is_grad_enabled():
            value = squash(push(logits, ctx.k, ctx.temperature, noise), ctx.k, ctx.temperature, logits.dtype)
            (gradient,) = torch.autograd.grad(value, logits, by[0], create_graph=True)
            return gradient, None, None, None
        tiny = torch.finfo(slope.dtype).tiny  # all slopes may be too small for floats
        pulled = slope * by[0]
        common = pulled.sum(-1, keepdim=True).div_(slope.sum(-1, keepdim=True).clamp_(min=tiny))
        pulled = pulled.addcmul_(slope, common, value=-1)
        return cast(pulled.sum_to_size(logits.shape), logits.dtype), None, None, None


def _draw_any(logits: Tensor, k: int, temperature: float, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivatives of values by the logits, without those of the threshold, and the values."""
    sign = push_subset(logits, k, noise).double().mul_(2).sub_(1)
    wide = to_float64(logits)
    node = _scores(wide - point_of(wide, k), sign, noise).div_(temperature)
    node = node - point_of(node, k)
    value = torch.sigmoid(node)
    slope = torch.sigmoid(-node).mul_(value).div_(temperature)
    return slope, _ordered(cast(value, logits.dtype), sign > 0)


def _draw_many(logits: Tensor, k: int, temperature: float, noise: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return what `_draw_any` does, for some rows of many on a CPU at a time, or None."""
    if not are_many(logits, noise) or are_few(logits, k):
        return None
    ((rows,), (uniform,)), shape = in_rows(logits, noise)
    slope, value = (rows.new_empty(shape, dtype=dtype) for dtype in (compute_dtype(logits.dtype), logits.dtype))
    slopes, values = (each.view(len(uniform), *rows.shape) for each in (slope, value))
    for part in chunks(values):
        given, into = (rows[part], uniform[:, part]), (slopes[:, part], values[:, part])
        if not relax_chunk(*given, k, temperature, slope=into[0], value=into[1]):
            for own, found in zip(into, _draw_any(given[0], k, temperature, given[1]), strict=True):
                own.copy_(found)
    return slope, value


def _draw_few(logits: Tensor, k: int, temperature: float, noise: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return what `_draw_any` does, by numpy: for few numbers this is several times faster.

    Return None unless there are few subsets on the CPU, a draw for each, and logits that are not too far apart. Arrays
    have a column for each row of logits, as operations along their first axis are fast.
    """
    is_wide = logits.dtype in (torch.float32, torch.float64)
    is_one = noise.shape[:-2] == logits.shape[:-1] and 0 < logits.numel() <= FEW
    if not (is_wide and is_one and are_few(logits, k)):
        return None
    dtype, n = (np.float32 if logits.dtype == torch.float32 else np.float64), logits.shape[-1]
    states = states_of(logits, k).numpy()
    own = np.array(logits.numpy().reshape(-1, n).T, np.float64, order="C")  # a copy, which is changed below
    uniform = noise.numpy().reshape(-1, 2, n)
    centre = _solve_columns(own, k, dtype)
    if centre is None:
        return None
    own -= centre
    chosen = states.take(_select(states @ own, uniform[:, 0, 0]), 0).T
    sign = 2 * chosen - 1
    own *= sign
    fraction = uniform[:, 1].T.astype(np.float64, "C")
    # softplus(own + log(1 - u)) - log u, the score without its sign
    node = np.log1p(np.exp(own) * (1 - fraction)) - np.log(fraction)
    node *= sign / temperature
    point = _solve_columns(node, k, dtype)
    if point is None:
        return None
    small = np.exp(point - node)
    value = 1 / (1 + small)
    small *= value * value / temperature
    rounded = value.astype(dtype)
    lowest = np.where(chosen, rounded, np.inf).min(0).astype(dtype)
    others = np.minimum(rounded, np.nextafter(lowest, dtype(0)))
    result = np.ascontiguousarray(np.where(chosen, rounded, others).T)
    return torch.from_numpy(small.T).reshape(logits.shape), torch.from_numpy(result).view(logits.shape)


def _select(log_mass: Any, choice: Any) -> Any:
    """Return the row that a fraction selects in each column by the inverse CDF: first a block of rows, then a row.

    Numpy takes several times as long to add up all rows.
    """
    rows, columns = log_mass.shape
    size = math.isqrt(rows - 1) + 1
    mass = np.zeros((size, size, columns))
    np.exp(log_mass - log_mass.max(0), out=mass.reshape(size * size, columns)[:rows])
    lower = np.tri(size)
    total = lower @ mass.sum(1)
    goal = choice * total[-1]
    block = np.minimum(np.count_nonzero(total < goal, 0), (rows - 1) // size)
    own = np.arange(columns)
    inside = lower @ mass[block, :, own].T
    goal -= total[block, own] - inside[-1]
    return np.minimum(block * size + np.count_nonzero(inside < goal, 0), rows - 1)


def _solve_columns(columns: Any, k: int, dtype: Any) -> Any:
    """Return the thresholds of columns, or None."""
    rough = solve_rough(columns, k) if dtype is np.float32 else None
    return solve_few(columns.T, k) if rough is None else rough


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
