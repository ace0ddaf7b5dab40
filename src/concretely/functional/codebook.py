r"""Codes drawn from a large codebook, in chunks of tokens, so that logits and noise are never all in memory.

Token x has logits $l = Wx + b$. The code is the argmax of the noisy logits, and its relaxed twin the mean of the table
over the shares $y = \mathrm{softmax}((l + g) / λ)$. The backward pass needs the shares, which are kept if they are few,
and otherwise recomputed for each chunk. The noise of a token depends on the key and its index, and not on the chunks.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, linear

from ..kernel.operator import is_enabled, is_plain, plain_apply
from ..kernel.tile import fits
from .arithmetic import Temperature, cast, compute_dtype, is_forward_differentiated, is_transformed
from .key import Key, kernel_key, key_of
from .log_simplex import perturb
from .noise import Keys, Source, gumbel, gumbel_of, uniform_of
from .philox import row_fractions
from .slice import Slice, Window, spans

CHUNK = {"cpu": 2**18, "cuda": 2**26}
"""The number of logits in memory at once: 1 MiB, which a cache holds, or 256 MiB, which keep a GPU busy."""
KEPT = {"cpu": 2**18, "cuda": 2**29}
"""The maximum number of shares that are kept for the backward pass: 1 MiB or, on a GPU, 2 GiB."""
MANY, LONG = 2**20, 2**14
"""The minimum number of elements of a product and the maximum length of its sums for the kernel, which computes tiles
of 2¹³ elements, and whose sums are cut off and not rounded, so that the error grows with their length."""
FEW = 2**20
"""Up to this number of logits, the time on a GPU depends on the number of operations, and not on their work."""
DENSE = [(8, 0), (9, 0), (10, 0)]
"""The compute capabilities whose tensor cores multiply TF32 at several times the rate of float32."""


class Looked(NamedTuple):
    """The result of `look_up`, by group g of codes and token t."""

    value: Float[Tensor, "t sizes"]
    """The rows of the tables, those of all groups joined."""
    indices: Int64[Tensor, "g t"]
    entropy: Float[Tensor, "g t"] | None = None
    """The entropy of the codes of a token in nats. None unless asked for."""
    share: Float[Tensor, "g codes"] | None = None
    """The sum over tokens of the probabilities of codes, weighted by `weight_of`. None unless asked for."""
    is_counted: bool = False
    """Whether the tokens were added to `counts`."""


def look_up(
    x: Float[Tensor, "t features"],
    weight: Float[Tensor, "g codes features"],
    bias: Float[Tensor, "g codes"],
    table: Float[Tensor, "g codes size"],
    temperature: Temperature,
    *,
    weight_of: Float[Tensor, " t"] | None = None,
    hard: bool = True,
    scored: bool = False,
    draws: bool = True,
    counts: Float[Tensor, "g codes"] | None = None,
    generator: Source | None = None,
) -> Looked:
    """Draw a code for every token and group, and return its row of the table.

    If `hard`, values are rows of the table, and the logits have the gradient of the relaxed value; else they are
    relaxed values. If `scored`, return the entropies and the shares too. Without `draws`, there is no noise. If one
    kernel draws all codes, and tokens have no weights, it adds the number of tokens of each code to `counts`. If ranks
    share the tokens, the generator is a `Slice` of rows with equally many tokens in each.
    """
    learned = isinstance(temperature, Tensor) and temperature.requires_grad
    window = generator.window(len(x)) if isinstance(generator, Slice) else None
    if is_transformed() or is_forward_differentiated() or learned:
        own = key_of(generator, x.device) if draws else None
        return definition(x, weight, bias, table, temperature, own, weight_of, hard, scored, window)
    key = _key(x, bias, generator) if draws else None
    if isinstance(key, tuple) and window is None and hard and not scored and _are_few(x, weight, bias, table):
        counts = counts if weight_of is None else None
        value, index = _LOOK_UP_FEW(x, weight, bias, table, temperature, key, counts)
        return Looked(value, index, is_counted=counts is not None)
    records = torch.is_grad_enabled()
    results = _LOOK_UP(x, weight, bias, table, temperature, key, weight_of, hard, scored, records, window)
    return Looked(*(results if scored else results[:2]))


def definition(
    x: Float[Tensor, "t features"],
    weight: Float[Tensor, "g codes features"],
    bias: Float[Tensor, "g codes"],
    table: Float[Tensor, "g codes size"],
    temperature: Temperature,
    key: Int64[Tensor, "1 2"] | None,
    weight_of: Float[Tensor, " t"] | None,
    hard: bool,
    scored: bool,
    window: Window | None = None,
) -> Looked:
    """Draw codes with all logits in memory: the definition of `look_up`. `window` are the places of the tokens."""
    logits = cast(x @ weight.mT, compute_dtype(x.dtype)) + bias.unsqueeze(1)
    parts = [_noisy(logits[:, start:stop], key, place) for start, stop, place in spans(len(x), max(len(x), 1), window)]
    noisy = torch.cat(parts, 1) if len(parts) > 1 else parts[0] if parts else logits
    mean = cast((noisy / temperature).softmax(-1), table.dtype) @ (table.detach() if hard else table)
    index = noisy.detach().argmax(-1)
    value = table.flatten(0, 1)[_places(table, index)] + (mean - mean.detach()) if hard else mean
    value = value.transpose(0, 1).flatten(1)
    if not scored:
        return Looked(value, index)
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    share = (probs if weight_of is None else probs * weight_of.unsqueeze(-1)).sum(1)
    return Looked(value, index, -(probs * log_probs).sum(-1), share)


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
        key: Key | None,
        weight_of: Tensor | None,
        hard: bool,
        scored: bool,
        records: bool,
        window: Window | None,
    ) -> tuple[Tensor, ...]:
        wide = compute_dtype(x.dtype)
        keeps = records and any(ctx.needs_input_grad) and len(x) * bias.numel() <= _limit(KEPT, x)
        indices, values, entropies, kept = [], [], [], []
        share = torch.zeros(bias.shape if scored else 0, dtype=wide, device=x.device)
        for start, stop, place in _chunks(x, bias, window):
            logits = _logits(x[start:stop], weight, bias)
            if scored:
                log_probs = logits.log_softmax(-1)
                probs = log_probs.exp()
                own = weight_of[start:stop].to(wide) if weight_of is not None else probs.new_ones(stop - start)
                share += torch.matmul(own, probs)
                entropies.append(log_probs.mul_(probs).sum(-1).neg_())
            index, soft = _draw(logits, key, place, temperature, softens=keeps or not hard)
            indices.append(index)
            if soft is not None and keeps:
                kept.append(soft)
            if soft is not None and not hard:
                values.append(_product(cast(soft, table.dtype), table))
        index = _joined(indices, lambda: torch.empty((len(bias), 0), dtype=torch.int64, device=x.device))
        if hard:
            value = embedding(_places(table, index), table.flatten(0, 1))
        else:
            value = _joined(values, lambda: table.new_empty((len(bias), 0, table.shape[-1])))
        entropy = _joined(entropies, lambda: share.new_empty((len(bias), 0) if scored else 0))
        temperature = temperature.clone() if isinstance(temperature, Tensor) else temperature  # which may move on
        ctx.temperature, ctx.key, ctx.hard, ctx.scored, ctx.window = temperature, key, hard, scored, window
        ctx.save_for_backward(x, weight, bias, table, weight_of, index, entropy, *kept)
        ctx.mark_non_differentiable(index)
        ctx.set_materialize_grads(False)
        value = value.squeeze(0) if len(bias) == 1 else value.transpose(0, 1).flatten(1)
        return value, index, entropy, share

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, ...]:
        by_value, _, by_entropy, by_share = by
        x, weight, bias, table, weight_of, index, entropy, *kept = ctx.saved_tensors
        wide = compute_dtype(x.dtype)
        is_scored = ctx.scored and not (by_entropy is None and by_share is None)
        if by_value is None and not is_scored:
            return (None,) * 11
        by_value = None if by_value is None else by_value.reshape(len(x), len(bias), table.shape[-1]).transpose(0, 1)
        by_table = torch.zeros_like(table, dtype=wide)
        if ctx.hard and by_value is not None:
            places = _places(table, index).flatten()
            by_table.flatten(0, 1).index_add_(0, places, by_value.flatten(0, 1).to(wide))
        by_x, by_weight, by_bias = torch.empty_like(x, memory_format=torch.contiguous_format), None, None
        for number, (start, stop, place) in enumerate(_chunks(x, bias, ctx.window)):
            rows = x[start:stop]
            soft = kept[number] if kept else None
            logits = _logits(rows, weight, bias) if is_scored or soft is None else None
            by_logits = more_bias = None
            if is_scored:
                assert logits is not None
                log_probs = logits.log_softmax(-1)
                probs, by_logits = log_probs.exp(), torch.zeros_like(logits)
                if by_share is not None:
                    by_logits += by_share.unsqueeze(1)
                    if weight_of is not None:
                        by_logits *= weight_of[start:stop].to(wide).unsqueeze(-1)
                    by_logits -= (probs * by_logits).sum(-1, keepdim=True)
                if by_entropy is not None:
                    own_entropy = entropy[:, start:stop].unsqueeze(-1)
                    by_logits -= by_entropy[:, start:stop].unsqueeze(-1) * (log_probs + own_entropy)
                by_logits *= probs
            if by_value is not None:
                if soft is None:
                    assert logits is not None
                    soft = _draw(logits, ctx.key, place, ctx.temperature, softens=True)[1]
                assert soft is not None
                part = by_value[:, start:stop]
                if not ctx.hard:
                    by_table += _product(soft.to(part.dtype).mT, part)
                pulled, more_bias = _pull(_product(part, table.mT).to(wide), soft, ctx.temperature)
                by_logits, more_bias = (pulled, more_bias) if by_logits is None else (by_logits.add_(pulled), None)
            assert by_logits is not None
            more_bias = by_logits.sum(1) if more_bias is None else more_bias
            narrow = by_logits.to(x.dtype)
            if len(bias) == 1:
                _product(narrow, weight, out=by_x[start:stop].unsqueeze(0))
            else:
                by_x[start:stop] = _product(narrow, weight).sum(0)
            if by_weight is None or narrow.dtype != wide:
                more_weight = _product(narrow.mT, rows.expand(len(bias), -1, -1)).to(wide)
                by_weight = more_weight if by_weight is None else by_weight.add_(more_weight)
            else:
                _product(narrow.mT, rows.expand(len(bias), -1, -1), out=by_weight, adds=True)
            by_bias = more_bias if by_bias is None else by_bias.add_(more_bias)
        if by_weight is None or by_bias is None:  # no tokens
            by_weight, by_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        gradients = by_x, by_weight.to(weight.dtype), by_bias.to(bias.dtype), by_table.to(table.dtype)
        return *gradients, *[None] * 7


class _LookUpFew(torch.autograd.Function):
    """`look_up` for one group and few logits by kernels, in few operations."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, table: Tensor, temperature: Temperature,
        key: tuple[int, int], counts: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        weight, rows = weight.squeeze(0), table.squeeze(0)
        logits, bias = linear(x, weight), bias.contiguous()  # added by the kernel, in less time than by cuBLAS
        index, value = _kernel().draw(logits, key, 0, temperature, keeps=True, bias=bias, table=rows, counts=counts)
        ctx.temperature = temperature.clone() if isinstance(temperature, Tensor) else temperature  # which may move on
        ctx.save_for_backward(x, weight, rows, index, logits)
        ctx.set_materialize_grads(False)
        return value, index.unsqueeze(0)

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, ...]:
        # what torch does for a second derivative takes as long as several operations
        pull: Callable[..., Any] = once_differentiable(_pull_few) if torch.is_grad_enabled() else _pull_few
        return pull(ctx, by[0])  # type: ignore[no-any-return]


