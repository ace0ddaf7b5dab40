"""Draws and scores of ExpConcrete variables in one pass each, and their gradients, with Gumbel or normal noise.

A node is here the unbounded variable before squashing.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import category as nary
from .launch import Launched
from .layout import partial_sums, row_sums, rows, sum_parts
from .native import LARGEST_BELOW_ONE, NATIVE, SMALLEST, exp, log, precise_log, reciprocal, whole_difference
from .philox import drawing, fraction, normal, parts_of, quarter, words_beside
from .row import point_of
from .tile import draw_tile, score_tile, unit_tile


@triton.jit
def log_of_mean(total, N: tl.constexpr):
    """Return the logarithm of the mean of N numbers, from their sum."""
    return log(total * (1 / N)) if N <= 16 else precise_log(total * (1 / N))


@triton.jit
def exponential(word):
    """Return standard exponential noise, exp(-g) for Gumbel noise g, from the upper tail probability of g."""
    tail = fraction(word, False) * LARGEST_BELOW_ONE  # since the largest fraction was rounded to 1
    # up to one half by the series of 2 artanh t / (2 - t), in which small terms are not lost
    ratio = tail * reciprocal(2 - tail)
    s = ratio * ratio
    series = (((0.28178334 * s + 0.27960601) * s + 0.40024909) * s + 0.66666317) * s + 2
    return tl.where(tail < 0.5, series * ratio, -log(1 - tail))


@triton.jit
def deviation(noise, category, N: tl.constexpr, WIDTH: tl.constexpr):
    """Return noise minus its mean over the categories, with 0 past the last category."""
    if WIDTH > N:
        noise = tl.where(category < N, noise, 0.0)
    apart = noise - tl.sum(noise, -1, keep_dims=True) * (1 / N)
    return tl.where(category < N, apart, 0.0) if WIDTH > N else apart


@drawing
def _draw(
    logits, temperature, key, nonce, node, value, log_density,
    constant, total, units, quarter, logits_stride, temperature_stride,
    N: tl.constexpr, SHARED: tl.constexpr, SQUASH: tl.constexpr, BITS: tl.constexpr, LENGTH: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, NORMAL: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    category = tl.arange(0, WIDTH)[None, :]
    lam = tl.load(temperature + member * temperature_stride).to(tl.float32)
    cold = 1 / lam
    constant += (N - 1) * tl.log(lam)
    sums = tl.zeros((4,), tl.float32)
    for offset in range(0, LENGTH, ROWS):
        place = nary.placed(offset, quarter, LENGTH, ROWS)
        held = nary.load_four(logits + member * logits_stride, place, total, units, quarter, N, SHARED, WIDTH)
        four = words_beside(held[0], key, member, place.to(tl.int64)[:, None] * N + category, nonce)
        for k in tl.static_range(4):
            row = k * quarter + place
            inside = (place < quarter) & (row < total)
            mask = inside[:, None] & (category < N)
            logit = held[k]
            if NORMAL:
                noise = normal(four[k])
                apart = deviation(noise, category, N, WIDTH)
                score = constant - tl.sum(apart * apart, 1) / 2
            else:
                wait = exponential(four[k])
                noise = -log(wait)
                if WIDTH > N:
                    wait = tl.where(category < N, wait, 0.0)
                    noise = tl.where(category < N, noise, 0.0)
                score = constant - tl.sum(noise, 1) - N * log_of_mean(tl.sum(wait, 1), N)
            noisy = logit - tl.max(logit, 1)[:, None] + noise
            scaled = (noisy - tl.max(noisy, 1)[:, None]) * cold
            share = exp(scaled)
            total_share = tl.sum(share, 1)
            log_value = scaled - log(total_share)[:, None]
            row = member * total + row
            at = row[:, None] * N + category
            tl.store(node + at, log_value, mask=mask)
            if LENGTH == 1:
                tl.store(log_density + row, score, mask=inside)
            else:
                sums += nary.in_quarter(k, tl.sum(tl.where(inside, score, 0.0), 0))
            if SQUASH == "simplex":
                point = tl.minimum(tl.maximum(exp(log_value), SMALLEST), 1.0)
                tl.store(value + at, tl.where(log_value == float("-inf"), 0.0, point), mask=mask)  # 0 is a limit
            if SQUASH == "one-hot":
                largest = category == tl.argmax(scaled, 1)[:, None]
                tl.store(value + at, largest.to(tl.float32), mask=mask)
            if SQUASH == "cube":
                share *= reciprocal(total_share)[:, None]
                for bit in tl.static_range(BITS):
                    point = tl.sum(share * nary.sign(category, bit, BITS), 1)
                    tl.store(value + row * BITS + bit, tl.minimum(tl.maximum(point, -1.0), 1.0), mask=inside)
    if LENGTH > 1:
        nary.store_rows(log_density, member, sums)


def _drawn(
    logits: Tensor,
    temperature: Tensor,
    key: Tensor | tuple[int, int],
    samples: int,
    squash: str,
    length: int = 1,
    *,
    normal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes, their squashed values, and log densities summed over rows of `length` units."""
    members, units, n = logits.shape
    node = logits.new_empty(members, samples, units, n, dtype=torch.float32)
    total, logits = samples * units, rows(logits)
    tile = draw_tile(members, total, n, length)
    value = node.new_empty(value_shape(node.shape, squash))
    log_density = node.new_empty(members, samples, units // tile.length)
    if node.numel():
        _draw[tile.programs, members](
            logits, temperature, *parts_of(key), node, value, log_density,
            constant(n, normal), total, units, quarter(total), logits.stride(0), temperature.stride(0),
            N=n, SHARED=samples > 1, SQUASH=squash, BITS=n.bit_length() - 1,
            LENGTH=tile.length, ROWS=tile.units, WIDTH=tile.width, NORMAL=normal, num_warps=tile.warps,
        )  # fmt: skip
    return node, value, row_sums(log_density, length // tile.length)


draw, draw_gaussian = partial(_drawn, normal=False), partial(_drawn, normal=True)


def constant(n: int, normal: bool) -> float:
    """Return the part of the log density at temperature 1 that does not depend on the noise."""
    if normal:
        return -((n - 1) * math.log(2 * math.pi) + math.log(n)) / 2
    return math.lgamma(n) - n * math.log(n)  # the part that depends on the noise is a logarithm of a mean


def value_shape(node: Sequence[int], squash: str) -> tuple[int, ...]:
    """Return the shape of the squashed values of nodes, which is empty without squashing."""
    if squash == "none":
        return node[0], 0
    return (*node[:-1], int(node[-1]).bit_length() - 1) if squash == "cube" else tuple(node)


@Launched
def _draw_backward(
    by_node, by_value, node, temperature, by_logits,
    samples, units, steps, node_stride, value_stride, temperature_stride,
    N: tl.constexpr, NODE: tl.constexpr, VALUE: tl.constexpr, SQUASH: tl.constexpr, BITS: tl.constexpr,
    SAMPLES: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)[None, :]
    sample = tl.program_id(1) * steps * SAMPLES + tl.arange(0, SAMPLES)[:, None]
    category = tl.arange(0, WIDTH)[None, None, :]
    total = tl.zeros((SAMPLES, UNITS, WIDTH), tl.float32)
    for _ in range(steps):
        row = sample.to(tl.int64) * units + unit
        inside = (unit < units) & (sample < samples)
        at = row[:, :, None] * N + category
        mask = inside[:, :, None] & (category < N)
        start = node + member * samples * units * N
        share = exp(tl.load(start + at, mask=mask, other=float("-inf")))
        by = tl.zeros((SAMPLES, UNITS, WIDTH), tl.float32)
        if NODE:
            by += tl.load(by_node + member * node_stride + at, mask=mask, other=0.0).to(tl.float32)
        if VALUE:
            if SQUASH == "cube":
                slope = tl.zeros((SAMPLES, UNITS, WIDTH), tl.float32)
                for bit in tl.static_range(BITS):
                    by_bit = tl.load(by_value + member * value_stride + row * BITS + bit, mask=inside, other=0.0)
                    slope += by_bit.to(tl.float32)[:, :, None] * nary.sign(category, bit, BITS)
                by += slope * share
            else:
                by += tl.load(by_value + member * value_stride + at, mask=mask, other=0.0).to(tl.float32) * share
        total += by - share * tl.sum(by, 2)[:, :, None]
        sample += SAMPLES
    cold = 1 / tl.load(temperature + member * temperature_stride).to(tl.float32)
    nary.store_sum(by_logits, member, tl.sum(total, 0) * cold, units, N, UNITS, WIDTH)


def draw_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Tensor | None]:
    """Return the gradient of the logits, summed over all samples."""
    (logits, temperature, _, _, squash, _), node = inputs, outputs[0]
    by_node, by_value = by[0], None if squash == "none" else by[1]
    if by_node is None and by_value is None:
        return (None,)
    (members, samples, units, n), dtype = node.shape, logits.dtype
    if not node.numel():
        return (torch.zeros_like(logits),)
    tile = unit_tile(members, samples, units, n, least=nary.STEPS)
    partial = partial_sums(tile.grid[1], (members, units, n), node, dtype)
    node = node.contiguous()
    by_both = [node if gradient is None else rows(gradient) for gradient in (by_node, by_value)]
    _draw_backward[*tile.grid, members](
        *by_both, node, temperature, partial,
        samples, units, tile.steps, by_both[0].stride(0), by_both[1].stride(0), temperature.stride(0),
        N=n, NODE=by_node is not None, VALUE=by_value is not None, SQUASH=squash, BITS=n.bit_length() - 1,
        SAMPLES=tile.samples, UNITS=tile.units, WIDTH=tile.width, num_warps=tile.warps,
    )  # fmt: skip
    return (sum_parts(partial, tile.grid[1], dtype),)


draw_gaussian_backward = draw_backward  # the gradient does not depend on the distribution of the noise


@triton.jit
def _recovered(node, logit, lam, at, mask, category, N: tl.constexpr, WIDTH: tl.constexpr):
    """Return the noise that nodes were made from, minus its smallest entry; it may be much smaller than its terms."""
    value = tl.load(node + at, mask=mask, other=0.0).to(tl.float32)
    if NATIVE:
        noise, rest = whole_difference(lam, value, logit[None, :, :])
        if WIDTH > N:
            noise, rest = tl.where(category < N, noise, float("inf")), tl.where(category < N, rest, 0.0)
        noise = noise - tl.min(noise, 2)[:, :, None] + rest
    else:
        noise = lam * value.to(tl.float64) - logit[None, :, :].to(tl.float64)
        if WIDTH > N:
            noise = tl.where(category < N, noise, float("inf"))
        noise = (noise - tl.min(noise, 2)[:, :, None]).to(tl.float32)
    return noise


@Launched
def _score(
    node, logits, temperature, log_density,
    constant, samples, units, steps, node_stride, logits_stride, temperature_stride,
    N: tl.constexpr, LENGTH: tl.constexpr, SAMPLES: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr,
    NORMAL: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    category = tl.arange(0, WIDTH)[None, None, :]
    lam = tl.load(temperature + member * temperature_stride)
    constant += (N - 1) * tl.log(lam.to(tl.float32))
    sums = tl.zeros((SAMPLES, 1), tl.float32)
    for offset in range(0, LENGTH, UNITS):
        unit = nary.placed(offset, units, LENGTH, UNITS)[None, :]
        logit = nary.load_logits(logits + member * logits_stride, offset, units, N, LENGTH, UNITS, WIDTH)
        sample = tl.program_id(1) * steps * SAMPLES + tl.arange(0, SAMPLES)[:, None]
        for _ in range(steps):
            row = sample.to(tl.int64) * units + unit
            inside = (unit < units) & (sample < samples)
            at = member * node_stride + row[:, :, None] * N + category
            noise = _recovered(node, logit, lam, at, inside[:, :, None] & (category < N), category, N, WIDTH)
            if NORMAL:
                apart = deviation(noise, category, N, WIDTH)
                density = constant - tl.sum(apart * apart, 2) / 2
            else:
                log_mean = log_of_mean(tl.sum(exp(-noise), 2), N)
                if WIDTH > N:
                    noise = tl.where(category < N, noise, 0.0)
                density = constant - tl.sum(noise, 2) - N * log_mean
            if LENGTH == 1:
                tl.store(log_density + member * samples * units + row, density, mask=inside)
            else:
                sums += tl.sum(tl.where(inside, density, 0.0), 1)[:, None]
            sample += SAMPLES
    if LENGTH > 1:
        nary.store_sums(log_density, member, samples, sums, SAMPLES)


def _scored(node: Tensor, logits: Tensor, temperature: Tensor, length: int = 1, *, normal: bool) -> Tensor:
    """Return the log density of given nodes, summed over rows of `length` units."""
    members, samples, units, n = node.shape
    tile = score_tile(members, samples, units, n, length)
    log_density = node.new_empty(members, samples, units // tile.length, dtype=torch.float32)
    node, logits = rows(node), rows(logits)
    if log_density.numel():
        _score[*tile.grid, members](
            node, logits, temperature, log_density,
            constant(n, normal), samples, units, tile.steps, node.stride(0), logits.stride(0), temperature.stride(0),
            N=n, LENGTH=tile.length, SAMPLES=tile.samples, UNITS=tile.units, WIDTH=tile.width, NORMAL=normal,
            num_warps=tile.warps,
        )  # fmt: skip
    return row_sums(log_density, length // tile.length)


score, score_gaussian = partial(_scored, normal=False), partial(_scored, normal=True)


@Launched
def _score_backward(
    by, node, logits, temperature, by_node, by_logits,
    samples, units, steps, by_member, by_sample, by_point, node_stride, logits_stride, temperature_stride,
    N: tl.constexpr, NODE: tl.constexpr, LOGITS: tl.constexpr, LENGTH: tl.constexpr,
    SAMPLES: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr, NORMAL: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)[None, :]
    point = point_of(unit, LENGTH)
    sample = tl.program_id(1) * steps * SAMPLES + tl.arange(0, SAMPLES)[:, None]
    category = tl.arange(0, WIDTH)[None, None, :]
    logit = nary.load_logits(logits + member * logits_stride, 0, units, N, 1, UNITS, WIDTH)
    lam = tl.load(temperature + member * temperature_stride)
    total = tl.zeros((SAMPLES, UNITS, WIDTH), tl.float32)
    for _ in range(steps):
        row = sample.to(tl.int64) * units + unit
        inside = (unit < units) & (sample < samples)
        at = row[:, :, None] * N + category
        mask = inside[:, :, None] & (category < N)
        noise = _recovered(node + member * node_stride, logit, lam, at, mask, category, N, WIDTH)
        pull = nary.load_rows(by + member * by_member, sample, point, by_sample, by_point, inside)
        if NORMAL:
            by_noise = -pull[:, :, None] * deviation(noise, category, N, WIDTH)
        else:
            small = exp(-noise)
            by_noise = small * (N * pull * reciprocal(tl.sum(small, 2)))[:, :, None] - pull[:, :, None]
        if NODE:
            tl.store(by_node + member * samples * units * N + at, lam.to(tl.float32) * by_noise, mask=mask)
        if LOGITS:
            total -= by_noise
        sample += SAMPLES
    if LOGITS:
        nary.store_sum(by_logits, member, tl.sum(total, 0), units, N, UNITS, WIDTH)


def _gradients_of_score(
    by: Any, needs: Any, inputs: Any, outputs: Any, *, normal: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the nodes and of the logits, the latter summed over samples (None if not needed)."""
    (pull,), (needs_node, needs_logits, *_), (node, logits, temperature, length) = by, needs, inputs
    members, samples, units, n = node.shape
    by_node = node.new_empty(node.shape if needs_node else 0)
    if not node.numel():
        return by_node, torch.zeros_like(logits)
    tile = unit_tile(members, samples, units, n, least=nary.STEPS if needs_logits else 1)
    partial = partial_sums(tile.grid[1], logits.shape, logits, logits.dtype) if needs_logits else by_node
    node, given = rows(node), rows(logits)
    _score_backward[*tile.grid, members](
        pull, node, given, temperature, by_node, partial,
        samples, units, tile.steps, *pull.stride(), node.stride(0), given.stride(0), temperature.stride(0),
        N=n, NODE=needs_node, LOGITS=needs_logits, LENGTH=length,
        SAMPLES=tile.samples, UNITS=tile.units, WIDTH=tile.width, NORMAL=normal, num_warps=tile.warps,
    )  # fmt: skip
    return by_node, sum_parts(partial, tile.grid[1], logits.dtype) if needs_logits else None


score_backward, score_gaussian_backward = (partial(_gradients_of_score, normal=normal) for normal in (False, True))
