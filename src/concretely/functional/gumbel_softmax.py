"""Relaxed and one-hot draws of categories, without their log densities: the softmax of noisy logits.

The argmax of the noisy logits is a draw of the categorical variable; the softmax of the same noisy logits over a
temperature is its Concrete relaxation. See [maddison2017concrete] and [jang2017categorical].
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..kernel.operator import is_enabled, plain_apply
from ..kernel.tile import fits
from . import exp_concrete
from .arithmetic import Temperature, cast, compute_dtype, divide, is_seen, is_transformed
from .draw import draw_node, is_recorded
from .key import numbers_of
from .log_simplex import one_hot_argmax, perturb
from .noise import Keys, Source, few_log_exponential, gumbel
from .squashing import Argmax, Exponential
from .torch_draw import sliced_source, whole_count

FEW = 1024
"""Up to this number of elements on a CPU, the time depends on the number of operations, and not on their work."""
FEW_DTYPES = frozenset((torch.float32, torch.float64))
"""The dtypes in which noise is added to few logits without another conversion."""
KERNEL_DTYPES = frozenset((torch.float32, torch.float16, torch.bfloat16))
"""The dtypes of the kernel."""
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
    if isinstance(temperature, float) and temperature > 0:
        value = draw_at_once(logits, temperature, hard=hard, generator=generator)
        if value is not None:
            return value
        if not hard or temperature <= HOT:
            return _draw_seen(logits, temperature, hard=hard, generator=generator)
    return draw_by_definition(logits, temperature, hard=hard, generator=generator)


def draw_by_definition(
    logits: Float[Tensor, "*batch n"], temperature: Temperature, *, hard: bool, generator: Source | None
) -> Float[Tensor, "*batch n"]:
    """Draw as `draw` does, by operations that give finite values for all finite logits and temperatures."""
    noise = gumbel(logits.shape, compute_dtype(logits.dtype), device=logits.device, generator=generator)
    return cast(push(logits, temperature, noise, hard=hard), logits.dtype)


def draw_at_once(
    logits: Float[Tensor, "*batch n"], temperature: float, *, hard: bool, generator: Source | None = None
) -> Float[Tensor, "*batch n"] | None:
    """Draw as `draw` does at a positive temperature, or return None if this is not the way for these arguments.

    Python takes most of the time of an eager call, so this asks only what it must, and calls few functions. It draws
    from few logits on a CPU and from any number on a GPU if nothing but autograd must see the operations. Few logits
    are not shifted, as that would take a tenth of the time: noise is rounded beside float32 logits above about 1e4.
    """
    if is_seen(logits) or not (generator is None or type(generator) is Generator):
        return None
    if logits.is_cuda:
        if not _may_launch(logits) or not (generator is None or generator.device == logits.device):
            return None
        if logits.requires_grad and torch.is_grad_enabled():
            value: Tensor = _HARD(logits, temperature, generator)[0] if hard else _SOFT(logits, temperature, generator)
        else:
            value = _kernel().draw(logits, temperature, numbers_of(generator, logits.device), hard=hard)[0]
        return value
    if not logits.is_cpu or not 0 < logits.numel() <= FEW or not logits.dim() or logits.dtype not in FEW_DTYPES:
        return None
    if hard and temperature > HOT:
        return None
    cold = 1 / temperature
    # torch.add scales the logits and adds the noise in one operation
    soft = torch.softmax(torch.add(few_log_exponential(logits, -cold, generator), logits, alpha=cold), -1)
    if not torch.equal(soft, soft):  # only NaN differs from itself
        return None
    return straight_through(soft) if hard else soft


def _draw_seen(
    logits: Float[Tensor, "*batch n"], temperature: float, *, hard: bool, generator: Source | None
) -> Float[Tensor, "*batch n"]:
    """Draw at a positive temperature by operations that a compiler, a transform or a mode of torch may see."""
    if _are_few(logits) and (generator is None or isinstance(generator, Generator)):
        shifted = logits - logits.detach().amax(-1, keepdim=True)
        noise = few_log_exponential(logits, -1 / temperature, generator)
        soft = torch.add(noise, shifted, alpha=1 / temperature).softmax(-1)
        return straight_through(soft) if hard else soft
    sliced = sliced_source(logits.shape) if generator is None else None
    if sliced is not None and _may_launch(logits):  # ranks draw as one process does
        key = torch.tensor([numbers_of(None, logits.device)], device=logits.device)
        generator = replace(sliced, source=Keys(key))
    if logits.is_cuda and not torch.compiler.is_compiling():
        squashing = Argmax() if hard else Exponential()
        own = draw_node(exp_concrete, logits, temperature, sample_shape=(), generator=generator, squashing=squashing)
        return cast(own.value, logits.dtype)
    if not is_recorded(logits):
        return draw_by_definition(logits, temperature, hard=hard, generator=generator)
    soft = _Soft.apply(logits, temperature, generator)  # type: ignore[no-untyped-call]
    return cast(straight_through(soft) if hard else soft, logits.dtype)


def _may_launch(logits: Tensor) -> bool:
    """Return whether the kernel `gumbel_softmax` can draw now. It cannot be captured."""
    if not is_enabled("gumbel_softmax", logits) or logits.dtype not in KERNEL_DTYPES:
        return False
    shape = logits.shape
    if not shape or not shape[-1] or not fits(logits.numel(), shape[-1]):
        return False
    return not torch.cuda.is_current_stream_capturing()


def _are_few(logits: Tensor) -> bool:
    """Return whether few logits are on a CPU. Ranks that share a batch draw as one process does."""
    if not logits.is_cpu or not logits.dim() or logits.dtype not in FEW_DTYPES or is_transformed():
        return False
    return logits.numel() > 0 and whole_count(logits.shape) <= FEW


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
        soft = divide(total, temperature, lambda _: state.log()).softmax(-1)
    else:
        soft = (total / temperature).softmax(-1) if temperature > 0 else state
    return state + (soft - soft.detach()) if hard else soft


class _Soft(torch.autograd.Function):
    """A relaxed draw in at least float32, as one autograd node."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float, generator: Source | None) -> Tensor:
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        noise = gumbel(logits.shape, compute_dtype(logits.dtype), device=logits.device, generator=generator)
        # in memory of its own: noise may be a view, and torch refuses to modify a view that a function returns
        total = (logits.to(noise.dtype).contiguous() - logits.amax(-1, keepdim=True)).add_(noise)
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
