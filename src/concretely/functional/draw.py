"""Draw and score variables of any batch shape, by a kernel if it is eligible, else by torch operations.

A `law` holds the functions of one family, such as the module `functional.logistic`. A node is here the unbounded
variable before squashing; a squashing maps it to a bounded value.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Size, Tensor

from ..kernel import operator as registry
from ..kernel.operator import is_plain, is_watched, plain_apply
from .arithmetic import Temperature, cast, compute_dtype, filled, sum_to
from .key import Key, kernel_key, key_of, key_tensor
from .noise import Keys, Source
from .slice import Slice
from .squashing import Squashing
from .torch_draw import sliced_source


class Drawn(NamedTuple):
    """A drawn value and functions that compute its log probability."""

    value: Tensor
    score: Callable[[], Tensor]
    """Return the log probability of every unit. Call it once only: it may modify the noise in place."""
    summed: Callable[[int], Tensor] | None = None
    """Return the log probability summed over the given number of last batch axes. None if no kernel sums it."""
    node: Tensor | None = None
    """The unbounded value before squashing, or None for a discrete draw."""


def draw_node(
    law: Any,
    logits: Tensor,
    *temperature: Temperature,
    sample_shape: Sequence[int],
    generator: Source | None,
    squashing: Squashing | None = None,
    axes: int = 0,
    connects: bool = False,
    finite: bool = False,
) -> Drawn:
    """Draw nodes of a law and squash them, without rounding to the dtype of the logits.

    `axes` is the number of last batch axes that the caller will sum over, a hint for fusion. With `connects`, log
    densities have a gradient of zero by the logits where that costs nothing, in one autograd node with the draw. With
    `finite`, the logits are known to be finite.
    """
    lead = logits.dim() - law.category_axes
    samples = Size(sample_shape).numel()
    has_kernel = law.draw is not None and registry.is_launchable(logits) and not _is_fused(generator)
    if has_kernel and logits.numel() and all(map(is_one_number, temperature)):
        # kernels clamp values for float32
        name = "none" if squashing is None or logits.dtype != torch.float32 else squashing.name
        runs_kernel = law.draw.fits(logits, None, None, samples, name, 1)
        if runs_kernel and generator is None:
            generator = sliced_source((*sample_shape, *logits.shape))
        if runs_kernel and isinstance(generator, Slice):
            generator = _of_one_key(generator, logits.device)
        elif runs_kernel:
            given = logits, of_member(logits, *temperature), _key(generator, logits), samples, name
            shape, width = Size((*sample_shape, *logits.shape[:lead])), logits.shape[lead:]
            ends = width, None if name == "none" else (1,) if name == "corner" else _width_of(name, width)
            node, value, summed = _from_kernel(law, given, shape, ends, axes, connects=connects)
            if squashing is None:
                value = node
            elif name == "none":
                value = squashing(node, logits.dtype)
            return Drawn(value, lambda: summed(0), summed, node)
    shape = Size(sample_shape) + logits.shape
    noise = law.noise(shape, compute_dtype(logits.dtype), device=logits.device, generator=generator)
    # two operations of a binary node are recorded by autograd in less time than a function of several is called
    is_long = squashing is not None or law.category_axes > 0 or connects
    if is_long and law.pull is not None and _is_positive(temperature[0]) and is_recorded(logits):
        pushed = logits, noise, law, temperature[0], squashing, connects, finite
        node, value, log_density = plain_apply(_Push)(*pushed)
        if log_density is not None:
            return Drawn(node if value is None else value, lambda: log_density, node=node)
    else:
        node = law.push(logits, *temperature, noise)
        value = None if squashing is None else squashing(node, logits.dtype)
    return Drawn(node if value is None else value, lambda: law.log_density_of_noise(noise, *temperature), node=node)


def _width_of(name: str, width: Sequence[int]) -> Sequence[int]:
    """Return the last axes of squashed values, from those of the logits: a corner of a hypercube has one of bits."""
    return [int(width[0]).bit_length() - 1] if width and name in ("cube", "corner") else width


def _key(generator: Source | None, logits: Tensor) -> Key:
    """Return the key of a draw by a kernel. A compiler or a mode of torch that sees the call needs a tensor."""
    is_direct = is_plain((logits,)) and not is_watched()
    return kernel_key(generator, logits.device) if is_direct else key_of(generator, logits.device)


def _of_one_key(generator: Slice, device: torch.device) -> Slice:
    """Return a slice of the noise that a kernel would draw from one key. The kernel draws for whole batches only."""
    return replace(generator, source=Keys(key_tensor(kernel_key(generator, device), device)))


class _Push(torch.autograd.Function):
    """Nodes made from noise, their squashed values and, if it `connects`, log densities, as one autograd node."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        noise: Tensor,
        law: Any,
        temperature: float,
        squashing: Squashing | None,
        connects: bool,
        finite: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        node = law.push(logits, temperature, noise)
        ctx.law, ctx.temperature, ctx.squashing = law, temperature, squashing
        ctx.shape, ctx.dtype = logits.shape, logits.dtype
        ctx.set_materialize_grads(False)
        shared = None if squashing is None else squashing.share(node)
        ctx.save_for_backward(node, shared)
        value = None if squashing is None else squashing(node, logits.dtype, finite=finite, shared=shared)
        log_density = cast(law.log_density_of_noise(noise, temperature), logits.dtype) if connects else None
        return node, value, log_density

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, ...]:
        # the log density does not depend on the logits
        (node, shared), (by_node, by_value, by_log_density) = ctx.saved_tensors, by
        if by_value is not None:
            pulled = ctx.squashing.pull(by_value, node, shared)
            by_node = pulled if by_node is None else pulled + by_node
        if by_node is None:
            zero = None if by_log_density is None else by_log_density.new_zeros(ctx.shape, dtype=ctx.dtype)
            return zero, *[None] * 6
        by_logits = sum_to(ctx.law.pull(by_node, node, ctx.temperature), ctx.shape)
        return cast(by_logits, ctx.dtype), *[None] * 6


