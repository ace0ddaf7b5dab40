"""Draws of codes from large codebooks, and the gradients of their logits, without the noise or the shares in memory."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import category as nary
from .exp_concrete import exponential
from .launch import Launched
from .native import exp, log, reciprocal
from .philox import quarter, words_beside
from .tile import DrawTile, draw_tile


@triton.jit
def _words(held, key, place, N: tl.constexpr, WIDTH: tl.constexpr):
    """Return the random words of the rows of a tile in all quarters."""
    counter = place.to(tl.int64)[:, None] * N + tl.arange(0, WIDTH)[None, :]
    return words_beside(held, key, 0, counter)


@triton.jit
def _noisy(held, word):
    return held - tl.max(held, 1)[:, None] - log(exponential(word))


@Launched
def _choose(logits, index, key, total, quarter, N: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    held = nary.load_four(logits, place, total, total, quarter, N, False, WIDTH)
    four = _words(held[0], key, place, N, WIDTH)
    for k in tl.static_range(4):
        row = k * quarter + place
        chosen = tl.argmax(_noisy(held[k], four[k]), 1)
        tl.store(index + row, chosen.to(tl.int64), mask=(place < quarter) & (row < total))


@Launched
def _pull(
    logits, by, out, key, temperature, total, quarter, N: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    category = tl.arange(0, WIDTH)[None, :]
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    held = nary.load_four(logits, place, total, total, quarter, N, False, WIDTH)
    four = _words(held[0], key, place, N, WIDTH)
    cold = reciprocal(tl.load(temperature))
    for k in tl.static_range(4):
        noisy = _noisy(held[k], four[k])
        share = exp((noisy - tl.max(noisy, 1)[:, None]) * cold)
        share = share * reciprocal(tl.sum(share, 1))[:, None]
        row = (k * quarter + place)[:, None]
        mask = ((place < quarter)[:, None] & (row < total)) & (category < N)
        at = row.to(tl.int64) * N + category
        weighted = share * tl.load(by + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + at, (weighted - share * tl.sum(weighted, 1)[:, None]) * cold, mask=mask)


def choose(logits: Tensor, key: Tensor) -> Tensor:
    """Return the index of the largest noisy logit of every row."""
    logits, n = logits.contiguous(), logits.shape[-1]
    index = torch.empty(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    if index.numel():
        tile = _tile(index.numel(), n)
        _choose[tile.programs,](
            logits, index, key, index.numel(), quarter(index.numel()),
            N=n, ROWS=tile.units, WIDTH=tile.width, num_warps=tile.warps,
        )  # fmt: skip
    return index


def pull(by: Tensor, logits: Tensor, key: Tensor, temperature: Tensor) -> Tensor:
    """Return the gradient of the logits, from that of the relaxed values of the same noise. It replaces `by`."""
    logits, by, n = logits.contiguous(), by.contiguous(), logits.shape[-1]
    total = logits.numel() // n
    if total:
        tile = _tile(total, n)
        _pull[tile.programs,](
            logits, by, by, key, temperature, total, quarter(total),
            N=n, ROWS=tile.units, WIDTH=tile.width, num_warps=tile.warps,
        )  # fmt: skip
    return by


@lru_cache(maxsize=256)
def _tile(total: int, n: int) -> DrawTile:
    return draw_tile(1, total, n, 1)
