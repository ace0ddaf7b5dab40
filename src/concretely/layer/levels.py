"""Quantisation to a few levels in each dimension: FSQ, and LFQ if all have two."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from ..distribution.check import require
from ..functional import level
from ..functional.arithmetic import bool_or_none, cast, compute_dtype
from ..functional.noise import Source, rounding
from .base import Layer, require_count, require_last, require_mask, require_number
from .rank import gathered, of_rows, sum_over_ranks

LARGEST = 2**20
"""The maximum number of codes that `decide` lists."""
GRID = [f"_{name}" for name in level.Grid._fields]
"""The buffers with a `Grid`."""


class Leveled(NamedTuple):
    """Quantised inputs."""

    value: Float[Tensor, "*batch features"]
    indices: Int64[Tensor, "*batch"]
    """The numbers of the codes."""
    place: Float[Tensor, "*batch d"]
    """Where each dimension lies between its first level, 0, and its last."""
    mask: Bool[Tensor, "*batch"] | None
    """Which inputs are not padding, or None if none is."""


class LevelsReport(NamedTuple):
    """Diagnostics of `Levels`, from the running counts of all ranks."""

    usage: Tensor
    """The share of the levels of all dimensions that are used."""
    entropy: Tensor
    """The entropy of the levels in nats, summed over the dimensions as if they were independent."""
    perplexity: Tensor
    """The number of equally frequent codes with that entropy."""


class Levels(Layer):
    r"""Rounding of tanh(x) to evenly spaced levels between -1 and 1 in each dimension.

    In training, a number is rounded up or down at random, so that its mean is kept, and has the gradient of the tanh.
    That gradient is unbiased for a loss that is linear in the value. In evaluation, it is rounded to the nearest level.
    Codes are computed in at least float32, so that inputs in half precision reach all of them. With levels (8, 5, 5, 5)
    this is finite scalar quantisation [mentzer2024finite]; with levels (2, 2, ...) lookup-free quantisation
    [yu2024language], where the bits are draws of `Hypercube(logits=2x)`.

    With the distribution q of the levels of an input, the penalty is $\mathrm{entropy} \cdot (E[H(q)] - γ H(E[q]))$,
    where γ is `diversity`, summed over the dimensions, for all inputs of all ranks.

    Args:
        levels: The number of levels of each dimension.
        features: The length of the last axis of inputs and outputs. If given, they are projected to the dimensions and
            back.
        entropy: The weight of the penalty.
        diversity: The weight of the entropy of the mean.

    >>> quantise = Levels((8, 5, 5, 5)).eval()
    >>> coded = quantise(torch.randn(10, 4))
    >>> coded.indices.shape, torch.equal(quantise.values(coded.indices), coded.value)
    (torch.Size([10]), True)
    """

    levels: Tensor
    counts: Tensor
    """The running number of inputs on each level of each dimension."""

    def __init__(
        self, levels: Sequence[int], *, features: int | None = None, entropy: float = 0.0, diversity: float = 1.0
    ) -> None:
        super().__init__()
        if not isinstance(levels, Iterable) or isinstance(levels, Tensor):
            raise TypeError(f"levels must have a number for each dimension, got {type(levels).__name__}")
        numbers = [require_count("levels", each, least=2) for each in levels]
        if not numbers:
            raise ValueError("levels must have a number for each dimension, got none")
        self._numbers = tuple(numbers)
        self.codes = math.prod(numbers)
        if self.codes >= 2**63:
            raise ValueError(f"levels must give fewer than 2**63 codes, got {self.codes}")
        self.entropy = require_number("entropy", entropy)
        self.diversity = require_number("diversity", diversity)
        self.features = len(numbers) if features is None else require_count("features", features)
        self._is_projected = features is not None
        self.encode = nn.Identity() if features is None else nn.Linear(self.features, len(numbers))
        self.decode = nn.Identity() if features is None else nn.Linear(len(numbers), self.features)
        self.register_buffer("levels", torch.tensor(numbers), persistent=False)
        for name, each in level.grid(torch.tensor(numbers))._asdict().items():
            self.register_buffer(f"_{name}", each, persistent=False)
        self.register_buffer("counts", torch.zeros(len(numbers), max(numbers)))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *how: Any) -> None:
        """Load a state; raise if it counts levels that this layer does not have: its codes mean something else."""
        counts = state_dict.get(f"{prefix}counts")
        if counts is not None and counts.shape == self.counts.shape:
            place = torch.arange(counts.shape[-1], device=counts.device)
            absent = place >= torch.tensor(self._numbers, device=counts.device).unsqueeze(-1)
            if not counts.is_meta and bool_or_none((absent & (counts > 0)).any()):
                raise ValueError(f"levels must be those of the loaded state, got {self._numbers}")
        super()._load_from_state_dict(state_dict, prefix, *how)

    def forward(
        self,
        x: Float[Tensor, "*batch features"],
        *,
        mask: Bool[Tensor, "*batch"] | None = None,
        generator: Source | None = None,
    ) -> Leveled:
        """Quantise inputs. `mask` is False where there is padding, which the penalty and the counts leave out."""
        return self._quantise(x, mask, draws=self.training, generator=generator)

    @torch.no_grad()
    @gathered
    def sample(self, x: Float[Tensor, "*batch features"], *, generator: Source | None = None) -> Leveled:
        """Quantise inputs by rounding at random, without gradients."""
        return self._quantise(x, None, draws=True, generator=generator, keeps=False)

    @property
    def _grid(self) -> level.Grid:
        own: dict[str, Any] = self._buffers
        return level.Grid(*[own[name] for name in GRID])

    @gathered
    def values(self, indices: Int64[Tensor, "*batch"]) -> Float[Tensor, "*batch features"]:
        """Return the outputs for numbers of codes."""
        most = self.codes - 1
        if not isinstance(indices, Tensor) or indices.is_floating_point():
            got = indices.dtype if isinstance(indices, Tensor) else type(indices).__name__
            raise TypeError(f"indices must be a tensor of whole numbers, got {got}")
        if not indices.is_cuda and bool_or_none(((indices >= 0) & (indices <= most)).all()) is False:
            raise ValueError(f"indices must lie between 0 and {most}, got {indices.min()} to {indices.max()}")
        dtype = next((each.dtype for each in self.parameters()), torch.float32)
        grid = self._grid
        value: Tensor = self.decode(
            level.value_of(level.level_of(indices, grid).to(compute_dtype(dtype)), grid.half).to(dtype)
        )
        return value

    def _quantise(
        self, x: Tensor, mask: Tensor | None, *, draws: bool, generator: Source | None, keeps: bool = True
    ) -> Leveled:
        require_last("x", x, self.features)
        mask = require_mask(mask, x)
        encoded: Tensor = self.encode(x) if self._is_projected else x
        grid, noise = self._grid, None
        if draws:
            source = of_rows(generator, x.shape[:-1])
            noise = rounding(encoded.shape, compute_dtype(encoded.dtype), device=x.device, generator=source)
        value, place, digits = level.rounded(encoded, grid, noise)
        value = cast(value, encoded.dtype)
        value = self.decode(value) if self._is_projected else value
        if level.have_nan(digits):
            is_coded = ~encoded.isnan() if mask is None else ~encoded.isnan() | ~mask.unsqueeze(-1)
            require("x", "be numbers", encoded, is_coded)
        result = Leveled(value, level.index_of(digits, grid, self.codes), place, mask)
        if not keeps:
            return result
        counts = None
        if self.training:
            counts = level.counts(digits, result.indices, grid, mask=mask, codes=self.codes)
        return self._keep(result, counts)

    def penalty(self, result: Leveled | None = None) -> Float[Tensor, ""]:
        """Return the penalty of a result, by default that of the latest training forward."""
        if not self.entropy:
            return torch.zeros((), device=self.counts.device)
        kept = self._kept(result, Leveled)
        if kept is None:
            return self.step.new_zeros((), dtype=torch.float32)
        share, mask = level.shares(kept.place, self.counts.shape[-1]), kept.mask
        share = share if mask is None else share * mask[..., None, None]
        own = level.entropy(share).sum().view(1)
        inputs = own.new_tensor([kept.indices.numel()]) if mask is None else mask.sum().to(own.dtype).view(1)
        sums = torch.cat([share.reshape(-1, *share.shape[-2:]).sum(0).flatten(), own, inputs])
        total, own, number = sum_over_ranks(sums).split([self.counts.numel(), 1, 1])
        number = number.clamp(min=1)
        between = level.entropy(total / number).sum()
        penalty: Tensor = self.entropy * ((own / number).squeeze(0) - self.diversity * between)
        return penalty

    @property
    def _is_penalising(self) -> bool:
        return self.entropy > 0

    def report(self) -> LevelsReport:
        """Return the running use of the levels."""
        share = self.counts / self.counts.sum(-1, keepdim=True).clamp(min=1e-30)
        used = (self.counts > 0).sum() / self.levels.sum()
        entropy = torch.special.entr(share).sum()
        return LevelsReport(used, entropy, entropy.exp())

    def decide(self) -> Tensor | None:
        """Return the outputs of all codes, or None if there are more than a million."""
        if self.codes > LARGEST:
            return None
        with torch.no_grad():
            return self.values(torch.arange(self.codes, device=self.levels.device))

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{self._numbers}, entropy={self.entropy}, diversity={self.diversity}"
