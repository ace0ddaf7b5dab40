"""Checks of a task before its first step, so that bad input costs no work, and of the batch of a step that failed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..functional.arithmetic import has_nan
from ..graph.program import eval_mode
from ..layer.base import Layer
from ..layer.choice import Choice
from ..spelling import listed

if TYPE_CHECKING:
    from .train_state import TrainState

SAME = 1e-3
"""The relative difference between two losses that rounding can explain."""


def examine(state: "TrainState", note: Callable[[str], None]) -> bool:
    """Run the loss of the next step and its gradient, and return whether the step may be captured as a CUDA graph.

    Raise if no parameter gets a gradient. Name parameters without one or without an optimizer, state that is not saved,
    and values that do not come from torch.
    """
    named = {name: parameter for name, parameter in state.loss.named_parameters() if parameter.requires_grad}
    if not named:
        raise ValueError("a model must have parameters to train, got none that requires a gradient")
    with eval_mode(state.loss), torch.enable_grad():
        first = state.loss_at(state.step)
        reached = _reached(first, named)
        second = state.loss_at(state.step)
    if any(state.world.gather(len(reached) < len(named))):  # evaluation may decide without a gradient
        with _unchanged(state.loss), torch.enable_grad():
            reached |= _reached(state.loss_at(state.step), named)
    if not reached:
        raise ValueError("the loss must depend on the parameters of the model, got no gradient for any of them")
    unused = [name for name in named if name not in reached | _taking_turns(state.loss)]
    left_out = [] if state.optimizer is None else state.optimizer.left_out
    for what, names in (("no gradient reaches", unused), ("the optimizer leaves out", left_out)):
        if names:
            some = listed([name.partition(".")[2] for name in names])
            note(f"{what} {len(names)} of {len(named)} parameters: {some}")
    parts = [name or type(part).__name__ for name, part in state.model.named_modules() if _has_extra_state(part)]
    if parts:
        note(
            f"the extra state of {listed(parts)} is neither saved nor kept with the best parameters: keep it in buffers"
        )
    one, other = first.item(), second.item()
    repeats = one == other or one != one or abs(one - other) <= SAME * max(abs(one), abs(other))
    if not repeats:
        note(
            "the loss differs between two runs on the same batch with the same noise: it uses numbers from outside of "
            "torch, such as Python's random, so that steps are neither captured nor repeated exactly after a resume"
        )
    return repeats


def is_lost(state: "TrainState") -> bool:
    """Return whether parameters are not finite, or so large that the model refuses the first batch.

    It must take that batch with parameters of zero. Otherwise, an error is about the data or the program. Batches of a
    stream cannot be read again.
    """
    if state.first_nonfinite_parameter(together=False) is not None:
        return True
    if state.world.ranks > 1 or not state.task.feed.is_on_device or not _is_first_batch_refused(state):
        return False
    own = [(parameter, parameter.detach().clone()) for parameter in state.loss.parameters() if parameter.requires_grad]
    with torch.no_grad():
        for parameter, _ in own:
            parameter.zero_()
        try:
            return not _is_first_batch_refused(state)
        finally:
            for parameter, before in own:
                parameter.copy_(before)


def _is_first_batch_refused(state: "TrainState") -> bool:
    """Return whether the model raises a ValueError on the batch of the first step."""
    try:
        with torch.no_grad():
            state.loss_at(0)
    except ValueError:
        return True
    return False


def describe_batch(batch: Any) -> str:
    """Return the dtypes and the shapes of the tensors of a batch, and whether they have nan or infinity.

    >>> describe_batch((torch.zeros(8, 6), {"y": torch.zeros(8).long()})), describe_batch(torch.full((1,), torch.nan))
    ('float32 (8, 6) and int64 (8,)', 'float32 (1,) with nan')
    """
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    shapes = [f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}" for leaf in leaves]
    return " and ".join(map("".join, zip(shapes, map(_with_nonfinite, leaves), strict=True))) or "no tensor"


def _with_nonfinite(leaf: Tensor) -> str:
    """Return the end of a description of a tensor that is not finite."""
    return " with nan" if has_nan(leaf) else " with infinity" * bool(leaf.isinf().any())


def require_finite(batches: Sequence[Any], where: str, error: ValueError) -> None:
    """Raise an error of a model that says where it was raised if its batches are not finite.

    They are not refused before, as a program may mask nan.
    """
    if any(_with_nonfinite(leaf) for leaf in tree_leaves(batches) if isinstance(leaf, Tensor)):
        got = " and ".join(map(describe_batch, batches))
        raise ValueError(f"{error}, in {where} on a batch of {got}") from error


def _reached(loss: Tensor, named: Mapping[str, nn.Parameter]) -> set[str]:
    """Return the names of the parameters that a loss has a gradient for. Raise if one is sparse."""
    if not loss.requires_grad:
        return set()
    slopes = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    reached = {name: slope for name, slope in zip(named, slopes, strict=True) if slope is not None}
    if sparse := [name.partition(".")[2] for name, slope in reached.items() if slope.layout is not torch.strided]:
        raise ValueError(f"gradients must be dense, got a sparse one of {sparse[0]!r}: leave out sparse=True")
    return set(reached)


def _has_extra_state(part: nn.Module) -> bool:
    """Return whether a module has state besides its parameters and buffers."""
    return type(part).get_extra_state is not nn.Module.get_extra_state


def _taking_turns(loss: nn.Module) -> set[str]:
    """Return the names of the parameters of branches, of which a step runs one."""
    choices = [(name, part) for name, part in loss.named_modules() if isinstance(part, Choice)]
    return {f"{name}.branches.{own}" for name, part in choices for own, _ in part.branches.named_parameters()}


@contextmanager
def _unchanged(loss: nn.Module) -> Iterator[None]:
    """Inside this context, a loss is in training mode. Afterwards, buffers and layers are as they were before."""
    modules = list(loss.modules())
    buffers = [
        (part, name, own, own.clone()) for part in modules for name, own in part._buffers.items() if own is not None
    ]
    layers = [(part, dict(part.__dict__)) for part in modules if isinstance(part, Layer)]
    for layer, _ in layers:
        layer.__dict__["_counted"] = None  # counts are added to it in place
    loss.train()
    try:
        yield
    finally:
        for part, name, own, before in buffers:
            part._buffers[name] = own
            with torch.no_grad():
                own.copy_(before)
        for layer, state in layers:
            layer.__dict__.update(state)