def _pull_few(ctx: Any, by_value: Tensor | None) -> tuple[Tensor | None, ...]:
    if by_value is None:
        return (None,) * 7
    x, weight, rows, index, soft = ctx.saved_tensors
    by_logits = linear(by_value, rows)
    by_bias = _kernel().pull(by_logits, soft, ctx.temperature)[1]
    by_table = torch.zeros_like(rows).index_add_(0, index, by_value)
    by_weight = torch.mm(by_logits.t(), x).unsqueeze(0)
    return torch.mm(by_logits, weight), by_weight, by_bias, by_table.unsqueeze(0), None, None, None


_LOOK_UP: Callable[..., Any] = plain_apply(_LookUp)
_LOOK_UP_FEW: Callable[..., Any] = plain_apply(_LookUpFew)


def _are_few(x: Tensor, weight: Tensor, bias: Tensor, table: Tensor) -> bool:
    """Return whether there is one group with few logits in float32, for which a kernel pulls gradients."""
    if bias.numel() != bias.shape[-1] or not 0 < bias.numel() * x.shape[0] <= FEW or not fits(1, bias.shape[-1]):
        return False
    return x.dtype == weight.dtype == bias.dtype == table.dtype == torch.float32


def _limit(limits: dict[str, int], x: Tensor) -> int:
    return limits.get(x.device.type, limits["cuda"])


