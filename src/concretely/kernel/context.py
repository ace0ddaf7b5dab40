"""What is active when a kernel is called: compilers, transforms and modes of torch that must see it as an operator."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _get_function_stack_at, _len_torch_function_stack
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

PLAIN = frozenset((Tensor, nn.Parameter, int, float, bool, str, tuple, type(None)))


def is_transformed() -> bool:
    """Return whether `torch.func` or forward-mode differentiation is active, for which operators have no rules."""
    return forward_ad._current_level >= 0 or _has_derivative_on_stack()


def _has_derivative_on_stack() -> bool:
    stack = get_interpreter_stack()
    return bool(stack) and any(each.key() in (TransformType.Grad, TransformType.Jvp) for each in stack)


_has_derivative_on_stack._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_watched() -> bool:
    """Whether a mode of torch, other than a default device, has to see every call."""
    count = _len_torch_function_stack()
    return count > 0 and not all(isinstance(_get_function_stack_at(index), DeviceContext) for index in range(count))


def is_plain(leaves: Sequence[Any]) -> bool:
    """Return whether no compiler, transform or dispatch mode of torch must see a call as an operator."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._len_torch_dispatch_stack() or forward_ad._current_level >= 0:
        return False
    # tensor subclasses may represent something else
    return PLAIN.issuperset(map(type, leaves)) or not any(
        issubclass(kind, Tensor) for kind in {type(each) for each in leaves} - PLAIN
    )
