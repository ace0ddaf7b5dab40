"""Count the calls of the Triton kernels, and switch kernels off so that their definitions run instead."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

from concretely.kernel.operator import disabled, has_triton

KERNELS = (
    "adam",
    "affine",
    "affine_likelihood",
    "bernoulli",
    "bits",
    "bound",
    "categorical",
    "exp_concrete",
    "likelihood",
    "logistic",
    "muon",
    "nvil",
    "philox",
    "vimco",
)
"""The modules that have kernels. Those of `bound` include the loss with its signal, of `exp_concrete` the
logistic-normal node."""

LAYERS, ALL = "layers", "all"
"""Two more switches: both kernels of affine maps, and all kernels."""


def switches(calls: Counter[str]) -> list[str]:
    """Return the switches that change work which calls these kernels.

    >>> switches(Counter(affine=2, bits=1))
    ['affine', 'bits', 'layers', 'all']
    """
    used = [name for name in KERNELS if calls[name]]
    return [*used, *([LAYERS] if calls["affine"] else []), *([ALL] if used else [])]


def switched_off(switch: str) -> tuple[str, ...]:
    """Return the kernels that do not run under a switch."""
    return {ALL: KERNELS, LAYERS: ("affine", "affine_likelihood")}.get(switch, (switch,))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls of every kernel module inside this context, except those of replayed graphs."""
    calls: Counter[str] = Counter()
    with ExitStack() as stack:
        for name in KERNELS if has_triton() else ():
            module = import_module(f"concretely.kernel.{name}")
            for attribute, function in vars(module).copy().items():
                is_own = inspect.isfunction(function) and function.__module__ == module.__name__
                if is_own and not attribute.startswith("_"):
                    counting = _counting(function, name, calls)
                    stack.enter_context(mock.patch.object(module, attribute, counting))
        yield calls


@contextmanager
def off(switch: str | None) -> Iterator[None]:
    """Run definitions instead of the kernels of a switch inside this context."""
    with disabled(*(() if switch is None else switched_off(switch))):
        yield


def _counting(function: Callable[..., Any], name: str, calls: Counter[str]) -> Callable[..., Any]:
    def counting(*given: Any, **named: Any) -> Any:
        calls[name] += 1
        return function(*given, **named)

    return counting