def score_node(law: Any, value: Tensor, logits: Tensor, *temperature: Temperature, axes: int = 0) -> Tensor:
    """Return the log densities of nodes in at least float32, summed over the last `axes` batch axes."""
    has_kernel = law.score is not None and registry.is_launchable(value) and not _is_fused()
    if not has_kernel or not all(map(is_one_number, temperature)):
        return _summed(law.log_density(value, logits, *temperature), logits, axes)
    defined = partial(law.log_density, value, logits, *temperature)
    return _scored(law, value, logits, lambda: of_member(value, *temperature), axes, defined)


def draw_state(
    law: Any, logits: Tensor, *, squash: str, sample_shape: Sequence[int], generator: Source | None, axes: int = 0
) -> Drawn:
    """Draw states of a discrete law, with log probabilities in at least float32."""
    lead, samples = logits.dim() - law.category_axes, Size(sample_shape).numel()
    if registry.is_launchable(logits) and logits.numel() and not _is_fused(generator):
        runs_kernel = law.draw.fits(logits, None, samples, squash, 1)
        if runs_kernel and generator is None:
            generator = sliced_source((*sample_shape, *logits.shape))
        if runs_kernel and isinstance(generator, Slice):
            generator = _of_one_key(generator, logits.device)
        elif runs_kernel:
            given, shape = (
                (logits, _key(generator, logits), samples, squash),
                Size((*sample_shape, *logits.shape[:lead])),
            )
            value, summed = _from_kernel(law, given, shape, [_width_of(squash, logits.shape[lead:])], axes)
            return Drawn(cast(value, logits.dtype), lambda: summed(0), summed)
    shape = Size(sample_shape) + logits.shape
    noise = law.noise(shape, compute_dtype(logits.dtype), device=logits.device, generator=generator)
    value = law.push(logits.detach(), noise, squash)
    return Drawn(value, lambda: _summed(law.log_mass(value, logits, squash), logits, 0))


def score_state(law: Any, value: Tensor, logits: Tensor, *, squash: str, axes: int = 0) -> Tensor:
    """Return the log probabilities of states in at least float32, summed over the last `axes` batch axes."""
    defined = partial(law.log_mass, value, logits, squash)
    if _is_fused():
        return _summed(defined(), logits, axes)
    return _scored(law, value.detach(), logits, lambda: squash, axes, defined)


def _summed(log_prob: Tensor, logits: Tensor, axes: int) -> Tensor:
    """Return log probabilities in the dtype of the logits, but at least float32, summed over the last `axes` axes."""
    return sum_axes(cast(log_prob, compute_dtype(logits.dtype)), axes)


def sum_axes(log_prob: Tensor, axes: int) -> Tensor:
    """Sum log probabilities over the last `axes` axes."""
    return log_prob.sum(tuple(range(-axes, 0))) if axes else log_prob


def is_recorded(logits: Tensor) -> bool:
    """Return whether autograd alone records operations on logits, so that several may be one autograd node."""
    return logits.requires_grad and torch.is_grad_enabled() and is_plain((logits,)) and not is_watched()


