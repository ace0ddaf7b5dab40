"""A router of tokens to experts."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import linear

from ..functional import balance
from ..functional.arithmetic import cast, compute_dtype
from ..functional.noise import Source
from ..functional.route import count, route, scale_of
from ..functional.squashing import straight_through
from ..functional.top_k import NOISE, Noise, inclusion
from ..spelling import require_one_of
from .base import UNUSED, Layer, is_autocast, require_count, require_last, require_mask, require_number
from .rank import of_rows, sum_over_ranks, whole, world_size

FEW = 2**12
"""Up to this number of scores, a search for the k largest takes less time than several for a maximum."""


class Routing(NamedTuple):
    """Where the tokens of a batch go."""

    weights: Float[Tensor, "*batch k"]
    """The weights of the chosen experts: 0 for padding."""
    indices: Int64[Tensor, "*batch k"]
    """The chosen experts, all different."""
    probabilities: Float[Tensor, "*batch experts"]
    """The softmax of the logits."""
    load: Float[Tensor, "*batch experts"]
    """The probability that an expert is chosen, given the noise of the others; without noise, whether it is chosen. Its
    mean over the noise sums to k. It is 0 for padding."""
    logits: Float[Tensor, "*batch experts"]
    mask: Bool[Tensor, "*batch"] | None
    """Which tokens are not padding, or None if none is."""


class RouterReport(NamedTuple):
    """Diagnostics of a `Router`, from running counts over the training tokens of all ranks.

    They count the choices of evaluation: noise would hide an expert that evaluation never chooses.
    """

    load: Tensor
    """The share of each expert in all choices."""
    usage: Tensor
    """The share of experts that are used."""
    entropy: Tensor
    """The entropy of the load in nats."""
    perplexity: Tensor
    """The number of equally loaded experts with that entropy."""


class Router(Layer):
    r"""A choice of k of several experts for each token.

    The experts with the k largest scores are chosen. The scores are the logits and a bias; in training, noise is added.
    The weights are the probabilities (the softmax of the logits) of the chosen experts, divided by their sum if k > 1.
    With k = 1, the weight is the probability itself [fedus2022switch], as it would otherwise have no gradient. Logits
    are computed in at least float32.

    Two mechanisms even the loads. `advance` raises the bias of experts that evaluation would choose for fewer of the
    training tokens than others, and lowers that of the others [wang2024auxiliary]. This depends on no other term of the
    loss. The penalty evens the loads in training, with noise.

    With the mean load $f_e$ of E experts and log normaliser $Z$, the penalty over all tokens of all ranks is

    $$\mathrm{balance} \cdot E \sum_e f_e^2 / (\sum_e f_e)^2 + z \cdot \mathrm{mean}(Z^2).$$

    The first term is smallest, equal to `balance`, if and only if all loads are equal. It is 1 + CV² in the notation of
    [shazeer2017outrageously]. Without noise, the load has the gradient of k times the mean probability, and the
    penalty twice that of [fedus2022switch].

    Args:
        features: The length of the last axis of the inputs.
        experts: The number of experts.
        k: How many experts each token goes to.
        noise: "gumbel", "learned" for normal noise with a learned standard deviation, or None.
        balance: The weight of the balance term.
        z: The weight of the squared log normaliser.
        bias_rate: How far a step moves the bias of an expert that is never chosen. At 0, none moves.

    >>> router = Router(16, 8, 2)
    >>> routing = router(torch.randn(4, 10, 16))
    >>> routing.indices.shape, routing.load.shape
    (torch.Size([4, 10, 2]), torch.Size([4, 10, 8]))
    """

    counts: Tensor
    """The running number of tokens that each expert would have in evaluation."""
    bias: Tensor
    """Added to the logits for the choice only."""

    def __init__(
        self,
        features: int,
        experts: int,
        k: int,
        *,
        noise: Literal["gumbel", "learned"] | None = "gumbel",
        balance: float = 1e-2,
        z: float = 1e-3,
        bias_rate: float = 5e-3,
    ) -> None:
        super().__init__()
        self.features = require_count("features", features)
        self.experts = require_count("experts", experts, least=2)
        self.k = require_count("k", k, most=experts, of=f", the number of experts, for Router({features}, {experts})")
        self.balance, self.z = require_number("balance", balance), require_number("z", z)
        self.bias_rate = require_number("bias_rate", bias_rate)
        self.follows = "bias" if bias_rate > 0 else ""
        if noise is not None:
            require_one_of("noise", noise, "gumbel", "learned")
        self.noise = noise
        self.weight = nn.Parameter(torch.empty(experts, features))
        nn.init.normal_(self.weight, std=0.02)
        self.scale_weight = nn.Parameter(torch.zeros(experts, features)) if noise == "learned" else None
        self.register_buffer("counts", torch.zeros(experts))
        self.register_buffer("bias", torch.zeros(experts))

    def forward(
        self,
        x: Float[Tensor, "*batch features"],
        *,
        mask: Bool[Tensor, "*batch"] | None = None,
        generator: Source | None = None,
    ) -> Routing:
        """Route tokens. `mask` is True where there is a token, and False where there is padding."""
        routing = self._route(x, mask, draws=self.training, generator=generator)
        counted = None
        if self.training:
            indices = routing.indices if self.noise is None else _largest(self._biased(routing.logits.detach()), self.k)
            counted = count(indices, mask, self.experts)
        return self._keep(routing, counted)

    @torch.no_grad()
    def sample(
        self,
        x: Float[Tensor, "*batch features"],
        *,
        mask: Bool[Tensor, "*batch"] | None = None,
        generator: Source | None = None,
    ) -> Routing:
        """Route tokens with noise, without gradients."""
        return self._route(x, mask, draws=True, generator=generator)

    def expected_load(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch experts"]:
        """Return the probability that an expert is chosen in training, by integration. It sums to k for each token.

        It is slow, and made for tests and analysis: `Routing.load` has the same mean.
        """
        logits, spread = self._scores(x)
        biased = self._biased(logits)
        if self.noise is None:
            return torch.zeros_like(logits).scatter(-1, biased.topk(self.k, -1).indices, 1)
        return inclusion(biased, torch.ones_like(biased) if spread is None else scale_of(spread), self.k, self._law)

    @property
    def _law(self) -> Noise:
        return "normal" if self.noise == "learned" else "gumbel"

    def _scores(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits, and what the scale of learned noise depends on."""
        require_last("x", x, self.features)
        kind = x.device.type
        if is_autocast(kind):
            with torch.autocast(kind, enabled=False):
                return self._scores(x)
        wide = cast(x, compute_dtype(x.dtype))
        weight = whole(self.weight).to(wide.dtype)
        if self.scale_weight is None:
            return linear(wide, weight), None
        logits, spread = linear(wide, torch.cat([weight, whole(self.scale_weight).to(wide.dtype)])).chunk(2, -1)
        return logits, spread

    def _biased(self, logits: Tensor) -> Tensor:
        return logits + self.bias.to(logits.dtype)

    def _route(self, x: Tensor, mask: Tensor | None, *, draws: bool, generator: Source | None) -> Routing:
        logits, spread = self._scores(x)
        mask, noise = require_mask(mask, x), None
        if draws and self.noise is not None:
            source = of_rows(generator, x.shape[:-1])
            noise = NOISE[self._law](logits.shape, logits.dtype, device=logits.device, generator=source)
        weights, probabilities, load, indices = route(logits, self.bias, spread, noise, self.k, self._law)
        if mask is not None:
            weights, load = weights * mask.unsqueeze(-1), load * mask.unsqueeze(-1)
        return Routing(cast(weights, x.dtype), indices, probabilities, load, logits, mask)

    def penalty(self, routing: Routing | None = None) -> Float[Tensor, ""]:
        """Return the penalty of a routing, by default that of the latest training forward."""
        kept = self._kept(routing, Routing)
        if kept is None:
            return self.step.new_zeros((), dtype=torch.float32)
        load = kept.load
        if self.noise is None:
            soft = self.k * kept.probabilities
            soft = soft if kept.mask is None else soft * kept.mask.unsqueeze(-1)
            load = straight_through(load, soft, lambda soft: soft)
        if world_size() == 1:
            return balance.penalty(load, kept.logits, kept.probabilities, kept.mask, balance=self.balance, z=self.z)
        sums = [total.view(-1) for total in balance.sums(load, kept.logits, kept.mask)]
        load, square, tokens = sum_over_ranks(torch.cat(sums)).split([self.experts, 1, 1])
        return balance.combined(load, square.squeeze(0), tokens.squeeze(0), balance=self.balance, z=self.z)

    def _follow(self, counts: Tensor, steps: int) -> None:
        """Move the bias by the relative distance of every load below an even one, at most by the rate."""
        even = counts.mean()
        below = ((even - counts) / even.clamp(min=1e-30)).clamp(-1, 1)
        self.bias += self.bias_rate * steps * (below - below.mean())

    @property
    def _is_penalising(self) -> bool:
        return self.balance > 0 or self.z > 0

    def report(self) -> RouterReport:
        """Return the running load."""
        load = self.counts / self.counts.sum().clamp(min=1e-30)
        entropy = torch.special.entr(load).sum()
        used = (load > UNUSED / self.experts).float().mean()
        return RouterReport(load, used, entropy, entropy.exp())

    def decide(self) -> list[int]:
        """Return the experts that are used."""
        return (self.report().load > UNUSED / self.experts).nonzero().flatten().tolist()

    def extra_repr(self) -> str:
        """Return the arguments."""
        sizes, rates = f"{self.features}, {self.experts}, {self.k}", f"z={self.z}, bias_rate={self.bias_rate}"
        return f"{sizes}, noise={self.noise!r}, balance={self.balance}, {rates}"


def _largest(scores: Tensor, k: int) -> Tensor:
    """Return the places of the k largest scores: on a CPU, for many tokens, by one maximum after the other."""
    if k > 2 or not scores.is_cpu or scores.numel() <= FEW:
        return scores.topk(k, -1).indices
    first = scores.argmax(-1, keepdim=True)
    if k == 1:
        return first
    return torch.cat([first, scores.scatter(-1, first, -math.inf).argmax(-1, keepdim=True)], -1)
