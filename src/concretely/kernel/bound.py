"""The multi-sample bound and the loss, each in one pass, and their gradients in another."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launched
from .layout import by_sample, laid, rows
from .tile import ceil_div, power
from .vimco import vimco

BLOCK = 64
SAMPLES, TILE = 16, 2048
"""The maximum numbers of samples and of log-weights that a program reads at once."""


@triton.jit
def _larger(one, other):
    return tl.maximum(one, other, tl.PropagateNan.ALL)


@triton.jit
def _joined(largest, total, entries):
    """Merge entries into a running log-sum-exp: return the new maximum m and the sum of exp(log_w - m)."""
    larger = _larger(largest, tl.reduce(entries, 0, _larger))
    # a weight of zero adds nothing, also where all weights are zero
    anchor = tl.where(larger == float("-inf"), 0.0, larger)
    return larger, total * tl.exp(largest - anchor) + tl.sum(tl.exp(entries - anchor[None, :]), 0)


@triton.jit
def _mean(largest, total, samples):
    """Return the log of the mean weight, from the maximum and the sum of a running log-sum-exp."""
    return tl.where(total > 0, largest + tl.log(total / samples), largest)


@Launched
def _bound(log_w, out, samples, batch, stride, SAMPLES: tl.constexpr, POINTS: tl.constexpr):
    member = tl.program_id(1).to(tl.int64)
    point = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    largest, total = tl.full((POINTS,), float("-inf"), tl.float32), tl.zeros((POINTS,), tl.float32)
    for start in range(0, samples, SAMPLES):
        sample = start + tl.arange(0, SAMPLES)[:, None]
        mask = (sample < samples) & (point < batch)[None, :]
        entries = tl.load(log_w + member * stride + sample * batch + point[None, :], mask=mask, other=float("-inf"))
        largest, total = _joined(largest, total, entries)
    tl.store(out + member * batch + point, _mean(largest, total, samples), mask=point < batch)


def bound(log_w: Tensor, axis: int = 1) -> Tensor:
    """Return the logarithm of the mean weight over samples."""
    members, samples, batch = log_w.shape
    out = log_w.new_empty(members, batch, dtype=torch.float32)
    log_w = rows(log_w)
    if out.numel():
        high = min(power(samples), SAMPLES)
        _bound[ceil_div(batch, BLOCK), members](
            log_w, out, samples, batch, log_w.stride(0), SAMPLES=high, POINTS=BLOCK, num_warps=max(1, high // 4)
        )
    return out


@triton.jit
def _placed(batch, BLOCK: tl.constexpr):
    """Return the member, the sample and the data points of a program."""
    blocks = tl.cdiv(batch, BLOCK)
    place = tl.program_id(0)
    return tl.program_id(1).to(tl.int64), place // blocks, place % blocks * BLOCK + tl.arange(0, BLOCK)


@Launched
def _backward(by, log_w, bound, out, samples, batch, by_stride, by_step, stride, BLOCK: tl.constexpr):
    member, sample, point = _placed(batch, BLOCK)
    mask = point < batch
    slope = tl.load(by + member * by_stride + point * by_step, mask=mask, other=0.0)
    whole = tl.load(bound + member * batch + point, mask=mask, other=0.0)
    entry = tl.load(log_w + member * stride + sample * batch + point, mask=mask, other=0.0)
    share = tl.exp(entry - whole) / samples
    tl.store(out + (member * samples + sample) * batch + point, slope * share, mask=mask)


def bound_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Tensor]:
    """Return the gradient of the log-weights: that of the bound times the share of each weight in the sum."""
    (by,), (log_w, _), (bound,) = by, inputs, outputs
    members, samples, batch = log_w.shape
    out = log_w.new_empty(members, samples, batch, dtype=torch.float32)
    log_w = rows(log_w)
    if out.numel():
        _backward[samples * ceil_div(batch, BLOCK), members](
            by, log_w, bound.contiguous(), out, samples, batch, *by.stride(), log_w.stride(0), BLOCK=BLOCK
        )
    return (out,)


@triton.jit
def _sum_of(terms, strides, member, at, mask):
    """Return the sum of terms."""
    total = tl.load(terms[0] + member * strides[0] + at, mask=mask, other=0.0)
    for t in tl.static_range(1, len(strides)):
        total += tl.load(terms[t] + member * strides[t] + at, mask=mask, other=0.0)
    return total


@Launched
def _loss(
    log_p, log_q, p_strides, q_strides, out, bounds, log_w, signal, samples, batch, parts,
    AVERAGES: tl.constexpr, SIGNAL: tl.constexpr, SAMPLES: tl.constexpr, POINTS: tl.constexpr,
):  # fmt: skip
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    point = part * POINTS + tl.arange(0, POINTS)
    log_w += member * samples * batch
    signal += member * samples * batch
    largest, total = tl.full((POINTS,), float("-inf"), tl.float32), tl.zeros((POINTS,), tl.float32)
    for start in range(0, samples, SAMPLES):
        sample = start + tl.arange(0, SAMPLES)[:, None]
        at, mask = sample * batch + point[None, :], (sample < samples) & (point < batch)[None, :]
        entries = _sum_of(log_p, p_strides, member, at, mask) - _sum_of(log_q, q_strides, member, at, mask)
        tl.store(log_w + at, entries, mask=mask)
        if AVERAGES:
            total += tl.sum(tl.where(mask, entries, 0.0), 0)
        else:
            largest, total = _joined(largest, total, tl.where(mask, entries, float("-inf")))
    objective = total / samples if AVERAGES else _mean(largest, total, samples)
    tl.store(bounds + member * batch + point, objective, mask=point < batch)
    tl.store(out + member * parts + part, -tl.sum(tl.where(point < batch, objective, 0.0), 0) / batch)
    for start in range(0, samples if SIGNAL != "none" else 0, SAMPLES):
        sample = start + tl.arange(0, SAMPLES)[:, None]
        at, mask = sample * batch + point[None, :], (sample < samples) & (point < batch)[None, :]
        entries = _sum_of(log_p, p_strides, member, at, mask) - _sum_of(log_q, q_strides, member, at, mask)
        if SIGNAL == "leave-one-out":
            own = (entries - objective[None, :]) / (samples - 1)
        else:
            own = entries / samples if AVERAGES else tl.broadcast_to(objective[None, :], (SAMPLES, POINTS))
        tl.store(signal + at, own, mask=mask)


def loss(
    log_p: list[Tensor],
    log_q: list[Tensor],
    signal: list[Tensor],
    baseline: list[Tensor],
    averages: bool,
    axis: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return minus the mean of the bounds over data points, the bounds, and the log-weights."""
    return _losses(log_p, log_q, averages, "none", axis)[:3]


