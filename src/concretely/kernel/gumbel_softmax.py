"""Relaxed and one-hot draws of categories in one launch, and their gradients in another, with little work on the host.

The key of the noise is two whole numbers, so that no tensor has to be made for it.
"""

import torch
import triton.language as tl
from torch import Tensor

from . import category as nary
from .exp_concrete import exponential
from .launch import Launched
from .native import exp, log, reciprocal
from .philox import drawing, quarter, words_beside
from .tile import ceil_div, draw_tile, power

MOST = tl.constexpr(65504.0)
"""The largest float16 number."""


@drawing
def _draw(
    logits, soft, state, key, nonce, cold, total, quarter,
    N: tl.constexpr, HARD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    category = tl.arange(0, WIDTH)[None, :]
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    held = nary.load_four(logits, place, total, total, quarter, N, False, WIDTH)
    four = words_beside(held[0], key, 0, place.to(tl.int64)[:, None] * N + category, nonce)
    for k in tl.static_range(4):
        row = k * quarter + place
        noisy = held[k] - tl.max(held[k], 1)[:, None] - log(exponential(four[k]))
        scaled = (noisy - tl.max(noisy, 1)[:, None]) * cold
        share = exp(scaled)
        mask = ((place < quarter) & (row < total))[:, None] & (category < N)
        at = row.to(tl.int64)[:, None] * N + category
        tl.store(soft + at, share * reciprocal(tl.sum(share, 1))[:, None], mask=mask)
        if HARD:
            tl.store(state + at, (category == tl.argmax(noisy, 1)[:, None]).to(tl.float32), mask=mask)


@Launched
def _pull(by, soft, out, cold, total, N: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    category = tl.arange(0, WIDTH)[None, :]
    at, mask = row.to(tl.int64) * N + category, (row < total) & (category < N)
    share = tl.load(soft + at, mask=mask, other=0.0).to(tl.float32)
    weighted = share * tl.load(by + at, mask=mask, other=0.0).to(tl.float32)
    gradient = (weighted - share * tl.sum(weighted, 1)[:, None]) * cold
    if out.dtype.element_ty == tl.float16:  # no finite number overflows
        gradient = tl.clamp(gradient, -MOST, MOST, tl.PropagateNan.ALL)
    tl.store(out + at, gradient, mask=mask)


def draw(logits: Tensor, temperature: float, key: tuple[int, int], *, hard: bool) -> tuple[Tensor, Tensor]:
    """Return draws and relaxed values. They are the same tensor unless `hard`."""
    logits = logits.contiguous()
    soft = torch.empty_like(logits)
    state = torch.empty_like(logits) if hard else soft
    n = logits.shape[-1]
    total, start = logits.numel() // n, logits.data_ptr()
    kind = hard, n, total, logits.dtype, logits.get_device(), start % 16
    given = *key, 1 / temperature, total, quarter(total)
    if total and not _draw.again(kind, start, soft.data_ptr(), state.data_ptr(), *given):
        tile = draw_tile(1, total, n, 1)
        constants = {"N": n, "HARD": hard, "ROWS": tile.units, "WIDTH": tile.width, "num_warps": tile.warps}
        _draw.keep(kind, (tile.programs,), logits, soft, state, *given, **constants)
    return state, soft


def pull(by: Tensor, soft: Tensor, temperature: float) -> Tensor:
    """Return the gradient of the logits, from that of the relaxed values."""
    by, out, n = by.contiguous(), torch.empty_like(soft), soft.shape[-1]
    total, one, other = soft.numel() // n, by.data_ptr(), soft.data_ptr()
    kind = n, total, by.dtype, soft.dtype, soft.get_device(), one % 16, other % 16
    if total and not _pull.again(kind, one, other, out.data_ptr(), 1 / temperature, total):
        rows, width, warps = _pull_tile(total, n)
        constants = {"N": n, "ROWS": rows, "WIDTH": width, "num_warps": warps}
        _pull.keep(kind, (ceil_div(total, rows),), by, soft, out, 1 / temperature, total, **constants)
    return out


def _pull_tile(total: int, n: int) -> tuple[int, int, int]:
    """Return the rows and the width of a tile, and its warps. A thread has eight numbers, as many as two loads."""
    width = power(n)
    rows = max(min(1024 // width, power(ceil_div(total, 512))), 1)
    return rows, width, min(max(rows * width // 256, 1), 16)
