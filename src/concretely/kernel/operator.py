"""What all operators share: where the fast path runs, and how a batch of programs becomes an axis of members."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

NAMESPACE = "concretely"


@cache
def has_triton() -> bool:
    """Whether the compiler of the fast paths is there, as it is beside every torch for CUDA."""
    return find_spec("triton") is not None


def is_fast(tensor: Tensor) -> bool:
    """Whether there is a fast path where a tensor is: on the GPU that kernels are launched on."""
    if not tensor.is_cuda or not has_triton():
        return False
    if torch.compiler.is_compiling() or not torch.cuda.is_initialized():  # then nothing is launched yet
        return True
    return tensor.device.index == torch.cuda.current_device()


def launching(device: torch.device) -> AbstractContextManager[Any]:
    """Have kernels launched on a GPU, if it is one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def is_hidden(value: Tensor) -> bool:
    """Whether data cannot be looked at: inside a compiled, captured or batched program."""
    if torch.compiler.is_compiling() or (value.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True
    try:
        value.data_ptr()
    except RuntimeError:  # a batch has no memory of its own
        return True
    return False


class Operator:
    """A function whose tensors all begin with an axis of members, as an operator of torch.

    Batched by `vmap`, it runs once, with so many times the members. Where it has a gradient and nothing but autograd
    looks on, it is called without the detour through torch's dispatcher, which takes longer than a small kernel.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._function = function
        self._differentiated: Callable[..., Any] | None = None
        self.registered = torch.library.custom_op(f"{NAMESPACE}::{name}", function, mutates_args=())
        self.registered.register_vmap(self._batched)

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives."""
        leaves, spec = list(arguments), None
        if any(isinstance(each, list) for each in arguments):
            leaves, spec = tree_flatten(arguments)
        if not _is_plain(leaves) or (torch.is_grad_enabled() and self._differentiated is None):
            return self.registered(*arguments)
        return self._function(*arguments) if self._differentiated is None else self._differentiated(*leaves, spec)

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Say what shapes and dtypes the function gives."""
        self.registered.register_fake(function)
        return function

    def register_autograd(self, pull: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        """Say what gradients its arguments have."""
        self.registered.register_autograd(pull, setup_context=setup_context)
        function = self._function

        class Differentiated(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *given: Any) -> Any:
                *leaves, ctx.spec = given  # in this order, as a rule asks by their places which need a gradient
                arguments = tuple(leaves) if ctx.spec is None else tree_unflatten(leaves, ctx.spec)
                found = function(*arguments)
                setup_context(ctx, arguments, found)
                return found

            @staticmethod
            def backward(ctx: Any, *by: Any) -> Any:
                found = pull(ctx, *by)
                is_flat = ctx.spec is None and isinstance(found, tuple)
                return *(found if is_flat else tree_flatten(found)[0]), None

        self._differentiated = Differentiated.apply

    def _batched(self, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        size = info.batch_size
        stacked = (_stacked(each, dim, size) for each, dim in zip(arguments, in_dims, strict=True))
        found = tree_map(lambda tensor: tensor.unflatten(0, (size, -1)), self.registered(*stacked))
        return found, tree_map(lambda tensor: 0, found)


def operator(name: str) -> Callable[[Callable[..., Any]], Operator]:
    """Make an operator of a function."""
    return lambda function: Operator(name, function)


def _is_plain(arguments: list[Any]) -> bool:
    """Whether no compiler, transform or mode of torch has to know of a call."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._len_torch_dispatch_stack():
        return False
    # tensors of other types stand for something
    return not any(isinstance(each, Tensor) and type(each) not in (Tensor, nn.Parameter) for each in arguments)


def attempted(call: Callable[[], Any]) -> Any | None:
    """What a call of operators gives, or None where `torch.func` differentiates: operators cannot have its rules."""
    if forward_ad._current_level >= 0:  # operators would have a derivative of zero there
        return None
    try:
        return call()
    except RuntimeError as error:
        if "functorch transforms" not in str(error):
            raise
        return None


def _stacked(argument: Any, dim: Any, size: int) -> Any:
    """A tensor, or each of several, with the axis of a batch joined to that of members; other arguments as they are."""
    if isinstance(argument, list):
        dims = [dim] * len(argument) if dim is None else dim
        return [_stacked(each, own, size) for each, own in zip(argument, dims, strict=True)]
    if not isinstance(argument, Tensor):
        return argument
    lead = argument.expand(size, *argument.shape) if dim is None else argument.movedim(dim, 0)
    return lead.flatten(0, 1)


def rows(tensor: Tensor) -> Tensor:
    """A tensor of which each member lies in one piece; members may share one."""
    return tensor if len(tensor) and tensor[0].is_contiguous() else tensor.contiguous()


def parted(parts: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for the parts of a sum over samples that is like a tensor; the sum itself if there is but one."""
    shape = (len(like), parts, *like.shape[1:])
    return like.new_empty(shape, dtype=dtype if parts == 1 else torch.float32)


def joined(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of its parts."""
    return parts.squeeze(1) if parts.shape[1] == 1 else parts.sum(1).to(dtype)
