"""Draws and log densities of ExpConcrete and ExpLogisticNormal nodes, and their gradients."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .category import (
    STEPS,
    in_quarter,
    load_four,
    load_logits,
    load_rows,
    placed,
    sign,
    store_rows,
    store_sum,
    store_sums,
    unit_of,
)
from .native import NATIVE, exp, log, precise_log, reciprocal, whole_difference
from .operator import partial_sums, row_sums, rows, sum_parts
from .philox import fraction, normal, quarter, words_beside
from .row import point_of
from .tile import draw_tile, score_tile, unit_tile


@triton.jit
def log_of_mean(total, N: tl.constexpr):
    """Return the log of the mean of N numbers; precise for large N, as the caller multiplies it by N."""
    return log(total * (1 / N)) if N <= 16 else precise_log(total * (1 / N))


@triton.jit
def exponential(word):
    """Return standard exponential noise, whose negative log is Gumbel noise."""
    tail = fraction(word, False) * 0.99999994  # 1 - 2⁻²⁴, since fractions next to 1 round to 1
    # below one half -log(1 - t) is 2 artanh(t / (2 - t)), whose series is precise for small t
    ratio = tail * reciprocal(2 - tail)
    s = ratio * ratio
    series = (((0.28178334 * s + 0.27960601) * s + 0.40024909) * s + 0.66666317) * s + 2
    return tl.where(tail < 0.5, series * ratio, -log(1 - tail))


@triton.jit
def deviation(noise, category, N: tl.constexpr, WIDTH: tl.constexpr):
    """Return noise minus its mean over the categories, and 0 in the padding."""
    if WIDTH > N:
        noise = tl.where(category < N, noise, 0.0)
    result = noise - tl.sum(noise, -1, keep_dims=True) * (1 / N)
    return tl.where(category < N, result, 0.0) if WIDTH > N else result


@triton.jit
def _draw(
    logits, temperature, key, node, value, log_density,
    constant, total, units, quarter, logits_stride, temperature_stride,
    N: tl.constexpr, SHARED: tl.constexpr, SQUASH: tl.constexpr, BITS: tl.constexpr, LENGTH: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, NORMAL: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    category = tl.arange(0, WIDTH)[None, :]
    temperature = tl.load(temperature + member * temperature_stride).to(tl.float32)
    inverse_temperature = 1 / temperature
    constant += (N - 1) * tl.log(temperature)
    sums = tl.zeros((4,), tl.float32)
    for offset in range(0, LENGTH, ROWS):
        place = placed(offset, quarter, LENGTH, ROWS)
        quarters = load_four(logits + member * logits_stride, place, total, units, quarter, N, SHARED, WIDTH)
        four = words_beside(quarters[0], key, member, place.to(tl.int64)[:, None] * N + category)
        for k in tl.static_range(4):
            row = k * quarter + place
            inside = (place < quarter) & (row < total)
            mask = inside[:, None] & (category < N)
            logit = quarters[k]
            if NORMAL:
                noise = normal(four[k])
                centred = deviation(noise, category, N, WIDTH)
                score = constant - tl.sum(centred * centred, 1) / 2
            else:
                expo = exponential(four[k])
                noise = -log(expo)
                if WIDTH > N:
                    expo = tl.where(category < N, expo, 0.0)
                    noise = tl.where(category < N, noise, 0.0)
                score = constant - tl.sum(noise, 1) - N * log_of_mean(tl.sum(expo, 1), N)
            noisy = logit - tl.max(logit, 1)[:, None] + noise
            cooled = (noisy - tl.max(noisy, 1)[:, None]) * inverse_temperature
            share = exp(cooled)
            total_share = tl.sum(share, 1)
            result = cooled - log(total_share)[:, None]
            row = member * total + row
            at = row[:, None] * N + category
            tl.store(node + at, result, mask=mask)
            if LENGTH == 1:
                tl.store(log_density + row, score, mask=inside)
            else:
                sums += in_quarter(k, tl.sum(tl.where(inside, score, 0.0), 0))
            if SQUASH == "simplex":
                point = tl.minimum(tl.maximum(exp(result), 9.860761315262648e-32), 1.0)
                tl.store(value + at, tl.where(result == float("-inf"), 0.0, point), mask=mask)  # the limit 0 stays
            if SQUASH == "cube":
                share *= reciprocal(total_share)[:, None]
                for bit in tl.static_range(BITS):
                    point = tl.sum(share * sign(category, bit, BITS), 1)
                    tl.store(value + row * BITS + bit, tl.minimum(tl.maximum(point, -1.0), 1.0), mask=inside)
    if LENGTH > 1:
        store_rows(log_density, member, sums)


def draw(
    logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str, length: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw nodes and values, and sum the log densities over rows of units."""
    return _drawn(logits, temperature, key, samples, squash, length, normal=False)