def score_function_loss(
    log_p: list[Tensor], log_q: list[Tensor], method: str, averages: bool, axis: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the results of `loss`, and the signal, which follows from the log-weights."""
    if method in ("geometric", "arithmetic"):
        results = _losses(log_p, log_q, averages, "none", axis)
        return *results[:3], vimco(results[2], method, axis)
    return _losses(log_p, log_q, averages, method, axis)


def _losses(
    log_p: list[Tensor], log_q: list[Tensor], averages: bool, method: str, axis: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss, the bounds, the log-weights, and the signal of a method or, for "none", no memory of its own."""
    shape = log_p[0].shape
    members, samples, batch = by_sample(shape, axis)
    high = min(power(samples), SAMPLES)
    wide = min(power(batch), TILE // high)
    parts = ceil_div(batch, wide)
    log_w = log_p[0].new_empty(*shape, dtype=torch.float32)
    bounds = log_w.new_empty(*shape[:axis], *shape[axis + 1 :])
    out = log_w.new_empty(shape[:axis] if parts == 1 else (*shape[:axis], parts))
    signal = log_w if method == "none" else torch.empty_like(log_w)
    (added, p_strides), (subtracted, q_strides) = laid(log_p, axis), laid(log_q, axis)
    _loss[parts, members](
        added, subtracted, p_strides, q_strides, out, bounds, log_w, signal, samples, batch, parts,
        AVERAGES=averages, SIGNAL=method, SAMPLES=high, POINTS=wide, num_warps=max(1, min(high * wide // 128, 8)),
    )  # fmt: skip
    return out if parts == 1 else out.sum(-1), bounds, log_w, signal


@Launched
def _loss_backward(
    by, log_w, bound, signal, strides, added, subtracted, samples, batch, by_stride,
    AVERAGES: tl.constexpr, HAS_SIGNAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member, sample, point = _placed(batch, BLOCK)
    mask = point < batch
    place = sample * batch + point
    at = member * samples * batch + place
    scale = tl.load(by + member * by_stride) / -batch
    if AVERAGES:
        slope = tl.full((BLOCK,), 1.0, tl.float32) * scale / samples
    else:
        whole = tl.load(bound + member * batch + point, mask=mask, other=0.0)
        slope = scale * (tl.exp(tl.load(log_w + at, mask=mask, other=0.0) - whole) / samples)
    tl.store(added + at, slope, mask=mask)
    for t in tl.static_range(len(strides)):
        if HAS_SIGNAL:
            gradient = scale * tl.load(signal[t] + member * strides[t] + place, mask=mask, other=0.0)
            gradient = gradient if AVERAGES else gradient - slope
        else:
            gradient = -slope
        tl.store(subtracted[t] + at, gradient, mask=mask)


def loss_backward(
    by: Any, needs: Any, inputs: Any, outputs: Any
) -> tuple[list[Tensor], list[Tensor], None, list[Tensor]]:
    """Return the gradients of the terms of log p, of the terms of log q, and of the baselines.

    The gradient of a baseline is that of its term.
    """
    (log_p, log_q, signal, baseline, averages, axis), (_, bound, log_w) = inputs, outputs
    by_p, by_q = _gradients(by[0], bound, log_w, signal, averages, axis)
    by_q = by_q if signal else by_q * len(log_q)
    return [by_p] * len(log_p), by_q, None, by_q[: len(baseline)]


def score_function_loss_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of the terms of log p and of the terms of log q, which have the same signal."""
    (log_p, log_q, _, averages, axis), (_, bound, log_w, signal) = inputs, outputs
    by_p, by_q = _gradients(by[0], bound, log_w, [signal], averages, axis)
    return [by_p] * len(log_p), by_q * len(log_q)


def _gradients(
    by: Tensor, bound: Tensor, log_w: Tensor, signal: list[Tensor], averages: bool, axis: int
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradient of all terms of log p, and of the term of log q with each signal, or of all without any.

    A term with a signal also gets minus the signal; with `averages` it gets only that.
    """
    (members, samples, batch), log_w = by_sample(log_w.shape, axis), log_w.contiguous()
    (by,), (by_stride,) = laid([by], axis)
    given, strides = laid(signal or [log_w], axis)
    added, *subtracted = [torch.empty_like(log_w) for _ in (log_w, *given)]
    _loss_backward[samples * ceil_div(batch, BLOCK), members](
        by, log_w, bound.contiguous(), given, strides, added, tuple(subtracted), samples, batch, by_stride,
        AVERAGES=averages, HAS_SIGNAL=bool(signal), BLOCK=BLOCK,
    )  # fmt: skip
    return added, subtracted
