"""Launch kernels without Triton's search for the compiled program, which takes longer than a small kernel runs."""

from collections.abc import Callable, Sequence
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
    with other whole numbers are of another kind, except for the arguments named in `free`. Those must have 64 bits.
    """

    def __init__(self, function: Callable[..., Any], *, free: Sequence[str] = ()) -> None:
        self._function = triton.jit(function, do_not_specialize=list(free))
        self._names = tuple(self._function.arg_names)
        self._free = tuple(map(self._names.index, free))
        self._programs: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *given: Any, **constants: Any) -> None:
        kinds = [_kind(each) for each in given]
        for place in self._free:
            kinds[place] = None
        kind = (*constants.items(), *kinds)
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
    kind = type(argument)
    if kind is int:
        return argument
    if kind is Tensor or isinstance(argument, Tensor):
        return argument.dtype, argument.get_device(), argument.data_ptr() % 16
    if kind is tuple:
        return tuple(map(_kind, argument))
    return kind if kind is float else argument
