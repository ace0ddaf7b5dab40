"""Counting the calls of the Triton kernels, and switching kernels off so that their definitions run instead."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from torch import Tensor

from concretely.distribution.binary import Bernoulli
from concretely.kernel import affine
from concretely.kernel.operator import has_triton
from concretely.model import layer
from concretely.training import optimizer, step_table

KERNELS = (
    "adam",
    "affine",
    "bernoulli",
    "bits",
    "bound",
    "discrete",
    "exp_concrete",
    "likelihood",
    "logistic",
    "muon",
    "nvil",
    "observed",
    "philox",
    "vimco",
)
"""The modules that have kernels. Those of `bound` include the loss, of `exp_concrete` the logistic-normal node."""

IN_PLACE = ("adam", "bits", "muon")
"""The kernels of a training step that are no operators of torch."""

LAYERS, ALL = "layers", "all"
"""Two more switches: layers by modules of torch, without `affine` and `observed`; and every kernel at once."""


def switches(calls: Counter[str]) -> list[str]:
    """The switches that change anything for work that calls these kernels.

    >>> switches(Counter(affine=2, bits=1))
    ['affine', 'bits', 'layers', 'all']
    """
    used = [name for name in KERNELS if calls[name]]
    return [*used, *([LAYERS] if calls["affine"] else []), *([ALL] if used else [])]


def switched_off(switch: str) -> tuple[str, ...]:
    """The kernels that do not run under a switch."""
    return {ALL: KERNELS, LAYERS: ("affine", "observed")}.get(switch, (switch,))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls of every kernel module, those of replayed graphs excepted."""
    calls: Counter[str] = Counter()
    with ExitStack() as stack:
        for name in KERNELS if has_triton() else ():
            module = import_module(f"concretely.kernel.{name}" + ".triton" * (name not in IN_PLACE))
            for attribute, function in vars(module).copy().items():
                is_own = inspect.isfunction(function) and function.__module__ == module.__name__
                if is_own and not attribute.startswith("_"):
                    counting = _counting(function, name, calls)
                    stack.enter_context(mock.patch.object(module, attribute, counting))
        yield calls


@contextmanager
def off(switch: str | None) -> Iterator[None]:
    """Have definitions run in the place of a kernel, of several, or of none."""
    with ExitStack() as stack:
        if switch == LAYERS:
            stack.enter_context(mock.patch.object(affine, "suits", _never))
        elif switch is not None and has_triton():
            for name in switched_off(switch):
                for patch in _patches(name):
                    stack.enter_context(patch)
        yield


def _patches(name: str) -> Iterator[AbstractContextManager[Any]]:
    if name in IN_PLACE:
        without = _without(name, optimizer.kernels)
        yield from (mock.patch.object(module, "kernels", without) for module in (optimizer, step_table))
        return
    module: ModuleType = import_module(f"concretely.kernel.{name}")
    match name:
        case "affine":  # the layers ask the same function as the operator: leave it, or `observed` would be off too
            import_module("concretely.kernel.affine.triton")
            yield mock.patch.object(affine, "triton", _AFFINE)
        case "observed":  # the logits are written by `affine` and scored by `likelihood`
            yield mock.patch.object(layer.Visible, "forward", _written)
        case _:
            yield mock.patch.object(module, "is_fast", _never)


def _never(*tensors: Tensor) -> bool:
    return False


def _counting(function: Callable[..., Any], name: str, calls: Counter[str]) -> Callable[..., Any]:
    def counting(*given: Any, **named: Any) -> Any:
        calls[name] += 1
        return function(*given, **named)

    return counting


def _without(name: str, kernels: Callable[[str, Tensor], Any]) -> Callable[[str, Tensor], Any]:
    return lambda each, tensor: None if each == name else kernels(each, tensor)


def _written(visible: layer.Visible, state: Tensor) -> Bernoulli:
    """The distribution of the observed layer, with its logits written."""
    return Bernoulli(layer._wide_enough(visible.network(state)), validate_args=False)


def _affine(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool, product: str) -> Tensor:
    return affine.naive.affine(x, weight, bias, tanh)


def _affine_backward(
    by_out: Tensor, x: Tensor, weight: Tensor, out: Tensor, tanh: bool, product: str, by_input: bool
) -> tuple[Tensor, Tensor, Tensor]:
    by_x, by_weight, by_bias = affine.naive.affine_backward(by_out, x, weight, out, tanh)
    return by_x if by_input else by_x[:, :0], by_weight.contiguous(), by_bias


def _before_tanh(by_out: Tensor, out: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    by_total = affine.naive.by_total(by_out, out, tanh)
    by_bias = by_total.sum(1).contiguous()
    return by_total.contiguous() if tanh else by_total.new_empty((len(out), 0, out.shape[2])), by_bias


_AFFINE = SimpleNamespace(affine=_affine, affine_backward=_affine_backward, before_tanh=_before_tanh)
"""The definitions of affine maps, with the signatures of their kernels."""