def _chunks(x: Tensor, bias: Tensor, window: Window | None) -> list[tuple[int, int, int]]:
    """Return the ends of chunks of tokens, and the place of the first among the tokens of all ranks."""
    return spans(len(x), max(_limit(CHUNK, x) // max(bias.numel(), 1), 1), window)


def _joined(parts: list[Tensor], none: Callable[[], Tensor]) -> Tensor:
    """Concatenate the results of all chunks."""
    if len(parts) > 1:
        return torch.cat(parts, 1)
    return parts[0] if parts else none()


def _key(x: Tensor, bias: Tensor, source: Source | None) -> Key:
    """Return a key for one draw, as numbers if the kernels draw from a generator of the GPU: this is faster."""
    is_seen = torch._C._len_torch_dispatch_stack() and not isinstance(source, Slice)  # by a mode of torch
    if is_seen or not _runs_kernel(x, bias.shape[-1]):
        return key_of(source, x.device)
    return kernel_key(source, x.device)


def _logits(x: Tensor, weight: Tensor, bias: Tensor) -> Float[Tensor, "g t codes"]:
    wide, many = compute_dtype(x.dtype), x.expand(len(bias), -1, -1)
    if x.dtype == bias.dtype == wide:
        return _product(many, weight.mT, bias)
    return cast(_product(many, weight.mT), wide) + bias.unsqueeze(1)


def _product(
    a: Float[Tensor, "g rows deep"],
    b: Float[Tensor, "g deep columns"],
    bias: Float[Tensor, "g columns"] | None = None,
    out: Float[Tensor, "g rows columns"] | None = None,
    *,
    adds: bool = False,
) -> Float[Tensor, "g rows columns"]:
    """Return the products of the matrices of all groups, plus a bias, or write them to `out`, or add them to it."""
    if len(a) > 1:
        if adds and out is not None:
            return out.baddbmm_(a, b)
        return torch.bmm(a, b, out=out) if bias is None else torch.baddbmm(bias.unsqueeze(1), a, b)
    one, other = a.squeeze(0), b.squeeze(0)
    own, onto = (None if tensor is None else tensor.squeeze(0) for tensor in (bias, out))
    if _multiplies(one, other):
        return _kernel().product(one, other, own, onto, adds=adds).unsqueeze(0)  # type: ignore[no-any-return]
    if adds and onto is not None:
        return onto.addmm_(one, other).unsqueeze(0)
    result = torch.mm(one, other, out=onto) if own is None else torch.addmm(own, one, other)
    return result.unsqueeze(0)


def _multiplies(one: Tensor, other: Tensor) -> bool:
    """Return whether the kernel multiplies two matrices, which is more precise than cuBLAS in float32, and faster."""
    if one.dtype != torch.float32 or torch.get_float32_matmul_precision() != "highest":
        return False
    if len(one) * other.shape[1] < MANY or len(other) > LONG or not is_enabled("codebook", one):
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(one.device) in DENSE


def _draw(
    logits: Tensor, key: Key | None, first: int, temperature: Temperature, *, softens: bool
) -> tuple[Int64[Tensor, "g t"], Float[Tensor, "g t codes"] | None]:
    """Return codes for the logits of tokens from `first` on, and shares if needed, which may replace the logits."""
    if key is not None and _runs_kernel(logits, logits.shape[-1]):
        return _kernel().draw(logits, key, first, temperature, keeps=softens)[0], logits if softens else None
    assert not isinstance(key, tuple)
    noisy = _noisy(logits, key, first)
    soft = (noisy if _is_one(temperature) else noisy / temperature).softmax(-1) if softens else None
    return noisy.argmax(-1), soft


def _pull(by: Tensor, soft: Tensor, temperature: Temperature) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of the logits, which may replace that of the shares, and its sum over tokens if known."""
    if _runs_kernel(soft, 4 * soft.shape[-1]):
        pulled: tuple[Tensor, Tensor] = _kernel().pull(by, soft, temperature)
        return pulled
    by_logits = torch._softmax_backward_data(by, soft, -1, soft.dtype)
    return by_logits if _is_one(temperature) else by_logits.div_(temperature), None


def _noise(key: Tensor, first: int, shape: Sequence[int], like: Tensor) -> Float[Tensor, "g t codes"]:
    """Return the Gumbel noise of tokens from `first` on. On a GPU it is that of the kernels."""
    groups, tokens, n = shape
    if like.is_cuda and like.dtype == torch.float32:
        if is_plain((like,)) and is_enabled("codebook", like):
            drawn: Tensor = _kernel().noise(key, first, groups, tokens, n)
        else:
            drawn = gumbel_of(uniform_of(row_fractions(key, first * groups * -(-n // 4), groups * tokens, n)))
        return drawn.view(tokens, groups, n).transpose(0, 1)
    source: Source = Keys(key)
    if first or not like.is_cpu:  # the number of all tokens does not matter, but must be the same in all chunks
        source = Slice(Keys(key), rank=0, ranks=1, layout=(1, tokens), place=(first, 2**32))
    return gumbel((tokens, groups, n), like.dtype, device=like.device, generator=source).transpose(0, 1)


def _noisy(logits: Tensor, key: Tensor | None, first: int) -> Float[Tensor, "g t codes"]:
    return logits if key is None else perturb(logits, _noise(key, first, logits.shape, logits))


def _is_one(temperature: Temperature) -> bool:
    return isinstance(temperature, float) and temperature == 1


def _places(table: Tensor, index: Tensor) -> Int64[Tensor, "g t"]:
    """Return the places of codes among the codes of all groups."""
    if len(table) == 1:
        return index
    return index + (torch.arange(len(table), device=table.device) * table.shape[1]).unsqueeze(-1)


def _runs_kernel(like: Tensor, n: int) -> bool:
    """Return whether the kernels can draw among n codes, for logits or inputs: on a GPU, in float32."""
    if compute_dtype(like.dtype) != torch.float32 or not like.numel():
        return False
    return is_enabled("codebook", like) and fits(like.numel() // like.shape[-1], -(-n // 4))


@cache
def _kernel() -> ModuleType:
    return import_module("concretely.kernel.codebook")