def _is_fused(generator: Source | None = None) -> bool:
    """Return whether a compiler fuses a definition with the code around it, which is faster than a kernel call.

    Draws with `Keys` belong to training steps. These may be captured as CUDA graphs, in which kernels are faster.
    """
    return torch.compiler.is_compiling() and not isinstance(generator, Keys)


def _is_positive(temperature: Temperature) -> bool:
    """Return whether a temperature is a positive number."""
    return isinstance(temperature, float) and temperature > 0


def is_one_number(temperature: Temperature) -> bool:
    """Return whether a kernel supports the temperature: one positive number without gradient."""
    if isinstance(temperature, Tensor):
        return temperature.dim() == 0 and not temperature.requires_grad
    return temperature > 0


def of_member(like: Tensor, temperature: Temperature) -> Float64[Tensor, " 1"]:
    """Return the temperature as a kernel expects it: one number per member."""
    if isinstance(temperature, Tensor):
        return temperature.to(like.device, torch.float64).reshape(1)
    is_kept = is_plain((like,)) and not torch.is_inference_mode_enabled()  # first: compilers cannot trace the rest
    return _CONSTANTS.of(temperature, like.device) if is_kept else filled((1,), temperature, like.device)


class _Constants:
    """Numbers as tensors on devices. The latest are kept, since filling a tensor is a launch of its own.

    A CUDA graph reads the tensors that were made before it was captured. They are kept as long as the program runs.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._latest = dict[tuple[float, torch.device], Tensor]()
        self._captured = dict[tuple[float, torch.device], Tensor]()

    def of(self, number: float, device: torch.device) -> Float64[Tensor, " 1"]:
        key = number, device
        known = self._latest.get(key, self._captured.get(key))
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            if known is None:
                return filled((1,), number, device)  # in the memory of the graph, which fills it in each replay
            self._captured[key] = known
        elif known is None:
            if len(self._latest) == self._most:
                self._latest.clear()
            known = self._latest[key] = torch.full((1,), number, dtype=torch.float64, device=device)
        return known


_CONSTANTS = _Constants(64)


def _from_kernel(
    law: Any,
    given: tuple[Any, ...],
    shape: Size,
    ends: Sequence[Sequence[int] | None],
    axes: int,
    *,
    connects: bool = False,
) -> tuple[Any, ...]:
    """Return the tensors that a kernel drew, and a function that sums their log probabilities over last axes.

    The arguments `given` begin with the logits, and leave out the number of units to sum over. Tensors have the batch
    shape `shape` and the last axes `ends`, unless these are None.
    """
    logits = given[0]
    units = math.prod(logits.shape[: logits.dim() - law.category_axes])
    taken = [(1, units, *logits.shape[logits.dim() - law.category_axes :])]
    drawn = [None if end is None else (*shape, *end) for end in ends]

    def call(axes: int) -> Sequence[Tensor]:
        split = len(shape) - axes
        returned, length = (*drawn, shape[:split]), math.prod(shape[split:])
        results: Sequence[Tensor] = law.draw.launched(*given, length, taken=taken, returned=returned, connects=connects)
        return results

    *tensors, sums = call(axes)

    def summed(requested: int) -> Tensor:
        if requested >= axes:
            return sum_axes(sums, requested - axes)
        return sum_axes(call(0)[-1], requested)  # rarely needed: draw again with the same key

    return *tensors, summed


def _scored(
    law: Any, value: Tensor, logits: Tensor, last: Callable[[], Any], axes: int, defined: Callable[[], Tensor]
) -> Tensor:
    """Return log probabilities computed by a kernel or, if it cannot run, by `defined`.

    A kernel requires that the batch shape of the value ends in that of the logits. `last` returns its third argument.
    """
    batch, lead = logits.shape[: logits.dim() - law.category_axes], value.shape[: value.dim() - law.category_axes]
    fits = registry.is_launchable(value) and lead[len(lead) - len(batch) :] == batch and axes <= len(batch)
    if fits and value.numel():
        units, length = math.prod(batch), math.prod(batch[len(batch) - axes :])  # Size.numel is constant in an export
        if law.score.fits(value, logits, None, length):
            samples = math.prod(lead[: len(lead) - len(batch)])
            taken = (1, samples, units, *value.shape[len(lead) :]), (1, units, *logits.shape[len(batch) :])
            returned = [lead[: len(lead) - axes]]
            scores = law.score.launched(value, logits, last(), length, taken=taken, returned=returned)
            return cast(scores, compute_dtype(logits.dtype))
    return _summed(defined(), logits, axes)
