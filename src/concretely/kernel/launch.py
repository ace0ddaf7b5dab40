"""Launch kernels without Triton's search for the compiled program, which takes longer than a small kernel runs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import triton
from torch import Tensor

MANY = 4096
"""The number of kinds of calls after which all are forgotten, as in a program that never repeats a size."""


class Launched:
    """A Triton function that remembers its compiled program for every kind of call.

    It is called as Triton's own: `function[grid](*given, **constants)`. Triton compiles a program for each combination
    of constants, dtypes, the alignment of tensors, and some properties of whole numbers, such as being 1. Here, calls
    with other whole numbers are of another kind.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = triton.jit(function)
        self._names = tuple(getattr(self._function, "arg_names", ()))
        self._programs: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *given: Any, **constants: Any) -> None:
        kind = (*constants.items(), *map(_kind, given))
        known = self._programs.get(kind)
        if known is not None:
            program, rest = known
            program[*grid, *(1,) * (3 - len(grid))](*given, *rest)
            return
        program = self._function[grid](*given, **constants)
        if program is not None:  # the interpreter returns none
            if len(self._programs) == MANY:
                self._programs.clear()
            self._programs[kind] = program, tuple(constants[name] for name in self._names[len(given) :])


def _kind(argument: Any) -> Any:
    """Return what the compiled program depends on in an argument. It does not depend on the value of a float."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.get_device(), argument.data_ptr() % 16
    if isinstance(argument, tuple):
        return tuple(map(_kind, argument))
    return float if isinstance(argument, float) else argument
