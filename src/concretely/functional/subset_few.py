"""Relaxed draws of few subsets on a CPU by numpy, which for few numbers takes a fraction of the time of torch.

This computes what `subset_concrete` defines. Arrays have a column for each row of logits, as operations along their
first axis are fast. Sums over items are products with a matrix, which take half the time of numpy's sums.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .threshold import FEW, STEPS

LEAST = 1e-50
"""Odds relative to the first item below which products of few of them may be too small for floats."""
FAR, COLDEST = 1e6, 1e-3
"""A number beyond all nodes, for temperatures that are at least the second."""
APART = 2.0**-18
"""If the k largest nodes are further apart from the others than this times k + 1, values in float32 are in order. As
their sum is k, the largest of the others is at most k/(k+1), and differs from the next by this share at least."""
FLAT = {np.float32: 1e-7, np.float64: 1e-2}
"""The least slope of a sum of values with which its argument is precise, when all are computed in float64."""
CLOSE = {np.float32: 2.0**-13, np.float64: 2.0**-26}
"""The last step of Newton's method. Its error is about the square."""
HALLEY = np.array([[1.0, 0.0, 0.0], [1.0, -1.0, 0.0], [0.5, -1.5, 1.0]])
"""What Halley's method needs of the sums of shares, of their squares and of their cubes."""


class _Sums(NamedTuple):
    """Matrices that sum rows of arrays with n rows, or of several such arrays below each other."""

    all: Any
    """The sum of all rows."""
    before: Any
    """The sums of the rows before each, and of all rows."""
    three: Any
    """The sums of three arrays."""
    halley: Any
    """What Halley's method needs of three arrays: shares, their squares, and their cubes."""
    newton: Any
    """What Newton's method needs of the first two."""
    single: Any
    """The first in float32."""


@lru_cache(maxsize=64)
def _sums_of(n: int) -> _Sums:
    ones = np.ones(n)
    halley = np.kron(HALLEY, ones)
    newton = halley[:2, : 2 * n].copy()
    return _Sums(ones, np.tri(n + 1, n, -1), np.kron(np.eye(3), ones), halley, newton, ones.astype(np.float32))


