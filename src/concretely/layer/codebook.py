"""A codebook: tokens are replaced by codes that are drawn from a large table."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, distributed, nn

from ..functional.arithmetic import bool_or_none
from ..functional.codebook import Looked, look_up
from ..functional.noise import Source
from ..functional.torch_draw import sliced_source
from ..spelling import require_one_of
from .base import (
    UNUSED,
    Layer,
    Setting,
    is_autocast,
    is_vmapped,
    require_count,
    require_last,
    require_mask,
    require_number,
)
from .rank import assign, gathered, of_rows, reshard, sum_over_ranks, whole, world_size


class Coded(NamedTuple):
    """Tokens as codes."""

    value: Float[Tensor, "*batch size"]
    """The rows of the table, those of all groups joined."""
    indices: Int64[Tensor, "*batch groups"]
    """The codes."""
    entropy: Float[Tensor, "*batch groups"] | None
    """The entropy of the codes in nats, or None if the layer has no penalty."""
    share: Float[Tensor, "groups codes"] | None
    """The sum of the probabilities of codes over tokens that are not padding, or None if the layer has no penalty."""
    mask: Bool[Tensor, "*batch"] | None
    """Which tokens are not padding, or None if all are tokens."""


class CodebookReport(NamedTuple):
    """Diagnostics of a `Codebook`, from the running counts of all ranks."""

    usage: Tensor
    """The share of codes that are used."""
    entropy: Tensor
    """The entropy of the codes in nats, the mean over groups."""
    perplexity: Tensor
    """The number of equally frequent codes with that entropy. It cannot exceed the number of tokens counted."""
    counts: Tensor
    """The running number of tokens of each code."""


class Codebook(Layer):
    r"""Codes drawn from learned logits of each token, with a learned row of a table for each code.

    In training, a code is the argmax of logits with Gumbel noise. Its value is the row of the table, with the gradient
    of the relaxed value ("straight-through"), or the relaxed value itself ("relaxed"). In evaluation, a code is the
    argmax of the logits. Logits and noise are computed for some tokens at a time, forwards and backwards, in at least
    float32, so a large codebook needs little memory. The shares of the codes, which the backward pass needs, are kept
    if they take at most 2 GiB on a GPU, or 1 MiB on a CPU, and recomputed otherwise.

    With the probabilities q of K codes for a token, the penalty is the sum over groups of

    $$\mathrm{kl} \cdot E[\log K - H(q)] + \mathrm{diversity} \cdot (\log K - H(E[q])),$$

    for all tokens of all ranks: the KL from the uniform prior, which is that of a bound on the likelihood for `kl=1`,
    and the same for the mean, as in [baevski2020framework]. Without both, most codes are often never used.

    Args:
        features: The length of the last axis of the inputs.
        codes: The number of codes of each group.
        size: The length of the last axis of the values, by default `features`.
        groups: The number of groups, each with its own codes for a part of the value.
        temperature: A number, or a schedule such as `Annealing`.
        gradient: "straight-through" or "relaxed".
        kl: The weight of the KL.
        diversity: The weight of the KL of the mean.

    >>> codebook = Codebook(16, 512, groups=2)
    >>> coded = codebook(torch.randn(4, 10, 16))
    >>> coded.value.shape, coded.indices.shape
    (torch.Size([4, 10, 16]), torch.Size([4, 10, 2]))
    """

    counts: Tensor

    def __init__(
        self,
        features: int,
        codes: int,
        *,
        size: int | None = None,
        groups: int = 1,
        temperature: Setting = 1.0,
        gradient: Literal["straight-through", "relaxed"] = "straight-through",
        kl: float = 1e-2,
        diversity: float = 1e-1,
    ) -> None:
        super().__init__(temperature)
        self.features = require_count("features", features)
        self.codes = require_count("codes", codes, least=2)
        self.groups = require_count("groups", groups)
        self.size = self.features if size is None else require_count("size", size)
        if self.size % self.groups:
            raise ValueError(f"size must be a multiple of groups, got size {self.size} and {self.groups} groups")
        require_one_of("gradient", gradient, "straight-through", "relaxed")
        self.gradient = gradient
        self.kl, self.diversity = require_number("kl", kl), require_number("diversity", diversity)
        self.weight = nn.Parameter(torch.randn(groups, codes, features) / math.sqrt(features))
        self.bias = nn.Parameter(torch.zeros(groups, codes))
        self.table = nn.Parameter(torch.randn(groups, codes, self.size // groups))
        self.register_buffer("counts", torch.zeros(groups, codes))

    def forward(
        self,
        x: Float[Tensor, "*batch features"],
        *,
        mask: Bool[Tensor, "*batch"] | None = None,
        generator: Source | None = None,
    ) -> Coded:
        """Code tokens. `mask` is False where there is padding, which the penalty and the counts leave out."""
        is_relaxed, keeps = self.training and self.gradient == "relaxed", self._keeps()
        counted = (torch.zeros_like(self.counts) if self._counted is None else self._counted) if keeps else None
        coded, counted = self._code(
            x, mask, draws=self.training, hard=not is_relaxed, generator=generator, counted=counted
        )
        if keeps:
            self._store(coded, counted)
        return coded

    def _count(self, coded: Coded, counted: Tensor) -> Tensor:
        """Add the counts of a result to counts."""
        index = coded.indices.reshape(-1, self.groups).T
        if coded.mask is None:
            if torch.compiler.is_compiling() or counted.is_inference():
                return counted.scatter(1, index, 1.0, reduce="add")
            return counted.scatter_(1, index, 1.0, reduce="add")
        return counted.scatter_add(1, index, coded.mask.reshape(1, -1).expand(self.groups, -1).to(counted.dtype))

    @torch.no_grad()
    @gathered
    def sample(
        self,
        x: Float[Tensor, "*batch features"],
        *,
        mask: Bool[Tensor, "*batch"] | None = None,
        generator: Source | None = None,
    ) -> Coded:
        """Draw codes with their probabilities, without gradients."""
        return self._code(x, mask, draws=True, hard=True, generator=generator)[0]

    @gathered
    def values(self, indices: Int64[Tensor, "*batch groups"]) -> Float[Tensor, "*batch size"]:
        """Return the values of codes."""
        if not isinstance(indices, Tensor) or indices.dtype != torch.int64:
            got = indices.dtype if isinstance(indices, Tensor) else type(indices).__name__
            raise TypeError(f"indices must be a tensor of torch.int64, got {got}")
        if not indices.dim() or indices.shape[-1] != self.groups:
            raise ValueError(f"indices must have a last axis of length {self.groups}, got shape {tuple(indices.shape)}")
        # on a GPU, a check would wait for it, and the lookup itself finds a number that is too large
        if not indices.is_cuda and bool_or_none(((indices >= 0) & (indices < self.codes)).all()) is False:
            raise ValueError(f"indices must lie between 0 and {self.codes - 1}, got {indices.min()} to {indices.max()}")
        return self.table[torch.arange(self.groups, device=indices.device), indices].flatten(-2)

    def _code(
        self,
        x: Tensor,
        mask: Tensor | None,
        *,
        draws: bool,
        hard: bool,
        generator: Source | None,
        counted: Tensor | None = None,
    ) -> tuple[Coded, Tensor | None]:
        """Return codes, and counts to which they are added, if there are any."""
        require_last("x", x, self.features)
        mask = require_mask(mask, x)
        kind, dtype, options = x.device.type, x.dtype, (draws, hard, counted, generator)
        if is_autocast(kind):
            with torch.autocast(kind, enabled=False):
                looked = self._look_up(x, mask, torch.get_autocast_dtype(kind), *options)
        else:
            looked = self._look_up(x, mask, dtype, *options)
        batch, indices, value, entropy = x.shape[:-1], looked.indices.T, looked.value, looked.entropy
        if len(batch) != 1:
            indices, value = indices.reshape(*batch, self.groups), value.reshape(*batch, self.size)
        entropy = None if entropy is None else entropy.T.reshape(indices.shape)
        coded = Coded(value, indices, entropy, looked.share, mask)
        if counted is not None and not looked.is_counted:
            counted = self._count(coded, counted)
        return coded, counted

    def _look_up(
        self,
        x: Tensor,
        mask: Tensor | None,
        dtype: torch.dtype,
        draws: bool,
        hard: bool,
        counted: Tensor | None,
        generator: Source | None,
    ) -> Looked:
        batch, given = x.shape[:-1], (x if x.dim() == 2 else x.reshape(-1, self.features), self.weight, self.table)
        x, weight, table = (tensor if tensor.dtype == dtype else tensor.to(dtype) for tensor in given)
        return look_up(
            x,
            weight,
            self.bias,
            table,
            self.temperature,
            weight_of=None if mask is None else mask.flatten().to(torch.float32),
            hard=hard,
            scored=(self._is_penalising and self.training) or is_vmapped(),
            draws=draws,
            counts=counted,
            generator=of_rows(generator, batch) or sliced_source(batch),
        )

    def penalty(self, coded: Coded | None = None) -> Float[Tensor, ""]:
        """Return the penalty of a result, by default that of the latest training forward."""
        if not self._is_penalising:
            return torch.zeros((), device=self.counts.device)
        kept = self._kept(coded, Coded)
        if kept is None or (not self.training and kept.entropy is None):
            return self.step.new_zeros((), dtype=torch.float32)
        if kept.entropy is None or kept.share is None:
            raise ValueError("coded must be the result of a forward in training mode, got one without entropy")
        if kept.mask is None:
            entropy, tokens = kept.entropy.sum(), kept.entropy.new_full((), kept.entropy.numel() // self.groups)
        else:
            entropy, tokens = (kept.entropy * kept.mask.unsqueeze(-1)).sum(), kept.mask.sum().to(kept.entropy.dtype)
        sums = torch.cat([kept.share.flatten(), torch.stack([entropy, tokens])])
        share, entropy, tokens = sum_over_ranks(sums).split([self.counts.numel(), 1, 1])
        tokens = tokens.clamp(min=1)
        most = self.groups * math.log(self.codes)
        mean = (share / tokens).clamp(min=torch.finfo(share.dtype).tiny)  # a probability may be rounded to 0
        kl, shared = (most - entropy / tokens).squeeze(0), most + (mean * mean.log()).sum()
        total: Tensor = self.kl * kl + self.diversity * shared
        return total

    @property
    def _is_penalising(self) -> bool:
        return self.kl > 0 or self.diversity > 0

    @torch.no_grad()
    def revive(self) -> int:
        """Replace every unused code by a copy of a frequent one with some noise, and return how many were replaced.

        All ranks must call it; they get the codes of the first.
        """
        reshard(self)
        parameters = self.weight, self.bias, self.table
        entries = [whole(parameter) for parameter in parameters]
        share = self.counts / self.counts.sum(-1, keepdim=True).clamp(min=1e-30)
        is_unused = share < UNUSED / self.codes
        for group, unused in enumerate(is_unused):
            if unused.all() or not unused.any():
                continue
            source = torch.multinomial(share[group], int(unused.sum()), replacement=True)
            for tensor in entries:
                rows = tensor[group]
                copied = rows[source]
                rows[unused] = copied + 0.01 * copied.std(unbiased=False) * torch.randn_like(copied)
        if world_size() > 1:
            for tensor in entries:
                distributed.broadcast(tensor, 0)
        for parameter, tensor in zip(parameters, entries, strict=True):
            if tensor is not parameter:
                assign(parameter, tensor)
        return int(is_unused.sum())

    def report(self) -> CodebookReport:
        """Return the running use of the codes."""
        share = self.counts / self.counts.sum(-1, keepdim=True).clamp(min=1e-30)
        entropy = torch.special.entr(share).sum(-1).mean()
        used = (share > UNUSED / self.codes).float().mean()
        return CodebookReport(used, entropy, entropy.exp(), self.counts.clone())

    @gathered
    def decide(self) -> Tensor:
        """Return the table of codes."""
        return self.table.detach().clone()

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{self.features}, {self.codes}, size={self.size}, groups={self.groups}, gradient={self.gradient!r}"
