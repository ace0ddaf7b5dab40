"""A router of tokens to experts."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from ..functional.arithmetic import cast, compute_dtype
from ..functional.noise import Source
from ..functional.top_k import NOISE, Noise, inclusion, load_given_others
from ..spelling import require_one_of
from .base import UNUSED, Layer, as_mask, require_count, require_last, require_number
from .rank import of_rows, sum_over_ranks, whole, world_size

LEAST_SCALE = 1e-2
"""The smallest standard deviation of learned noise."""


class Routing(NamedTuple):
    """Where the tokens of a batch go."""

    weights: Float[Tensor, "*batch k"]
    """The weights of the chosen experts: 0 for padding."""
    indices: Int64[Tensor, "*batch k"]
    """The chosen experts, all different."""
    probabilities: Float[Tensor, "*batch experts"]
    """The softmax of the logits."""
    load: Float[Tensor, "*batch experts"]
    """The probability that an expert is chosen, given the noise of the others; in evaluation, whether it is chosen. Its
    mean over the noise sums to k. It is 0 for padding."""
    logits: Float[Tensor, "*batch experts"]
    mask: Bool[Tensor, "*batch"]
    """Which tokens are not padding."""


class RouterReport(NamedTuple):
    """Diagnostics of a `Router`, from the running counts of all ranks."""

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

    In training, the experts with the k largest noisy logits are chosen; in evaluation, those with the k largest logits.
    The weights are the probabilities (the softmax of the logits) of the chosen experts, divided by their sum if k > 1.
    With k = 1, the weight is the probability itself [fedus2022switch], as it would otherwise have no gradient. Logits
    are computed in at least float32.

    With the mean load $f_e$ of E experts and log normaliser $Z$, the penalty over all tokens of all ranks is

    $$\mathrm{balance} \cdot E \sum_e f_e^2 / (\sum_e f_e)^2 + z \cdot \mathrm{mean}(Z^2).$$

    The first term is smallest, equal to `balance`, if and only if all loads are equal. It is 1 + CV² in the notation of
    [shazeer2017outrageously]. Without noise, the load has no gradient, and $f$ is the mean probability instead.

    Args:
        features: The length of the last axis of the inputs.
        experts: The number of experts.
        k: How many experts each token goes to.
        noise: "gumbel", "learned" for normal noise with a learned standard deviation, or None.
        balance: The weight of the balance term.
        z: The weight of the squared log normaliser.

    >>> router = Router(16, 8, 2)
    >>> routing = router(torch.randn(4, 10, 16))
    >>> routing.indices.shape, routing.load.shape
    (torch.Size([4, 10, 2]), torch.Size([4, 10, 8]))
    """

    counts: Tensor
    """The running number of tokens of each expert."""

    def __init__(
        self,
        features: int,
        experts: int,
        k: int,
        *,
        noise: Literal["gumbel", "learned"] | None = "gumbel",
        balance: float = 1e-2,
        z: float = 1e-3,
    ) -> None:
        super().__init__()
        self.features = require_count("features", features)
        self.experts = require_count("experts", experts, least=2)
        self.k = require_count("k", k, most=experts, of=f", the number of experts, for Router({features}, {experts})")
        self.balance, self.z = require_number("balance", balance), require_number("z", z)
        if noise is not None:
            require_one_of("noise", noise, "gumbel", "learned")
        self.noise = noise
        self.weight = nn.Parameter(torch.empty(experts, features))
        nn.init.normal_(self.weight, std=0.02)
        self.scale_weight = nn.Parameter(torch.zeros(experts, features)) if noise == "learned" else None
        self.register_buffer("counts", torch.zeros(experts))

    def forward(
        self,
        x: Float[Tensor, "*batch features"],
        *,
        mask: Bool[Tensor, "*batch"] | None = None,
        generator: Source | None = None,
    ) -> Routing:
        """Route tokens. `mask` is True where there is a token, and False where there is padding."""
        routing = self._route(x, mask, draws=self.training, generator=generator)
        counted = torch.zeros_like(self.counts)
        if self.training:
            chosen = routing.mask.unsqueeze(-1).expand_as(routing.indices).flatten().to(counted.dtype)
            counted = counted.scatter_add(0, routing.indices.flatten(), chosen)
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
        logits, scale = self._scores(x)
        if self.noise is None:
            return torch.zeros_like(logits).scatter(-1, logits.topk(self.k, -1).indices, 1)
        return inclusion(logits, scale, self.k, self._law)

    @property
    def _law(self) -> Noise:
        return "normal" if self.noise == "learned" else "gumbel"

    def _scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the scale of their noise."""
        require_last("x", x, self.features)
        with torch.autocast(x.device.type, enabled=False):
            wide = cast(x, compute_dtype(x.dtype))
            logits = linear(wide, whole(self.weight).to(wide.dtype))
            if self.scale_weight is None:
                return logits, torch.ones_like(logits)
            return logits, softplus(linear(wide, whole(self.scale_weight).to(wide.dtype))) + LEAST_SCALE

    def _route(self, x: Tensor, given: Tensor | None, *, draws: bool, generator: Source | None) -> Routing:
        logits, scale = self._scores(x)
        mask = as_mask(given, x.shape[:-1], x.device)
        if draws and self.noise is not None:
            source = of_rows(generator, x.shape[:-1])
            noise = NOISE[self._law](logits.shape, logits.dtype, device=logits.device, generator=source)
            noisy = torch.addcmul(logits, scale, noise)
            top, indices = noisy.topk(min(self.k + 1, self.experts), -1)
            indices = indices[..., : self.k]
            load = load_given_others(logits, scale, noisy, top, self.k, self._law)
        else:
            indices = logits.topk(self.k, -1).indices
            load = torch.zeros_like(logits).scatter(-1, indices, 1)
        probabilities = logits.softmax(-1)
        # the softmax of the chosen logits are their probabilities, divided by the sum
        weights = logits.gather(-1, indices).softmax(-1) if self.k > 1 else probabilities.gather(-1, indices)
        if given is not None:
            weights, load = weights * mask.unsqueeze(-1), load * mask.unsqueeze(-1)
        return Routing(cast(weights, x.dtype), indices, probabilities, load, logits, mask)

    def penalty(self, routing: Routing | None = None) -> Float[Tensor, ""]:
        """Return the penalty of a routing, by default that of the latest training forward."""
        kept = self._kept(routing)
        if kept is None:
            return self.step.new_zeros((), dtype=torch.float32)
        load = kept.load if self.noise is not None else kept.probabilities * kept.mask.unsqueeze(-1)
        load = load.flatten(0, -2).sum(0)
        square = (kept.logits.logsumexp(-1).square() * kept.mask).sum()
        tokens = kept.mask.sum().to(load.dtype)
        if world_size() > 1:
            sums = torch.cat([load, square.view(1), tokens.view(1)])
            load, square, tokens = sum_over_ranks(sums).split([self.experts, 1, 1])
            square, tokens = square.squeeze(0), tokens.squeeze(0)
        share = load / (load.sum() + torch.finfo(load.dtype).tiny)  # all tokens may be padding
        even = share.square().sum() * (self.balance * self.experts)
        total: Tensor = even + square * (self.z / tokens.clamp(min=1))
        return total

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
        return f"{self.features}, {self.experts}, {self.k}, noise={self.noise!r}, balance={self.balance}, z={self.z}"