def relax_few(
    logits: Float[Tensor, "*batch n"], noise: Float[Tensor, "*shape 2 n"], k: int, temperature: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return derivatives of values by the logits at a constant threshold, their sums, and the values, on a CPU.

    Return None unless there are few draws, one for each row of logits, and where few steps do not suffice, as for
    logits that are far apart.
    """
    is_wide = logits.dtype in (torch.float32, torch.float64)
    is_one = noise.shape[:-2] == logits.shape[:-1] and 0 < logits.numel() <= FEW
    if not (is_wide and is_one and temperature >= COLDEST):
        return None
    with np.errstate(all="ignore"):
        arrays = _relax(logits.detach().numpy(), noise.detach().numpy(), k, temperature)
    if arrays is None:
        return None
    arrays = arrays if logits.dim() == 2 else [array.reshape(*logits.shape[:-1], -1) for array in arrays]
    slope, total, value = (torch.from_numpy(array) for array in arrays)
    return slope, total, value


def pull_few(slope: Tensor, total: Tensor, by: Tensor) -> Tensor:
    """Return the gradient of few logits from that of their values."""
    own, sums = slope.numpy(), _sums_of(slope.shape[-1])
    with np.errstate(all="ignore"):
        pulled = own * by.detach().numpy()
        common = np.dot(pulled, sums.single if own.dtype == np.float32 else sums.all)[..., None]
        pulled -= own * (common / total.numpy())
    return torch.from_numpy(pulled)


def _relax(logits: Any, noise: Any, k: int, temperature: float) -> Sequence[Any] | None:
    """Return the same in rows."""
    dtype, n = logits.dtype.type, logits.shape[-1]
    own = logits.reshape(-1, n).T.astype(np.float64, "C")
    own = own - own[:1] if 2 * k <= n else own[:1] - own  # of the items that are left out, if they are fewer
    number, columns, sums, close = min(k, n - k), own.shape[1], _sums_of(n), CLOSE[dtype]
    uniform, work, odds = noise.reshape(columns, 2 * n), np.empty((3 * n, columns)), np.exp(own)
    if not np.minimum.reduce(odds, None) > LEAST:  # also if a logit is minus infinity or NaN
        return None
    # the odds of all subsets of 1, 2, ... of the first items, and by how much each item adds to them
    growth, totals = [odds], []
    for _ in range(number):
        totals.append(np.dot(sums.before, growth[-1]))
        growth.append(odds * totals[-1][:-1])
    # from the scale at which one item less and one more are equally probable
    scale = np.sqrt(np.dot(sums.all, growth[-1]) / (totals[-2][-1] if number > 1 else 1.0))
    scale = _halley(odds, scale, number, sums, work)
    for _ in range(STEPS):
        share = np.divide(odds, odds + scale, out=work[:n])
        np.multiply(share, share, out=work[n : 2 * n])
        off, least = np.dot(sums.newton, work[: 2 * n])
        off -= number
        off /= least
        scale *= np.exp(off)
        if _is_within(off, close):
            break
    else:
        return None
    chosen = _select(odds, totals, uniform[:, 0], sums, work)
    if np.count_nonzero(chosen) != number * columns:  # by rounding
        return None
    # the size of a score is log(1 + ratio (1 - u)) - log u
    fraction, sign = uniform[:, n:].T.astype(np.float64, "C"), chosen
    sign *= 2
    sign -= 1
    own -= np.log(scale)
    own *= sign
    node = np.exp(own, out=own)
    node *= 1 - fraction
    node += 1
    node /= fraction
    np.log(node, out=node)
    sign *= 1 if 2 * k <= n else -1
    node *= sign
    node /= temperature
    # far apart, so that the smallest is that of a chosen item, and the largest that of another
    sign *= -FAR
    sign += node
    low, high = np.minimum.reduce(sign), np.maximum.reduce(sign)
    node -= 0.5 * (low + high)
    np.exp(node, out=node)
    point: Any = 1.0
    for _ in range(2 if dtype is np.float32 else 3):
        point = _halley(node, point, k, sums, work)
    value = node / (node + point)
    slope, off = value - value * value, np.dot(sums.all, value)
    off -= k
    off /= np.dot(sums.all, slope)
    value -= slope * off  # a last step of Newton's method
    slope = value - value * value
    total = np.dot(sums.all, slope)
    is_steep = np.minimum.reduce(np.minimum(least, total)) > FLAT[dtype]
    if not (is_steep and _is_within(off, close) and np.minimum.reduce(low - high) > APART * (k + 1) - 2 * FAR):
        return None
    slope /= temperature
    total /= temperature
    return slope.T.astype(dtype, "C"), total.astype(dtype)[:, None], value.T.astype(dtype, "C")


def _is_within(steps: Any, limit: float) -> bool:
    """Return whether all steps are numbers up to a limit. Their sum of squares takes less time than their maximum."""
    return bool(np.dot(steps, steps) <= limit * limit or np.abs(steps).max() <= limit)


def _halley(odds: Any, scale: Any, k: int, sums: _Sums, work: Any) -> Any:
    """Return a better scale, for which Σ odds / (odds + scale) is k."""
    n = len(odds)
    share, square = work[:n], work[n : 2 * n]
    np.divide(odds, odds + scale, out=share)
    np.multiply(share, share, out=square)
    np.multiply(square, share, out=work[2 * n :])
    off, slope, bend = np.dot(sums.halley, work)
    off -= k
    return scale * np.exp(off * slope / (slope * slope - off * bend))


def _select(odds: Any, totals: list[Any], choice: Any, sums: _Sums, work: Any) -> Any:
    """Return the subset that a fraction selects in each column as ones, by the inverse CDF.

    Subsets are in the order of `states_of`. The last item is that at which the odds of subsets exceed the fraction, and
    what remains selects the item before it.
    """
    n, columns = odds.shape
    chosen, is_before, goal = None, np.empty((n + 1, columns)), choice * totals[-1][-1]
    is_before[0] = 1
    for last in range(len(totals) - 1, -1, -1):
        np.less(totals[last][1:], goal, out=is_before[1:])
        here = is_before[:-1] - is_before[1:]
        if last:
            np.multiply(totals[last][:-1], here, out=work[:n])
            np.multiply(odds, here, out=work[n : 2 * n])
            np.multiply(totals[last - 1][:-1], here, out=work[2 * n :])
            before, own, most = np.dot(sums.three, work)  # entries of these arrays, without rounding
            goal = np.minimum((goal - before) / own, most)
        chosen = here if chosen is None else np.add(chosen, here, out=chosen)
    return chosen
