r"""Codes drawn from a large codebook, in chunks of tokens, so that logits, noise and shares are never all in memory.

Token x has logits $l = Wx + b$. The code is the argmax of the noisy logits, and its relaxed twin the mean of the table
over the shares $y = \mathrm{softmax}((l + g) / λ)$. The backward pass computes logits and noise of a chunk anew, unless
there is one chunk only, whose shares are kept.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernel.operator import is_enabled
from ..kernel.tile import fits
from .arithmetic import Temperature, cast, compute_dtype, is_transformed
from .log_simplex import noise_of_key, perturb
from .noise import Keys, Slice, Source, gumbel, key_of
from .slice import Window

CHUNK = {"cpu": 2**18, "cuda": 2**23}
"""The number of logits in memory at once: some megabytes, which a cache holds."""
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
"""The difference of the seeds of two chunks, which keeps them apart from those of other draws."""


class Looked(NamedTuple):
    """What `look_up` returns, by group g of codes and token t."""

    value: Float[Tensor, "g t size"]
    indices: Int64[Tensor, "g t"]
    entropy: Float[Tensor, "g t"]
    """The entropy of the codes of a token in nats. Empty unless asked for."""
    share: Float[Tensor, "g codes"]
    """The sum over tokens of the probabilities of codes, weighted by `weight_of`. Empty unless asked for."""


def look_up(
    x: Float[Tensor, "t features"],
    weight: Float[Tensor, "g codes features"],
    bias: Float[Tensor, "g codes"],
    table: Float[Tensor, "g codes size"],
    temperature: Temperature,
    *,
    weight_of: Float[Tensor, " t"],
    hard: bool = True,
    scored: bool = False,
    draws: bool = True,
    generator: Source | None = None,
) -> Looked:
    """Draw a code for every token and group, and return its row of the table.

    If `hard`, values are rows of the table, and the logits have the gradient of the relaxed value; else they are
    relaxed values. If `scored`, return the entropies and the shares too. Without `draws`, there is no noise. If ranks
    share the tokens, the generator is a `Slice` of rows with equally many tokens in each.
    """
    key = key_of(generator, x.device) if draws else None
    window = generator.window(len(x)) if isinstance(generator, Slice) else None
    learned = isinstance(temperature, Tensor) and temperature.requires_grad
    given = x, weight, bias, table, temperature, key, weight_of, hard, scored, window
    if is_transformed() or learned:
        return definition(*given)
    return Looked(*_LookUp.apply(*given))  # type: ignore[no-untyped-call]


def definition(
    x: Float[Tensor, "t features"],
    weight: Float[Tensor, "g codes features"],
    bias: Float[Tensor, "g codes"],
    table: Float[Tensor, "g codes size"],
    temperature: Temperature,
    key: Int64[Tensor, "1 2"] | None,
    weight_of: Float[Tensor, " t"],
    hard: bool,
    scored: bool,
    window: Window | None = None,
) -> Looked:
    """Draw codes with all logits in memory: the definition of `look_up`. `window` are the places of the tokens."""
    logits = _logits(x, weight, bias)
    parts = [_noisy(logits[:, start:stop], own) for start, stop, own in _chunks(x, bias, key, window)]
    noisy = torch.cat(parts, 1) if parts else logits
    mean = cast((noisy / temperature).softmax(-1), table.dtype) @ (table.detach() if hard else table)
    index = noisy.detach().argmax(-1)
    value = _rows(table, index) + (mean - mean.detach()) if hard else mean
    if not scored:
        return Looked(value, index, logits.new_empty(0), logits.new_empty(0))
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    return Looked(value, index, -(probs * log_probs).sum(-1), (probs * weight_of.unsqueeze(-1)).sum(1))


class _LookUp(torch.autograd.Function):
    """`look_up` in chunks of tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        table: Tensor,
        temperature: Temperature,
        key: Tensor | None,
        weight_of: Tensor,
        hard: bool,
        scored: bool,
        window: Window | None,
    ) -> tuple[Tensor, ...]:
        groups, codes = bias.shape
        wide = compute_dtype(x.dtype)
        index = torch.empty((groups, len(x)), dtype=torch.int64, device=x.device)
        value = table.new_empty((groups, len(x), table.shape[-1]))
        entropy = torch.empty((groups, len(x)) if scored else 0, dtype=wide, device=x.device)
        share = torch.zeros((groups, codes) if scored else 0, dtype=wide, device=x.device)
        chunks, kept = _chunks(x, bias, key, window), []
        keeps = len(chunks) == 1 and any(ctx.needs_input_grad)
        for start, stop, own in chunks:
            logits = _logits(x[start:stop], weight, bias)
            if hard and own is not None and own.is_whole and _runs_kernel(logits):
                index[:, start:stop] = _kernel().choose(logits, own.key)
            else:
                noisy = _noisy(logits, own)
                index[:, start:stop] = noisy.argmax(-1)
                if not hard or keeps:
                    soft = (noisy if _is_one(temperature) else noisy / temperature).softmax(-1)
                    kept = [soft] if keeps else []
                if not hard:
                    value[:, start:stop] = cast(soft, table.dtype) @ table
            if scored:
                log_probs = logits.log_softmax(-1)
                probs = log_probs.exp()
                entropy[:, start:stop] = log_probs.mul_(probs).sum(-1).neg_()
                share += torch.matmul(weight_of[start:stop].to(wide), probs)
        if hard:
            value = _rows(table, index)
        temperature = temperature.clone() if isinstance(temperature, Tensor) else temperature  # which may move on
        ctx.temperature, ctx.hard, ctx.scored, ctx.window = temperature, hard, scored, window
        ctx.save_for_backward(x, weight, bias, table, weight_of, index, entropy, key, *kept)
        ctx.mark_non_differentiable(index)
        ctx.set_materialize_grads(False)
        return value, index, entropy, share

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, ...]:
        by_value, _, by_entropy, by_share = by
        x, weight, bias, table, weight_of, index, entropy, key, *kept = ctx.saved_tensors
        wide = compute_dtype(x.dtype)
        by_table = torch.zeros_like(table, dtype=wide)
        if ctx.hard and by_value is not None:
            places = _places(table, index).flatten()
            by_table.flatten(0, 1).index_add_(0, places, by_value.flatten(0, 1).to(wide))
        is_scored = ctx.scored and not (by_entropy is None and by_share is None)
        if by_value is None and not is_scored:
            return (None,) * 10
        by_x, by_weight, by_bias = torch.empty_like(x), None, None
        for start, stop, own in _chunks(x, bias, key, ctx.window):
            logits = kept[0] if kept and not is_scored else _logits(x[start:stop], weight, bias)
            by_logits = None
            if by_value is not None:
                part = by_value[:, start:stop]
                by_logits = (part @ table.mT).to(wide)
                if ctx.hard and not kept and own is not None and own.is_whole and _runs_kernel(logits):
                    cold = torch.as_tensor(ctx.temperature, dtype=torch.float32, device=x.device)
                    by_logits = _kernel().pull(by_logits, logits, own.key, cold)
                else:
                    soft = kept[0] if kept else (_noisy(logits, own) / ctx.temperature).softmax(-1)
                    if not ctx.hard:
                        by_table += (soft.to(part.dtype).mT @ part).to(wide)
                    by_logits = torch._softmax_backward_data(by_logits, soft, -1, wide)
                    by_logits = by_logits if _is_one(ctx.temperature) else by_logits.div_(ctx.temperature)
            if is_scored:
                log_probs = logits.log_softmax(-1)
                probs, slope = log_probs.exp(), torch.zeros_like(logits)
                if by_share is not None:
                    slope += by_share.unsqueeze(1) * weight_of[start:stop].to(wide).unsqueeze(-1)
                    slope -= (probs * slope).sum(-1, keepdim=True)
                if by_entropy is not None:
                    own_entropy = entropy[:, start:stop].unsqueeze(-1)
                    slope -= by_entropy[:, start:stop].unsqueeze(-1) * (log_probs + own_entropy)
                slope *= probs
                by_logits = slope if by_logits is None else by_logits.add_(slope)
            assert by_logits is not None
            narrow = by_logits.to(x.dtype)
            by_x[start:stop] = (narrow @ weight).sum(0) if len(bias) > 1 else narrow[0] @ weight[0]
            more_weight, more_bias = (narrow.mT @ x[start:stop]).to(wide), by_logits.sum(1)
            by_weight = more_weight if by_weight is None else by_weight.add_(more_weight)
            by_bias = more_bias if by_bias is None else by_bias.add_(more_bias)
        if by_weight is None or by_bias is None:  # no tokens
            by_weight, by_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        found = by_x, by_weight.to(weight.dtype), by_bias.to(bias.dtype), by_table.to(table.dtype)
        return *found, None, None, None, None, None, None


