"""Nodes on the logarithm of the simplex: noisy logits over a temperature, normalised."""

from collections.abc import Sequence
from types import ModuleType
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from ..kernel.exp_concrete import Squash
from ..noise import Source
from . import check
from .cast import cast, working
from .constraint import log_simplex
from .fused import Draw, Unit
from .node import Tempered
from .recover import recover
from .temperature import Temperature, cool


def push(
    logits: Float[Tensor, "*batch n"], temperature: Temperature, noise: Float[Tensor, "*shape n"]
) -> Float[Tensor, "*out n"]:
    """The log softmax of the noisy logits over the temperature; the log of their one-hot argmax where that is zero."""
    total = perturb(logits, noise)
    # with the largest at 0, a division by a small temperature leaves the limit and not a NaN
    cooled = cool(total.sub_(total.detach().amax(-1, keepdim=True)), temperature, log_one_hot_argmax)
    return cooled - cooled.exp().sum(-1, keepdim=True).log()


def perturb(logits: Float[Tensor, "*batch n"], noise: Float[Tensor, "*shape n"]) -> Float[Tensor, "*out n"]:
    """The noisy logits, up to a shift: beside a logit of a thousand, noise would be rounded away."""
    logits = cast(logits, working(logits.dtype))
    return (logits - logits.detach().amax(-1, keepdim=True)) + noise


def log_one_hot_argmax(total: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Zero at the largest entry, minus infinity elsewhere."""
    return one_hot_argmax(total).log()


def one_hot_argmax(total: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """One at the largest entry, zero elsewhere."""
    category = torch.arange(total.shape[-1], device=total.device)
    return (category == total.argmax(-1, keepdim=True)).to(total.dtype)


class OnLogSimplex(Tempered):
    """A node that is the log softmax of noisy logits over a temperature."""

    support = log_simplex
    category_axes = 1
    is_ranked = True
    _kernel: ModuleType
    """What draws and scores it on a GPU."""

    @classmethod
    def from_probs(cls, probs: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probabilities whose logarithms are its logits."""
        return cls(check.as_log_probs(probs, validate_args=validate_args), temperature, validate_args=validate_args)

    @property
    def mode(self) -> Float[Tensor, "*batch n"]:
        """The point of highest density: the log softmax of the logits over the temperature."""
        return self.push(torch.zeros_like(self.logits))

    def _fused(self, sample_shape: Sequence[int], generator: Source | None, squash: Squash, axes: int) -> Draw | None:
        return self._unit.draw(sample_shape, self.batch_shape, generator, squash, axes)

    def _fused_score(self, value: Tensor, axes: int) -> Tensor | None:
        return self._unit.score(value, axes)

    @property
    def _unit(self) -> Unit:
        return Unit(self._kernel, self.logits, 1, self._temperature)

    def _push(self, noise: Tensor) -> Tensor:
        return push(self.logits, self._value_temperature, noise)

    def _log_density(self, value: Tensor) -> Tensor:
        # a shift common to all categories cancels, and with it the normaliser between a value and its noise
        return self._log_density_of_noise(recover(value, self.logits, self._value_temperature, up_to_shift=True))
