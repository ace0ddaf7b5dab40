"""Draws of codes from large codebooks: logits become shares in place, without the noise in memory.

The noise of a code depends on the key, the token, the group and the code only, and not on what else is drawn: the four
words of the Philox counter ((token · groups + group) · quarter + place) go to the four quarters of a row of codes.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from .exp_concrete import exponential
from .launch import Launched
from .native import exp, log, reciprocal
from .philox import words_of
from .tile import ceil_div, power

HIGH, WIDE, DEEP = 128, 64, 32
"""The tile of a product that a program computes, and the length of the sums that it adds up at a time."""
FEW = 2**15
"""Up to this number of shares, one program pulls the gradients of a group."""
FAR = 2**62
"""Is added to a number of counters for a launch, so that it always has 64 bits."""


@triton.jit
def _four(logits, at, inside, column, k, N: tl.constexpr, QUARTER: tl.constexpr):
    """Return the logits of a quarter of some rows."""
    mask = inside[:, None] & (column < QUARTER) & (k * QUARTER + column < N)
    return tl.load(logits + at + k * QUARTER, mask=mask, other=float("-inf"))


@triton.jit
def _largest(one, two, three, four):
    """Return the largest number of every row of four quarters."""
    return tl.max(tl.maximum(tl.maximum(one, two), tl.maximum(three, four)), 1)[:, None]


@partial(Launched, free=("seed", "nonce", "first"))
def _draw(
    logits, shares, index, key, seed, nonce, first, temperature, total, tokens, groups, bias, table, value, counts,
    SIZE: tl.constexpr, N: tl.constexpr, QUARTER: tl.constexpr, KEEPS: tl.constexpr, TENSOR: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < total
    column = tl.arange(0, WIDTH)[None, :]
    at = row.to(tl.int64)[:, None] * N + column
    held = [_four(logits, at, inside, column, k, N, QUARTER) for k in (0, 1, 2, 3)]
    if bias is not None:
        held = [held[k] + _four(bias, column, inside, column, k, N, QUARTER) for k in (0, 1, 2, 3)]
    if key is not None:
        seed, nonce = tl.load(key), tl.load(key + 1)
    place = (row % tokens).to(tl.int64) * groups + row // tokens
    # adds 0 unless NaN, so that the threads that hold the logits compute the words
    counter = place[:, None] * QUARTER + (first - 4611686018427387904) + column + (held[0] != held[0]).to(tl.int32)
    word = words_of(seed, nonce, counter)
    highest = _largest(held[0], held[1], held[2], held[3])
    noisy = [held[k] - highest - log(exponential(word[k])) for k in (0, 1, 2, 3)]
    best = _largest(noisy[0], noisy[1], noisy[2], noisy[3])
    code = tl.full((ROWS, WIDTH), N - 1, tl.int32)
    for k in tl.static_range(4):
        code = tl.minimum(code, tl.where(noisy[3 - k] == best, (3 - k) * QUARTER + column, N - 1))
    chosen = tl.min(code, 1).to(tl.int64)
    tl.store(index + row, chosen, mask=inside)
    if counts is not None:
        tl.atomic_add(counts + chosen, 1.0, mask=inside)
    if value is not None:
        for start in range(0, SIZE, WIDTH):
            mask = inside[:, None] & (start + column < SIZE)
            copied = tl.load(table + chosen[:, None] * SIZE + start + column, mask=mask)
            tl.store(value + row.to(tl.int64)[:, None] * SIZE + start + column, copied, mask=mask)
    if KEEPS:
        cold = reciprocal(tl.load(temperature).to(tl.float32)) if TENSOR else temperature
        share = [exp((noisy[k] - best) * cold) for k in (0, 1, 2, 3)]
        scale = reciprocal(tl.sum((share[0] + share[1]) + (share[2] + share[3]), 1))[:, None]
        for k in tl.static_range(4):
            mask = inside[:, None] & (column < QUARTER) & (k * QUARTER + column < N)
            tl.store(shares + at + k * QUARTER, share[k] * scale, mask=mask)


@Launched
def _noise(out, key, first, total, N: tl.constexpr, QUARTER: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = words_of(tl.load(key), tl.load(key + 1), place + first)
    row, column = place // QUARTER, place % QUARTER
    for k in tl.static_range(4):
        mask = (row < total) & (k * QUARTER + column < N)
        tl.store(out + row * N + k * QUARTER + column, -log(exponential(word[k])), mask=mask)


@Launched
def _pull(
    by, shares, out, sums, temperature, tokens, steps,
    N: tl.constexpr, TENSOR: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, WIDTH)[None, :]
    cold = reciprocal(tl.load(temperature).to(tl.float32)) if TENSOR else temperature
    total = tl.zeros((WIDTH,), tl.float32)
    for step in range(steps):
        row = (tl.program_id(0) * steps + step) * ROWS + tl.arange(0, ROWS)
        mask = (row < tokens)[:, None] & (column < N)
        at = (group * tokens + row.to(tl.int64))[:, None] * N + column
        share = tl.load(shares + at, mask=mask, other=0.0)
        weighted = share * tl.load(by + at, mask=mask, other=0.0)
        gradient = (weighted - share * tl.sum(weighted, 1)[:, None]) * cold
        tl.store(out + at, gradient, mask=mask)
        total += tl.sum(gradient, 0)
    place = (group * tl.num_programs(0) + tl.program_id(0)) * N + tl.arange(0, WIDTH)
    tl.store(sums + place, total, mask=tl.arange(0, WIDTH) < N)


@Launched
def _product(
    a, b, bias, out, high, wide, deep, a_high, a_deep, b_deep, b_wide,
    ADDS: tl.constexpr, EVEN: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.cdiv(high, HIGH), tl.cdiv(wide, WIDE)
    # programs that run at the same time compute a block of 8 rows of tiles, which share their factors
    number, many = tl.program_id(0), 8 * columns
    first = number // many * 8
    band = tl.minimum(rows - first, 8)
    i = (first + number % many % band) * HIGH + tl.arange(0, HIGH)
    j = number % many // band * WIDE + tl.arange(0, WIDE)
    k = tl.arange(0, DEEP)
    left = a + (i % high).to(tl.int64)[:, None] * a_high + k[None, :].to(tl.int64) * a_deep
    right = b + (j % wide).to(tl.int64)[None, :] * b_wide + k[:, None].to(tl.int64) * b_deep
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for start in range(0, deep, DEEP):
        if EVEN:
            x, y = tl.load(left), tl.load(right)
        else:
            x = tl.load(left, mask=(start + k < deep)[None, :], other=0.0)
            y = tl.load(right, mask=(start + k < deep)[:, None], other=0.0)
        total = tl.dot(x, y, total, input_precision="tf32x3")
        left += DEEP * a_deep
        right += DEEP * b_deep
    if bias is not None:
        total += tl.load(bias + j, mask=j < wide, other=0.0)[None, :]
    place = out + i[:, None].to(tl.int64) * wide + j[None, :]
    mask = (i < high)[:, None] & (j < wide)[None, :]
    if ADDS:
        total += tl.load(place, mask=mask, other=0.0)
    tl.store(place, total, mask=mask)


def draw(
    logits: Tensor,
    key: Tensor | tuple[int, int],
    first: int,
    temperature: float | Tensor,
    *,
    keeps: bool,
    bias: Tensor | None = None,
    table: Tensor | None = None,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return codes for logits of shape (groups, tokens, codes), of tokens from `first` on, and their rows of a table.

    One group may have no axis; only for one may there be a bias of the logits, a table, and counts of codes, to which
    the tokens are added. If `keeps`, the shares of the codes replace the logits.
    """
    tokens, n = logits.shape[-2:]
    index = logits.new_empty(logits.shape[:-1], dtype=torch.int64)
    total, quarter = index.numel(), ceil_div(n, 4)
    value = None if table is None else table.new_empty(total, table.shape[1])
    if total:
        groups, width = total // tokens, power(quarter)
        rows = max(min(256 // width, power(ceil_div(total, 512))), 1)
        is_tensor, is_number = isinstance(temperature, Tensor), isinstance(key, tuple)
        _draw[ceil_div(total, rows),](
            logits, logits, index, None if is_number else key, *(key if is_number else (FAR, FAR)),
            FAR + first * groups * quarter, temperature if is_tensor else 1 / temperature, total, tokens, groups,
            bias, table, value, counts, SIZE=1 if table is None else table.shape[1],
            N=n, QUARTER=quarter, KEEPS=keeps, TENSOR=is_tensor, ROWS=rows, WIDTH=width,
            num_warps=min(max(rows * width // 512, 1), 16),
        )  # fmt: skip
    return index, value


def noise(key: Tensor, first: int, groups: int, tokens: int, n: int) -> Tensor:
    """Return the Gumbel noise of tokens from `first` on, of shape (tokens, groups, codes)."""
    out = key.new_empty((tokens, groups, n), dtype=torch.float32)
    total, quarter = tokens * groups, ceil_div(n, 4)
    if out.numel():
        _noise[ceil_div(total * quarter, 256),](
            out, key, first * groups * quarter, total, N=n, QUARTER=quarter, BLOCK=256
        )  # fmt: skip
    return out


def pull(by: Tensor, shares: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of the logits, from that of the relaxed values, and its sum over tokens. It replaces `by`.

    Tensors have the shape (groups, tokens, codes), and the sums (groups, codes). One group may have no axis.
    """
    tokens, n = shares.shape[-2:]
    width, groups = power(n), len(shares) if shares.dim() == 3 else 1
    if tokens * width <= FEW:  # one program, so that no sums are left to add up
        rows = max(min(8192 // width, power(tokens)), 1)
        steps = max(ceil_div(tokens, rows), 1)
    else:
        rows = max(min(1024 // width, power(ceil_div(tokens, 512))), 1)
        steps = max(ceil_div(tokens, 1024 * rows), min(4, ceil_div(tokens, 256 * rows)))
    sums = by.new_empty((groups, ceil_div(tokens, rows * steps), n), dtype=torch.float32)
    is_tensor = isinstance(temperature, Tensor)
    if sums.numel():
        _pull[sums.shape[1], groups](
            by, shares, by, sums, temperature if is_tensor else 1 / temperature, tokens, steps,
            N=n, TENSOR=is_tensor, ROWS=rows, WIDTH=width, num_warps=min(max(rows * width // 512, 1), 16),
        )  # fmt: skip
    return by, sums.sum(1) if sums.shape[1] != 1 else sums.view(groups, n)


def product(
    a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None, *, adds: bool = False
) -> Tensor:
    """Return the product of two matrices, plus a bias for every column, or add it to `out`.

    A factor is the sum of two numbers of TF32, whose products but the smallest are summed in float32. The error is
    smaller than that of cuBLAS in float32 for sums of up to 16,384 terms. Longer sums were not compared.
    """
    (high, deep), wide = a.shape, b.shape[1]
    out = a.new_empty((high, wide), dtype=torch.float32) if out is None else out
    b = b if b.stride(0) == 1 else b.mT.contiguous().mT  # the order in which tensor cores read TF32
    assert out.is_contiguous()
    if out.numel():
        _product[ceil_div(high, HIGH) * ceil_div(wide, WIDE),](
            a, b, bias, out, high, wide, deep, *a.stride(), *b.stride(),
            ADDS=adds, EVEN=deep % DEEP == 0, HIGH=HIGH, WIDE=WIDE, DEEP=DEEP, num_warps=4, num_stages=3,
        )  # fmt: skip
    return out
