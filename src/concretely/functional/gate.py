r"""Inputs times drawn gates, as one autograd node: L0 regularisation.

$$x \min(1, \max(0, γ + (ζ - γ) σ((L + \log α) / λ)))$$
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..kernel.operator import is_plain, is_watched, plain_apply
from . import hard_concrete, logistic
from .arithmetic import cast, compute_dtype, scalar
from .fused import pulled_again, runs_kernel
from .hard_concrete import Stretch, hardtanh_backward
from .key import Key, kernel_key, key_tensor
from .noise import Source


def gated(
    x: Float[Tensor, "*whole"],
    logits: Float[Tensor, "*shape"],
    temperature: float,
    stretch: Stretch,
    *,
    generator: Source | None = None,
) -> Float[Tensor, "*whole"]:
    """Multiply inputs by gates, drawn for each point. The logits have the shape of the last axes of the inputs."""
    if temperature > 0 and is_plain((x, logits)) and not is_watched():
        if x.is_cpu:
            noise = logistic.noise(x.shape, compute_dtype(logits.dtype), device=x.device, generator=generator)
            return _GATED(x, logits, noise, temperature, stretch)
        if runs_kernel("gate", x, logits, generator):
            return _GATED_BY_KERNEL(x, logits, kernel_key(generator, x.device), temperature, stretch)
    lead = x.shape[: x.dim() - logits.dim()]
    wide = cast(logits, compute_dtype(logits.dtype))
    gates = hard_concrete.draw(wide, temperature, stretch, sample_shape=lead, generator=generator)
    return x * cast(gates, x.dtype)


def defined(x: Tensor, logits: Tensor, noise: Tensor, temperature: float, stretch: Stretch) -> Tensor:
    """Return inputs times gates made from noise: the definition."""
    node = logistic.push(logits, temperature, noise)
    return x * cast(hard_concrete.squash(node, stretch, compute_dtype(logits.dtype)), x.dtype)


class _Gated(torch.autograd.Function):
    """`gated` on the CPU, from noise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, logits: Tensor, noise: Tensor, temperature: float, stretch: Stretch) -> Tensor:
        node = torch.add(noise, logits).div_(scalar(temperature))
        gates, share = hard_concrete.squash_without_gradient(node, stretch, noise.dtype)
        ctx.temperature, ctx.stretch = temperature, stretch
        ctx.save_for_backward(x, logits, noise, share, gates)
        return x * cast(gates, x.dtype)

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        x, logits, noise, share, gates = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *pulled_again(defined, (x, logits), by[0], noise, ctx.temperature, ctx.stretch), None, None, None
        by_logits = None
        if ctx.needs_input_grad[1]:
            by_gates = cast(by[0], gates.dtype) * x
            by_node = sigmoid_backward(hardtanh_backward(by_gates, gates, 0, 1), share)
            size = scalar((ctx.stretch[1] - ctx.stretch[0]) / ctx.temperature)
            by_logits = cast(by_node.sum_to_size(logits.shape).mul_(size), logits.dtype)
        return by[0] * cast(gates, by[0].dtype), by_logits, None, None, None


class _GatedByKernel(torch.autograd.Function):
    """`gated` by a kernel, from a key."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, logits: Tensor, key: Key, temperature: float, stretch: Stretch) -> Tensor:
        out, gates = _kernel().draw(x, logits, key, temperature, stretch, hard_concrete.ends(stretch))
        ctx.key, ctx.temperature, ctx.stretch = key, temperature, stretch
        ctx.save_for_backward(x, logits, gates)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        x, logits, gates = ctx.saved_tensors
        if torch.is_grad_enabled():
            noise = logistic.noise_of_key(key_tensor(ctx.key, x.device), 1, x.numel()).view(x.shape)
            return *pulled_again(defined, (x, logits), by[0], noise, ctx.temperature, ctx.stretch), None, None, None
        needs = ctx.needs_input_grad[:2]
        by_x, by_logits = _kernel().pull(by[0], x, gates, logits.shape, ctx.temperature, ctx.stretch, needs)
        return by_x, None if by_logits is None else cast(by_logits, logits.dtype), None, None, None


_GATED: Callable[..., Tensor] = plain_apply(_Gated)
_GATED_BY_KERNEL: Callable[..., Tensor] = plain_apply(_GatedByKernel)
sigmoid_backward = torch.ops.aten.sigmoid_backward.default


@cache
def _kernel() -> ModuleType:
    return import_module("concretely.kernel.gate")
