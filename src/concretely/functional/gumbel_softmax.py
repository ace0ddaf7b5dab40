"""Relaxed and one-hot draws of categories, without their log densities: the softmax of noisy logits.

The argmax of the noisy logits is a draw of the categorical variable; the softmax of the same noisy logits over a
temperature is its Concrete relaxation. See [maddison2017concrete] and [jang2017categorical].
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..kernel.operator import is_enabled, is_plain, plain_apply
from ..kernel.tile import fits
from . import exp_concrete
from .arithmetic import Temperature, cast, compute_dtype, is_transformed
from .draw import draw_node, is_recorded
from .key import numbers_of
from .log_simplex import one_hot_argmax, perturb
from .noise import Keys, Source, few_log_exponential, gumbel
from .slice import Slice
from .squashing import Argmax, Exponential
from .torch_draw import is_sliced, sliced_source, whole_count

FEW, FEW_ON_GPU = 1024, 2**18
"""Up to this number of elements, the time depends on the number of operations, and not on their work."""
HOT = 16.0
"""Up to this temperature, the largest entry of a relaxed value is its category. Above, rounding makes ties."""


def draw(
    logits: Float[Tensor, "*batch n"],
    temperature: Temperature,
    *,
    hard: bool = False,
    generator: Source | None = None,
) -> Float[Tensor, "*batch n"]:
    """Draw relaxed values or, if `hard`, one-hot vectors with the gradient of the relaxed value.

    A temperature that is a tensor has the axes of the logits, with an axis of length 1 for the categories.
    """
    is_float = isinstance(temperature, float) and temperature > 0 and not (hard and temperature > HOT)
    if is_float and not isinstance(generator, Keys | Slice) and _are_few(logits, hard=hard):
        cold = float(1 / temperature)
        noise = few_log_exponential(logits, 1.0 if cold == 1 else -cold, generator)
        # torch.add scales the logits and adds the noise in one operation
        soft = (logits - noise if cold == 1 else torch.add(noise, logits, alpha=cold)).softmax(-1)
        return straight_through(soft) if hard else soft
    if is_float and not isinstance(generator, Keys | Slice) and _runs_kernel(logits):
        sliced = sliced_source(logits.shape) if generator is None else None
        if sliced is None:
            value: Tensor = _HARD(logits, temperature, generator)[0] if hard else _SOFT(logits, temperature, generator)
            return value
        generator = replace(sliced, source=Keys(torch.tensor([numbers_of(None, logits.device)], device=logits.device)))
    if logits.is_cuda and is_float and not torch.compiler.is_compiling():
        squashing = Argmax() if hard else Exponential()
        own = draw_node(exp_concrete, logits, temperature, sample_shape=(), generator=generator, squashing=squashing)
        return cast(own.value, logits.dtype)
    if not is_float or not is_recorded(logits):
        return draw_by_definition(logits, temperature, hard=hard, generator=generator)
    soft = _Soft.apply(logits, temperature, generator)  # type: ignore[no-untyped-call]
    return cast(straight_through(soft) if hard else soft, logits.dtype)


def draw_by_definition(
    logits: Float[Tensor, "*batch n"], temperature: Temperature, *, hard: bool, generator: Source | None
) -> Float[Tensor, "*batch n"]:
    """Draw as `draw` does, by operations that give finite values for all finite logits and temperatures."""
    noise = gumbel(logits.shape, compute_dtype(logits.dtype), device=logits.device, generator=generator)
    return cast(push(logits, temperature, noise, hard=hard), logits.dtype)


def _are_few(logits: Tensor, *, hard: bool) -> bool:
    """Return whether operations on logits run eagerly and in their dtype, and a few are faster than a kernel."""
    most = FEW if logits.is_cpu else 0 if hard else FEW_ON_GPU  # by a kernel, one-hot draws are always faster
    if logits.dtype.itemsize < 4 or is_transformed() or logits.numel() > most:
        return False
    if whole_count(logits.shape) > most:  # ranks that share a batch draw as one process does
        return False
    return logits.is_cpu or (logits.is_cuda and (is_plain((logits,)) or is_sliced()))


def _runs_kernel(logits: Tensor) -> bool:
    """Return whether the kernel `gumbel_softmax` can draw now. It cannot be captured."""
    if not is_enabled("gumbel_softmax", logits) or logits.dtype == torch.float64:
        return False
    if not is_recorded(logits) and not (is_sliced() and logits.requires_grad and torch.is_grad_enabled()):
        return False
    return fits(logits.numel(), logits.shape[-1]) and not torch.cuda.is_current_stream_capturing()


def straight_through(soft: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Return exact one-hot vectors of the largest entries, with the gradient of the entries."""
    known = soft.detach()
    if is_transformed():  # vmap has no rule for scatter_
        state = one_hot_argmax(known)
    else:
        state = torch.zeros_like(known).scatter_(-1, known.argmax(-1, keepdim=True), 1)
    return soft + state.sub_(known)  # 1 - x + x is 1 to the bit for x between 0 and 1


