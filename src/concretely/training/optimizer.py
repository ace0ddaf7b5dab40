"""The optimizers: one update by Adam or Muon of the parameters of many members.

The first axis of every tensor counts members. A learning rate of zero stops a member: its parameters and moments do not
change, whatever its gradient is. On a GPU the kernels `adam` and `muon` compute the update, elsewhere the definitions
in this file.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import compress, groupby
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..kernel import operator
from ..kernel.deferred import DeferredGradient, materialized

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
# called directly, as `torch.optim.adam.adam` sorts the tensors of each step by device and dtype
_ADAM: Any = partial(torch._fused_adam_, amsgrad=False, beta1=BETA1, beta2=BETA2, eps=EPSILON, maximize=False)
MOMENTUM, ROUNDS, SMALL, LENGTH = 0.95, 5, 1e-7, 0.2
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""The polynomial of Muon. Applied a few times, it maps singular values between 0 and 1 to about 1."""
MANY = 64
"""The maximum number of tensors that one launch of Adam or of the guard gets: its code grows with their number."""
FEW = 2**21
"""Up to this number of elements, kernel launches take longer than the matrix products."""


class ParameterState(NamedTuple):
    """A parameter and the moments of its gradient."""

    parameter: Float[Tensor, "members ..."]
    first: Float[Tensor, "members ..."]
    second: Float[Tensor, "members ..."]


class StepSizes(NamedTuple):
    """The numbers that determine the size of an update, for every member."""

    rate: Float64[Tensor, " members"]
    """The learning rate, or zero for a member that must not change."""
    decay: Float64[Tensor, " members"]
    """The L2 penalty: this factor times a weight is added to its gradient."""
    mean: Float64[Tensor, " members"]
    """The bias correction that Adam multiplies the first moment by."""
    spread: Float64[Tensor, " members"]
    """The bias correction that Adam multiplies the second moment by."""
    step: Int64[Tensor, " members"]
    """The number of steps before this one."""


class StepLog(NamedTuple):
    """The log of the steps of every member, for the host to read."""

    sums: Float64[Tensor, "members 4"]
    """Since the last row: the sum of objectives and their number, the sum of gaps and their number."""
    first_nonfinite: Int64[Tensor, " members"]
    """The first step whose loss or gradient was not finite, or -1 if there is none."""


def kernels(name: str, tensor: Tensor) -> Any | None:
    """Return the kernel module of a name, or None if it cannot run on the device of a tensor."""
    return import_module(f"concretely.kernel.{name}") if operator.is_enabled(name, tensor) else None


def corrections(steps: int) -> tuple[float, float]:
    """Return Adam's bias corrections of the first and second moment after a number of steps."""
    return 1 / (1 - BETA1**steps), 1 / (1 - BETA2**steps)


def guard_(
    log: StepLog, tensors: Sequence[Float[Tensor, "members ..."]], loss: Float[Tensor, " members"], sizes: StepSizes
) -> StepSizes:
    """Log a step, and stop every member whose loss or tensors are not finite, for this step and all later ones.

    The logged objective is minus the loss. The returned step sizes have a learning rate of zero for stopped members.
    """
    kernel = kernels("adam", loss) if len(tensors) <= MANY else None
    if kernel is not None:
        rate = kernel.guard_(*log, list(tensors), loss, sizes.step, sizes.rate)
        return sizes._replace(rate=rate)
    if loss.is_cpu and len(loss) == 1:
        number, sums = loss.item(), log.sums.numpy()[0]
        sums[0] -= number
        sums[1] += 1
        if math.isfinite(number) and log.first_nonfinite.item() < 0 and _have_finite_sums(*tensors):
            return sizes
    else:
        log.sums[:, :2].add_(torch.stack([-loss, torch.ones_like(loss)], -1))
    # the largest and the smallest entry are finite if and only if all are; a norm would take ten times as long
    flat = [each.reshape(len(loss), -1) for each in (loss, *tensors) if each.numel()]
    extremes = torch.stack([extreme for each in flat for extreme in (each.amax(-1), each.amin(-1))])
    finite = extremes.isfinite().all(0)
    first = torch.where((log.first_nonfinite < 0) & ~finite, sizes.step, log.first_nonfinite)
    log.first_nonfinite.copy_(first)
    return sizes._replace(rate=torch.where(first < 0, sizes.rate, 0.0))


def _have_finite_sums(*tensors: Tensor) -> bool:
    """Return whether tensors have finite sums, and so only finite entries. This waits for the device."""
    return all(math.isfinite(tensor.sum().item()) for tensor in tensors)