def draw_gaussian(
    logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str, length: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw with Gaussian noise."""
    return _drawn(logits, temperature, key, samples, squash, length, normal=True)


def _drawn(
    logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str, length: int, *, normal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    members, units, n = logits.shape
    node = torch.empty((members, samples, units, n), dtype=torch.float32, device=logits.device)
    total, logits = samples * units, rows(logits)
    tile = draw_tile(members, total, n, length)
    value = node.new_empty(value_shape(node.shape, squash))
    log_density = node.new_empty((members, samples, units // tile.length))
    if node.numel():
        _draw[tile.programs, members](
            logits, temperature, key.contiguous(), node, value, log_density,
            constant(n, normal), total, units, quarter(total), logits.stride(0), temperature.stride(0),
            N=n, SHARED=samples > 1, SQUASH=squash, BITS=n.bit_length() - 1,
            LENGTH=tile.length, ROWS=tile.units, WIDTH=tile.width, NORMAL=normal, num_warps=tile.warps,
        )  # fmt: skip
    return node, value, row_sums(log_density, length // tile.length)


def constant(n: int, normal: bool) -> float:
    """Return the constant term of the log density at temperature 1."""
    if normal:
        return -((n - 1) * math.log(2 * math.pi) + math.log(n)) / 2
    return math.lgamma(n) - n * math.log(n)  # the kernel adds n times the log of a mean


def value_shape(node: Sequence[int], squash: str) -> tuple[int, ...]:
    """Return the shape of the squashed values, empty without squashing."""
    if squash == "none":
        return node[0], 0
    return (*node[:-1], int(node[-1]).bit_length() - 1) if squash == "cube" else tuple(node)


@triton.jit
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
                    slope += by_bit.to(tl.float32)[:, :, None] * sign(category, bit, BITS)
                by += slope * share
            else:
                by += tl.load(by_value + member * value_stride + at, mask=mask, other=0.0).to(tl.float32) * share
        total += by - share * tl.sum(by, 2)[:, :, None]
        sample += SAMPLES
    inverse_temperature = 1 / tl.load(temperature + member * temperature_stride).to(tl.float32)
    store_sum(by_logits, member, tl.sum(total, 0) * inverse_temperature, units, N, UNITS, WIDTH)


def draw_backward(
    by: Sequence[Tensor | None], needs: Sequence[bool], inputs: Sequence[Any], outputs: Sequence[Tensor]
) -> tuple[Tensor | None]:
    """Return the gradient of the logits, summed over samples."""
    (logits, temperature, _, _, squash, _), node = inputs, outputs[0]
    by_node, by_value = by[0], None if squash == "none" else by[1]
    if by_node is None and by_value is None:
        return (None,)
    (members, samples, units, n), dtype = node.shape, logits.dtype
    if not node.numel():
        return (torch.zeros_like(logits),)
    tile = unit_tile(members, samples, units, n, least=STEPS)
    partial = partial_sums(tile.grid[1], node[:, 0], dtype)
    node = node.contiguous()
    by_both = [node if each is None else rows(each) for each in (by_node, by_value)]
    _draw_backward[*tile.grid, members](
        *by_both, node, temperature, partial,
        samples, units, tile.steps, by_both[0].stride(0), by_both[1].stride(0), temperature.stride(0),
        N=n, NODE=by_node is not None, VALUE=by_value is not None, SQUASH=squash, BITS=n.bit_length() - 1,
        SAMPLES=tile.samples, UNITS=tile.units, WIDTH=tile.width, num_warps=tile.warps,
    )  # fmt: skip
    return (sum_parts(partial, dtype),)


draw_gaussian_backward = draw_backward  # independent of the noise


@triton.jit
def _recovered(node, logit, temperature, at, mask, category, N: tl.constexpr, WIDTH: tl.constexpr):
    """Return the noise behind nodes, shifted so that its smallest entry is 0."""
    result = tl.load(node + at, mask=mask, other=0.0).to(tl.float32)
    if NATIVE:
        noise, rest = whole_difference(temperature, result, logit[None, :, :])
        if WIDTH > N:
            noise, rest = tl.where(category < N, noise, float("inf")), tl.where(category < N, rest, 0.0)
        noise = noise - tl.min(noise, 2)[:, :, None] + rest
    else:
        noise = temperature * result.to(tl.float64) - logit[None, :, :].to(tl.float64)
        if WIDTH > N:
            noise = tl.where(category < N, noise, float("inf"))
        noise = (noise - tl.min(noise, 2)[:, :, None]).to(tl.float32)
    return noise


@triton.jit
def _score(
    node, logits, temperature, log_density,
    constant, samples, units, steps, node_stride, logits_stride, temperature_stride,
    N: tl.constexpr, LENGTH: tl.constexpr, SAMPLES: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr,
    NORMAL: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    category = tl.arange(0, WIDTH)[None, None, :]
    temperature = tl.load(temperature + member * temperature_stride)
    constant += (N - 1) * tl.log(temperature.to(tl.float32))
    sums = tl.zeros((SAMPLES, 1), tl.float32)
    for offset in range(0, LENGTH, UNITS):
        unit = unit_of(offset, units, LENGTH, UNITS)[None, :]
        logit = load_logits(logits + member * logits_stride, offset, units, N, LENGTH, UNITS, WIDTH)
        sample = tl.program_id(1) * steps * SAMPLES + tl.arange(0, SAMPLES)[:, None]
        for _ in range(steps):
            row = sample.to(tl.int64) * units + unit
            inside = (unit < units) & (sample < samples)
            at = member * node_stride + row[:, :, None] * N + category
            noise = _recovered(node, logit, temperature, at, inside[:, :, None] & (category < N), category, N, WIDTH)
            if NORMAL:
                centred = deviation(noise, category, N, WIDTH)
                result = constant - tl.sum(centred * centred, 2) / 2
            else:
                log_mean = log_of_mean(tl.sum(exp(-noise), 2), N)
                if WIDTH > N:
                    noise = tl.where(category < N, noise, 0.0)
                result = constant - tl.sum(noise, 2) - N * log_mean
            if LENGTH == 1:
                tl.store(log_density + member * samples * units + row, result, mask=inside)
            else:
                sums += tl.sum(tl.where(inside, result, 0.0), 1)[:, None]
            sample += SAMPLES
    if LENGTH > 1:
        store_sums(log_density, member, samples, sums, SAMPLES)


def score(node: Tensor, logits: Tensor, temperature: Tensor, length: int = 1) -> Tensor:
    """Return the log densities of nodes, summed over rows of units."""
    return _scored(node, logits, temperature, length, normal=False)


def score_gaussian(node: Tensor, logits: Tensor, temperature: Tensor, length: int = 1) -> Tensor:
    """Return the log densities with Gaussian noise."""
    return _scored(node, logits, temperature, length, normal=True)


def _scored(node: Tensor, logits: Tensor, temperature: Tensor, length: int, *, normal: bool) -> Tensor:
    members, samples, units, n = node.shape
    tile = score_tile(members, samples, units, n, length)
    result = torch.empty((members, samples, units // tile.length), dtype=torch.float32, device=node.device)
    node, logits = rows(node), rows(logits)
    if result.numel():
        _score[*tile.grid, members](
            node, logits, temperature, result,
            constant(n, normal), samples, units, tile.steps, node.stride(0), logits.stride(0), temperature.stride(0),
            N=n, LENGTH=tile.length, SAMPLES=tile.samples, UNITS=tile.units, WIDTH=tile.width, NORMAL=normal,
            num_warps=tile.warps,
        )  # fmt: skip
    return row_sums(result, length // tile.length)


@triton.jit
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
    logit = load_logits(logits + member * logits_stride, 0, units, N, 1, UNITS, WIDTH)
    temperature = tl.load(temperature + member * temperature_stride)
    total = tl.zeros((SAMPLES, UNITS, WIDTH), tl.float32)
    for _ in range(steps):
        row = sample.to(tl.int64) * units + unit
        inside = (unit < units) & (sample < samples)
        at = row[:, :, None] * N + category
        mask = inside[:, :, None] & (category < N)
        noise = _recovered(node + member * node_stride, logit, temperature, at, mask, category, N, WIDTH)
        upstream = load_rows(by + member * by_member, sample, point, by_sample, by_point, inside)
        if NORMAL:
            by_noise = -upstream[:, :, None] * deviation(noise, category, N, WIDTH)
        else:
            small = exp(-noise)
            by_noise = small * (N * upstream * reciprocal(tl.sum(small, 2)))[:, :, None] - upstream[:, :, None]
        if NODE:
            tl.store(by_node + member * samples * units * N + at, temperature.to(tl.float32) * by_noise, mask=mask)
        if LOGITS:
            total -= by_noise
        sample += SAMPLES
    if LOGITS:
        store_sum(by_logits, member, tl.sum(total, 0), units, N, UNITS, WIDTH)


def score_backward(
    by: Sequence[Tensor], needs: Sequence[bool], inputs: Sequence[Any], outputs: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the nodes and, summed over samples, of the logits."""
    return _gradients_of_score(by, needs, inputs, normal=False)


def score_gaussian_backward(
    by: Sequence[Tensor], needs: Sequence[bool], inputs: Sequence[Any], outputs: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients with Gaussian noise."""
    return _gradients_of_score(by, needs, inputs, normal=True)


def _gradients_of_score(
    by: Sequence[Tensor], needs: Sequence[bool], inputs: Sequence[Any], *, normal: bool
) -> tuple[Tensor, Tensor | None]:
    (upstream,), (needs_node, needs_logits, *_), (node, logits, temperature, length) = by, needs, inputs
    members, samples, units, n = node.shape
    by_node = torch.empty(node.shape if needs_node else 0, dtype=node.dtype, device=node.device)
    if not node.numel():
        return by_node, torch.zeros_like(logits)
    tile = unit_tile(members, samples, units, n, least=STEPS if needs_logits else 1)
    partial = partial_sums(tile.grid[1], logits, logits.dtype) if needs_logits else by_node
    node, given = rows(node), rows(logits)
    _score_backward[*tile.grid, members](
        upstream, node, given, temperature, by_node, partial,
        samples, units, tile.steps, *upstream.stride(), node.stride(0), given.stride(0), temperature.stride(0),
        N=n, NODE=needs_node, LOGITS=needs_logits, LENGTH=length,
        SAMPLES=tile.samples, UNITS=tile.units, WIDTH=tile.width, NORMAL=normal, num_warps=tile.warps,
    )  # fmt: skip
    return by_node, sum_parts(partial, logits.dtype) if needs_logits else None