def push(
    logits: Float[Tensor, "*batch n"], temperature: Temperature, noise: Float[Tensor, "*batch n"], *, hard: bool = False
) -> Float[Tensor, "*batch n"]:
    """Return the draw made from noise: the definition of `draw`, in at least float32."""
    total = perturb(logits, noise)
    state = one_hot_argmax(total.detach())
    if isinstance(temperature, Tensor):
        positive, possible = temperature > 0, total > -math.inf
        # an impossible category would have a gradient of NaN for the temperature
        node = torch.where(possible, total, 0) / torch.where(positive, temperature, 1)
        soft = torch.where(positive, torch.where(possible, node, -math.inf).softmax(-1), state)
    else:
        soft = (total / temperature).softmax(-1) if temperature > 0 else state
    return state + (soft - soft.detach()) if hard else soft


class _Soft(torch.autograd.Function):
    """A relaxed draw in at least float32, as one autograd node."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float, generator: Source | None) -> Tensor:
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        noise = gumbel(logits.shape, compute_dtype(logits.dtype), device=logits.device, generator=generator)
        total = noise.add_(logits - logits.amax(-1, keepdim=True))
        # for few categories, this is faster than torch.softmax
        soft = total.sub_(total.amax(-1, keepdim=True)).div_(temperature).exp_()
        soft.div_(soft.sum(-1, keepdim=True))
        ctx.save_for_backward(soft)
        return soft

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor, None, None]:
        (soft,) = ctx.saved_tensors
        weighted = by[0] * soft
        by_logits = (weighted - soft * weighted.sum(-1, keepdim=True)) / ctx.temperature
        return cast(by_logits, ctx.dtype), None, None


class _SoftKernel(torch.autograd.Function):
    """The relaxed value by a kernel, as one autograd node."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float, generator: Generator | None) -> Tensor:
        soft: Tensor = _kernel().draw(logits, temperature, numbers_of(generator, logits.device), hard=False)[1]
        ctx.temperature = temperature
        ctx.save_for_backward(soft)
        return soft

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor, None, None]:
        (soft,) = ctx.saved_tensors
        return _pull(by[0], soft, ctx.temperature), None, None


class _HardKernel(torch.autograd.Function):
    """The one-hot draw and its relaxed value by a kernel, as one autograd node."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float, generator: Generator | None) -> tuple[Tensor, Tensor]:
        state, soft = _kernel().draw(logits, temperature, numbers_of(generator, logits.device), hard=True)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(soft)
        return state, soft  # the gradient may be differentiated by the relaxed value

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, None, None]:
        given = [gradient for gradient in by if gradient is not None]
        if not given:
            return None, None, None
        (soft,), total = ctx.saved_tensors, sum(given[1:], given[0])
        return _pull(total, soft, ctx.temperature), None, None


def _pull(by: Tensor, soft: Tensor, temperature: float) -> Tensor:
    """Return the gradient of the logits, from that of the relaxed value."""
    if torch.is_grad_enabled():
        weighted = by * soft
        return (weighted - soft * weighted.sum(-1, keepdim=True)) / temperature
    gradient: Tensor = _kernel().pull(by, soft, temperature)
    return gradient


_SOFT: Callable[..., Any] = plain_apply(_SoftKernel)
_HARD: Callable[..., Any] = plain_apply(_HardKernel)


@cache
def _kernel() -> ModuleType:
    return import_module("concretely.kernel.gumbel_softmax")
