"""The tensors of a module by the places where it uses them, and joint tensors of several members."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

if TYPE_CHECKING:
    from .train_state import TrainState


State = dict[str, Tensor]
"""The tensors that training steps change, by their names in a checkpoint.

Parameters and buffers are `model/…` and `estimator/…`. The optimizer's moments of the gradients are `first/…` and
`second/…`, the running average of parameters is `ema/…`. The `StepLog` is `row/sums` and `row/first_nonfinite`, and
`row/metrics` are sums of the gradient norm and the metrics of the task, and their number. The first axis of every
tensor counts members.
"""


def path_of(name: str) -> str:
    """Return the key in a `State` of a parameter or buffer of a `MemberLoss`, such as `model/p.top.logits`."""
    return name.replace(".", "/", 1)


def places_of(function: nn.Module) -> dict[str, str]:
    """Return the name of every parameter and buffer for each place where it is used.

    `functional_call` finds such places by itself, but does not restore those of a module that is a part of two others.
    """
    names = dict[int, str]()
    tensors = (
        (f"{path}.{name}" if path else name, tensor)
        for path, module in function.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    )
    return {place: names.setdefault(id(tensor), place) for place, tensor in tensors}


@contextmanager
def keeping_buffers(loss: nn.Module) -> Iterator[None]:
    """Inside this context, raise if a call of a loss replaces a buffer, since a stacked program would lose it."""
    before = dict[str, Tensor]()

    def remember(module: nn.Module, inputs: object) -> None:
        before.update(module.named_buffers())

    def compare(module: nn.Module, inputs: object, output: object) -> None:
        for name, buffer in module.named_buffers():
            if buffer is not before[name]:
                raise RuntimeError(f"the buffer {name.partition('.')[2]!r} is replaced, not changed in place")

    hooks = loss.register_forward_pre_hook(remember), loss.register_forward_hook(compare)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def tensors_of(model: nn.Module) -> State:
    """Return the parameters and buffers of a model by name, also the buffers that its state dict leaves out.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> layer.register_buffer("count", torch.zeros(1), persistent=False)
    >>> sorted(tensors_of(layer)), sorted(layer.state_dict())
    (['count', 'weight'], ['weight'])
    """
    named = {**dict(model.named_buffers()), **model.state_dict()}
    return {name: own for name, own in named.items() if isinstance(own, Tensor)}  # not the extra state of a module


Kept = tuple[list[tuple[nn.Module, str, Tensor]], list[tuple[nn.Parameter, Tensor]]]
"""Modules with the names of their buffers and the buffers, and parameters with their tensors in a `State`."""


def kept_of(loss: nn.Module, state: State | None) -> Kept:
    """Return the buffers of a loss and, with a state of one member, its parameters."""
    named = [(module, name, own) for module in loss.modules() for name, own in module._buffers.items()]
    buffers = [(module, name, own) for module, name, own in named if own is not None]
    parameters = () if state is None else loss.named_parameters()
    return buffers, [(parameter, state[path_of(name)][0]) for name, parameter in parameters if state is not None]


def keep_tensors(buffers: list[tuple[nn.Module, str, Tensor]], parameters: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Copy buffers and data of parameters that a model has replaced to the tensors that checkpoints and steps read.

    A module may limit a norm by `self.weight.data = torch.renorm(self.weight.data, ...)`. Raise if a tensor does not
    fit.
    """
    for module, name, own in buffers:
        new = module._buffers[name]
        if new is not own:
            if new is None or new.shape != own.shape or not torch.can_cast(new.dtype, own.dtype):
                was, got = (_described(tensor) for tensor in (own, new))
                must = f"buffer {name!r} of {type(module).__name__} must stay {was}"
                raise ValueError(f"{must}, got {got} in a training step: create it in that shape and dtype")
            own.copy_(new)
            module._buffers[name] = own
    for parameter, own in parameters:
        if parameter.data_ptr() != own.data_ptr():
            if _described(parameter) != _described(own):
                raise ValueError(f"a parameter must stay {_described(own)} in training, got {_described(parameter)}")
            own.copy_(parameter.data)
            parameter.data = own


Owned = dict[str, tuple[nn.Parameter, bool]]
"""Parameters by name, and whether they require a gradient."""


def owned_by(loss: nn.Module) -> Owned:
    """Return the parameters of a loss, to compare them later."""
    return {name: (parameter, parameter.requires_grad) for name, parameter in loss.named_parameters()}


def keep_changes(loss: nn.Module, state: State, before: Owned) -> None:
    """Keep what a callback has changed. Raise if a parameter is not that of before, which later steps would train."""
    now = owned_by(loss)
    for name in {**before, **now}:
        one, other = before.get(name), now.get(name)
        if one is None or other is None or one[0] is not other[0] or one[1] != other[1]:
            must = "a callback must change parameters in place, and leave requires_grad as it is"
            raise ValueError(f"{must}, got another {name.partition('.')[2]!r}: train in two calls of fit")
    keep_tensors(*kept_of(loss, state))


def _described(tensor: Tensor | None) -> str:
    return "None" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def over_members(numbers: Float[Tensor, " members"], like: Tensor) -> Tensor:
    """Append axes to one number for each member, so that it can be multiplied with another tensor."""
    return numbers.view(-1, *(1,) * (like.dim() - 1)).to(like.dtype)


def joined_state(runs: Sequence["TrainState"]) -> State:
    """Concatenate the states of several runs, and make the state of each run a view of the result."""
    state = {name: torch.cat([run.state[name] for run in runs]) for name in runs[0].state}
    for member, run in enumerate(runs):
        run.bind({name: tensor[member : member + 1] for name, tensor in state.items()})
    return state