def adam_(
    states: Sequence[ParameterState], gradients: Sequence[Tensor], sizes: StepSizes, *, decays: Sequence[bool]
) -> None:
    """Update parameters by Adam [kingma2015adam]. `decays` says which of the parameters have an L2 penalty."""
    gradients = [_laid_out(each, state.parameter) for each, state in zip(gradients, states, strict=True)]
    if states[0].parameter.is_cpu:
        _fused_adam_(states, gradients, sizes, decays)
        return
    floats = all(state.parameter.dtype == torch.float32 for state in states)
    kernel = kernels("adam", states[0].parameter) if floats else None
    if kernel is not None:
        for start in range(0, len(states), MANY):
            part = slice(start, start + MANY)
            parameters, firsts, seconds = (list(each) for each in zip(*states[part], strict=True))
            slopes, constants = list(gradients[part]), (BETA1, BETA2, EPSILON)
            kernel.adam_(parameters, firsts, seconds, slopes, list(decays[part]), *sizes[:4], *constants)
    else:
        _plain_adam_(states, gradients, sizes, decays)


def _laid_out(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient in the memory format of its parameter, since fused updates pair elements by their place."""
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)


def _fused_adam_(
    states: Sequence[ParameterState], gradients: Sequence[Tensor], sizes: StepSizes, decays: Sequence[bool]
) -> None:
    """Update parameters by torch's fused Adam, which reads the step sizes on the host."""
    columns = [*map(list, zip(*states, strict=True)), list(gradients)]
    rates, factors, steps = sizes.rate.tolist(), sizes.decay.tolist(), sizes.step.tolist()
    for member, (rate, factor, step) in enumerate(zip(rates, factors, steps, strict=True)):
        if rate == 0:
            continue
        count = torch.full((), step + 1.0)  # the number of this step; faster than `torch.tensor`
        # every entry is updated alone, so that the axis of a single member may stay
        own = columns if len(rates) == 1 else [[part[member] for part in column] for column in columns]
        for penalty in {factor * decay for decay in decays}:
            chosen = [factor * decay == penalty for decay in decays]
            parameters, firsts, seconds, slopes = (list(compress(column, chosen)) for column in own)
            _ADAM(parameters, slopes, firsts, seconds, [], [count] * len(slopes), lr=rate, weight_decay=penalty)


def _plain_adam_(
    states: Sequence[ParameterState], gradients: Sequence[Tensor], sizes: StepSizes, decays: Sequence[bool]
) -> None:
    """Update parameters by Adam without reading anything on the host, so that a CUDA graph can capture it."""
    for state, gradient, decays_here in zip(states, gradients, decays, strict=True):
        parameter, first, second = state
        shape = (-1, *(1,) * (parameter.dim() - 1))
        rate, decay, mean, spread = (each.to(parameter.dtype).view(shape) for each in sizes[:4])
        slope = gradient + decay * parameter if decays_here else gradient
        first = BETA1 * first + (1 - BETA1) * slope
        second = BETA2 * second + (1 - BETA2) * slope * slope
        moved = parameter - rate * (first * mean) / ((second * spread).sqrt() + EPSILON)
        for old, new in zip(state, (moved, first, second), strict=True):
            old.copy_(torch.where(rate != 0, new, old))


def muon_(
    states: Sequence[ParameterState], gradients: Sequence[Float[Tensor, "members _ _"]], sizes: StepSizes
) -> None:
    """Update matrices by Muon. All have an L2 penalty, and their second moments do not change.

    The update is the momentum with its singular values set to about one [jordan2024muon]. Its length is the average
    length of an update by Adam at the same learning rate [liu2025muon].
    """
    shapes = [sorted(state.parameter.shape[1:]) for state in states]
    members, longest = len(sizes.rate), max(columns for _, columns in shapes)
    # matrices of one shape, up to transposition, are multiplied together; where launches cost more than products,
    # matrices with the same number of rows are padded with zero columns, which change nothing, and also grouped
    pads = (
        kernels("muon", states[0].parameter) is not None and members * sum(rows * longest for rows, _ in shapes) <= FEW
    )
    keys = [(rows, 0 if pads else columns) for rows, columns in shapes]
    order = sorted(range(len(states)), key=lambda k: keys[k])
    groups = [list(group) for _, group in groupby(order, key=lambda k: keys[k])]
    stacks = []
    for group in groups:
        rows, columns = shapes[group[0]][0], {shapes[k][1] for k in group}
        make = states[0].parameter.new_empty if len(columns) == 1 else states[0].parameter.new_zeros
        stacks.append(make((len(group) * members, rows, max(columns))))
    chosen, slopes = [states[k] for k in order], [gradients[k] for k in order]
    widths = [shapes[k][1] for k in order]
    _momentum_(chosen, slopes, sizes, _split(groups, stacks, widths))
    _move_(chosen, sizes, _split(groups, [orthogonal(stack) for stack in stacks], widths))


def orthogonal(matrix: Float[Tensor, "members rows columns"]) -> Float[Tensor, "members rows columns"]:
    """Return a matrix with the same singular vectors, and singular values (except tiny ones) between 0.7 and 1.2."""
    if matrix.shape[-2] > matrix.shape[-1]:
        return orthogonal(matrix.mT).mT
    found: Tensor = matrix / (torch.linalg.matrix_norm(matrix, keepdim=True) + SMALL)
    for _ in range(ROUNDS):
        found = torch.bmm(polynomial(torch.bmm(found, found.mT)), found)
    return found


def polynomial(gram: Float[Tensor, "members rows rows"]) -> Float[Tensor, "members rows rows"]:
    """Return the factor by which one round of Muon multiplies a matrix M, from its Gram matrix M Mᵀ."""
    kernel = kernels("muon", gram) if gram.dtype == torch.float32 else None
    if kernel is not None:
        precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        found: Tensor = kernel.polynomial(gram, COEFFICIENTS, precision)
        return found
    (a, b, c), identity = COEFFICIENTS, torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    return torch.baddbmm(a * identity + b * gram, gram, gram, alpha=c)


def _momentum_(states: list[ParameterState], gradients: list[Tensor], sizes: StepSizes, out: list[Tensor]) -> None:
    """Add gradients to the momenta, and write the Nesterov momenta, with the gradients added once more, to `out`."""
    kernel = kernels("muon", out[0]) if out[0].dtype == torch.float32 else None
    if kernel is not None:
        parameters, firsts, _ = (list(part) for part in zip(*states, strict=True))
        kernel.momentum_(parameters, gradients, firsts, out, sizes.rate, sizes.decay, momentum=MOMENTUM)
        return
    moves, decay = (sizes.rate != 0).view(-1, 1, 1), sizes.decay.view(-1, 1, 1)
    for state, gradient, place in zip(states, gradients, out, strict=True):
        total = torch.addcmul(torch.where(moves, gradient, 0), decay.to(gradient.dtype), state.parameter)
        state.first.copy_(torch.where(moves, torch.add(total, state.first, alpha=MOMENTUM), state.first))
        ahead = torch.where(moves, torch.add(total, state.first, alpha=MOMENTUM), 0)
        place.copy_(ahead if ahead.shape == place.shape else ahead.mT)


def _move_(states: list[ParameterState], sizes: StepSizes, steps: list[Tensor]) -> None:
    """Move matrices by the update directions `steps`, which may be transposed."""
    lengths = [LENGTH * max(state.parameter.shape[1:]) ** 0.5 for state in states]
    kernel = kernels("muon", steps[0]) if steps[0].dtype == torch.float32 else None
    if kernel is not None:
        kernel.move_([state.parameter for state in states], steps, lengths, sizes.rate)
        return
    for state, step, length in zip(states, steps, lengths, strict=True):
        step = step if step.shape == state.parameter.shape else step.mT
        state.parameter.addcmul_(sizes.rate.to(step.dtype).view(-1, 1, 1), step, value=-length)


def _split(groups: Sequence[Sequence[int]], stacks: Sequence[Tensor], widths: Sequence[int]) -> list[Tensor]:
    """Return the part of each matrix in the stacks, without the padding, in the order of the groups."""
    pairs = zip(groups, stacks, strict=True)
    parts = [part for group, stack in pairs for part in stack.chunk(len(group))]
    return [part[..., :width] for part, width in zip(parts, widths, strict=True)]


class Update(ABC):
    """Updates the parameters of some members. The first axis of every gradient counts members."""

    @abstractmethod
    def __call__(self, gradients: Mapping[str, Tensor], sizes: StepSizes) -> None:
        """Update all parameters that have a gradient. A learning rate of zero stops a member."""


class OwnUpdate(Update):
    """An update by Adam or, for weights, by Muon, of all members together and without waiting for the device."""

    def __init__(self, states: Mapping[str, ParameterState], *, weights: frozenset[str], muon: bool) -> None:
        self._states, self._weights, self._muon = states, weights, muon

    def __call__(self, gradients: Mapping[str, Tensor], sizes: StepSizes) -> None:
        """Update all parameters. Some gradients are still pairs of factors, and multiplied here."""
        states, waiting = self._states, dict(gradients)
        if self._muon:
            matrices = [name for name in states if name in self._weights and name in waiting]
            products = [materialized(waiting.pop(name)).flatten(2) for name in matrices]
            if matrices:
                flat = [ParameterState(*(part.flatten(2) for part in states[name])) for name in matrices]
                muon_(flat, products, sizes)
        deferred = [name for name, gradient in waiting.items() if isinstance(gradient, DeferredGradient)]
        for name in deferred:  # one after the other, so that the product is read before it leaves the cache
            adam_([states[name]], [materialized(waiting.pop(name))], sizes, decays=[name in self._weights])
        if waiting:
            decays = [name in self._weights for name in waiting]
            adam_([states[name] for name in waiting], list(waiting.values()), sizes, decays=decays)