class _Own(NamedTuple):
    """The noise of some tokens: those from `first` on among the `total` tokens of a chunk, which has a key."""

    key: Int64[Tensor, "1 2"]
    first: int
    total: int
    is_whole: bool


def _chunks(x: Tensor, bias: Tensor, key: Tensor | None, window: Window | None) -> list[tuple[int, int, _Own | None]]:
    """Return the ends of chunks of tokens, and the noise of each. Ranks have parts of the chunks of all tokens."""
    size = max(CHUNK.get(x.device.type, CHUNK["cuda"]) // max(bias.numel(), 1) // 4 * 4, 4)
    if key is None:
        return [(start, min(start + size, len(x)), None) for start in range(0, len(x), size)]
    blocks, first, length, stride = window or Window(1, 0, len(x), len(x))
    total, found = blocks * stride, list[tuple[int, int, _Own | None]]()
    keys = _chunk_keys(key, -(-total // size))
    for block in range(blocks):
        place, end = block * stride + first, block * stride + first + length
        while place < end:
            chunk, start = place // size, block * (length - stride) - first
            begin, stop = chunk * size, min((chunk + 1) * size, total)
            last = min(stop, end)
            own = _Own(keys[chunk], place - begin, stop - begin, (place, last) == (begin, stop))
            found.append((start + place, start + last, own))
            place = last
    return found


def _chunk_keys(key: Int64[Tensor, "1 2"], count: int) -> Sequence[Int64[Tensor, "1 2"]]:
    """Return the keys of chunks."""
    if count <= 1:
        return [key]
    seed, nonce = key.squeeze(0).unbind()
    seeds = seed + GOLDEN * torch.arange(count, device=key.device)
    moved = torch.stack([seeds, nonce.expand_as(seeds)], -1)
    return [moved[i : i + 1] for i in range(count)]


def _logits(x: Tensor, weight: Tensor, bias: Tensor) -> Float[Tensor, "g t codes"]:
    return cast(x @ weight.mT, compute_dtype(x.dtype)) + bias.unsqueeze(1)


def _noise(own: _Own, shape: Sequence[int], like: Tensor) -> Float[Tensor, "g t codes"]:
    """Return Gumbel noise of tokens. On a GPU it is that of the kernels."""
    groups, tokens, codes = shape
    if like.is_cuda and like.dtype == torch.float32:
        whole = noise_of_key(own.key, 1, groups * own.total, codes).view(groups, own.total, codes)
        return whole.narrow(1, own.first, tokens)
    keys = Keys(own.key)
    sliced = Slice(keys, rank=0, ranks=1).at(own.first, own.total).of_rows(groups, tokens)
    return gumbel(shape, like.dtype, device=like.device, generator=keys if own.is_whole else sliced)


def _noisy(logits: Tensor, own: _Own | None) -> Float[Tensor, "g t codes"]:
    return logits if own is None else perturb(logits, _noise(own, logits.shape, logits))


def _is_one(temperature: Temperature) -> bool:
    return isinstance(temperature, float) and temperature == 1


def _places(table: Tensor, index: Tensor) -> Int64[Tensor, "g t"]:
    """Return the places of codes among the codes of all groups."""
    if len(table) == 1:
        return index
    return index + (torch.arange(len(table), device=table.device) * table.shape[1]).unsqueeze(-1)


def _rows(table: Tensor, index: Tensor) -> Float[Tensor, "g t size"]:
    return table.flatten(0, 1)[_places(table, index)]


def _runs_kernel(logits: Tensor) -> bool:
    """Return whether the kernels can run: on a GPU, in float32."""
    is_wide = logits.dtype == torch.float32 and logits.numel() > 0
    return is_wide and is_enabled("codebook", logits) and fits(logits.numel() // logits.shape[-1], logits.shape[-1])


@cache
def _kernel() -> ModuleType:
    return import_module("concretely.kernel.codebook")
