"""The log-likelihood of bits in one pass, and its gradient in another."""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launched
from .layout import by_bits, laid, strided
from .native import log1p, sigmoid
from .tile import ceil_div, power

TILE = 512
BLOCK = 128
STEPS = 8
"""The maximum number of blocks of units that share one logarithm."""


@triton.jit
def place(batch, ROWS: tl.constexpr):
    """Return the member, the samples and the data point of a program. Its samples share the bits."""
    number = tl.program_id(0)
    sample = (number // batch).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return tl.program_id(1).to(tl.int64), sample[:, None], (number % batch).to(tl.int64)


@Launched
def _log_likelihood(
    logits, bits, out, samples, batch, units, logits_stride, bits_stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    member, sample, point = place(batch, ROWS)
    logits += member * logits_stride
    bits += member * bits_stride + point * units
    row = sample * batch + point
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, units, BLOCK * STEPS):
        # the sum of log(1 + small) is the log of a product, which is kept minus 1 so that small terms are not lost
        product = tl.zeros((ROWS, BLOCK), tl.float32)
        for k in tl.static_range(STEPS):
            unit = (start + k * BLOCK + tl.arange(0, BLOCK))[None, :]
            mask = (sample < samples) & (unit < units)
            logit = tl.load(logits + row * units + unit, mask=mask, other=float("inf")).to(tl.float32)
            on = tl.load(bits + unit, mask=unit < units, other=1) != 0
            total += tl.where(on, tl.where(logit < 0, logit, 0.0), tl.where(logit < 0, 0.0, -logit))
            product += tl.exp(-tl.abs(logit)) * (1 + product)
        total -= log1p(product)
    tl.store(out + member * samples * batch + row, tl.sum(total, 1, keep_dims=True), mask=sample < samples)


def log_likelihood(logits: Tensor, bits: Tensor, axes: int = 1, members: int = 1) -> Tensor:
    """Return the log mass of bits, summed over the last `axes` axes."""
    shape, counts = by_bits(logits, bits, axes, members)
    if not logits.numel():
        return torch.zeros(shape, dtype=torch.float32, device=logits.device)
    out = logits.new_empty(shape, dtype=torch.float32)
    given, strides = laid([logits, _bytes(bits)], members)
    grid, options = _tiling(*counts)
    _log_likelihood[grid](*given, out, *counts[1:], *strides, **options)
    return out


@Launched
def _backward(
    by, logits, bits, by_logits, samples, batch, units, by_member, by_sample, by_point, logits_stride, bits_stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    member, sample, point = place(batch, ROWS)
    logits += member * logits_stride
    bits += member * bits_stride + point * units
    row = sample * batch + point
    by += member * by_member + point * by_point
    pull = tl.load(by + sample * by_sample, mask=sample < samples, other=0.0).to(tl.float32)
    by_logits += member * samples * batch * units
    for start in range(0, units, BLOCK * STEPS):
        for k in tl.static_range(STEPS):
            unit = (start + k * BLOCK + tl.arange(0, BLOCK))[None, :]
            mask = (sample < samples) & (unit < units)
            logit = tl.load(logits + row * units + unit, mask=mask, other=0.0).to(tl.float32)
            on = tl.load(bits + unit, mask=unit < units, other=1) != 0
            other = pull * sigmoid(tl.where(on, -logit, logit))
            tl.store(by_logits + row * units + unit, tl.where(on, other, -other), mask=mask)


def log_likelihood_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Tensor]:
    """Return the gradient of the logits, computed from the probability of the other bit."""
    (by,), (logits, bits, axes, members) = by, inputs
    _, counts = by_bits(logits, bits, axes, members)
    by_logits = logits.new_empty(*logits.shape)
    if logits.numel():
        (by, steps), (given, strides) = strided(by, *counts[:3]), laid([logits, _bytes(bits)], members)
        grid, options = _tiling(*counts)
        _backward[grid](by, *given, by_logits, *counts[1:], *steps, *strides, **options)
    return (by_logits,)


@lru_cache(maxsize=1024)
def _tiling(members: int, samples: int, batch: int, units: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the grid, the samples and units of a block of a program, and how many blocks share one logarithm."""
    height = min(power(samples), TILE // min(power(units), BLOCK))
    width = min(power(units), TILE // height)
    options = {"ROWS": height, "BLOCK": width, "STEPS": min(ceil_div(units, width), STEPS)}
    return (batch * ceil_div(samples, height), members), options


def _bytes(bits: Tensor) -> Tensor:
    """Return bits as integers or floats, not booleans."""
    return bits.view(torch.uint8) if bits.dtype == torch.bool else bits
