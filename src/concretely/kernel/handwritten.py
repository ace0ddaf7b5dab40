"""Operators whose gradients are written by hand; the registry in `operator` takes their place one by one."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_unflatten

from .operator import NAMESPACE, batched, is_launchable, is_plain

is_fast = is_launchable


class Operator:
    """A function whose tensors all begin with an axis of members, as an operator of torch.

    Batched by `vmap`, it runs once, with so many times the members. Where it has a gradient and nothing but autograd
    looks on, it is called without the detour through torch's dispatcher, which takes longer than a small kernel.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._function = function
        self._differentiated: Callable[..., Any] | None = None
        self.registered = torch.library.custom_op(f"{NAMESPACE}::{name}", function, mutates_args=())
        self.registered.register_vmap(lambda *given: batched(self.registered, *given))

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives."""
        leaves, spec = list(arguments), None
        if any(isinstance(each, list) for each in arguments):
            leaves, spec = tree_flatten(arguments)
        if not is_plain(leaves) or (torch.is_grad_enabled() and self._differentiated is None):
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


def operator(name: str) -> Callable[[Callable[..., Any]], Operator]:
    """Make an operator of a function."""
    return lambda function: Operator(name, function)


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


def summed(log_prob: Float[Tensor, "members m units"], length: int) -> Float[Tensor, "members m rows"]:
    """The sums over rows of so many units."""
    return log_prob if length == 1 else log_prob.unflatten(-1, (log_prob.shape[-1] // length, length)).sum(-1)


def spread(by: Float[Tensor, "members m rows"], length: int) -> Float[Tensor, "members m units"]:
    """A number of every row for each of its units."""
    return by if length == 1 else by.repeat_interleave(length, -1)
