"""Launch kernels without Triton's search for the compiled program, which takes longer than a small kernel runs."""

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import Any

import triton
from torch import Tensor
from triton import knobs
from triton.runtime import driver

MANY = 4096
"""Above this number of kinds of calls, the cache is cleared, as for a program whose sizes never repeat."""


class Launched:
    """A Triton function that remembers its compiled program for every kind of call.

    It is called as Triton's own: `function[grid](*given, **constants)`. Triton compiles a program for each combination
    of constants, dtypes, the alignment of tensors, and some properties of whole numbers, such as being 1. Here, calls
    with other whole numbers are of another kind, except for the arguments named in `free`. Those must have more than 32
    bits.
    """

    def __init__(self, function: Callable[..., Any], *, free: Sequence[str] = ()) -> None:
        self._function = triton.jit(function, do_not_specialize=list(free))
        self._names = tuple(self._function.arg_names)
        self._free = tuple(map(self._names.index, free))
        self._programs: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._kept: dict[Hashable, tuple[Any, ...]] = {}

    def again(self, key: Hashable, *given: Any) -> bool:
        """Launch the program that was kept under a key, and return whether there is one.

        This takes less time than another call. The key must tell apart all kinds of calls, and the grid must follow
        from it. Tensors are given by their addresses.
        """
        known = self._kept.get(key)
        if known is None or _is_observed():
            return False
        whole, (_, run, stream_of, device, function, metadata, rest) = known
        run(*whole, stream_of(device), function, metadata, None, None, None, *given, *rest)
        return True

    def keep(self, key: Hashable, grid: tuple[int, ...], *given: Any, **constants: Any) -> None:
        """Launch a program, and keep it under a key."""
        self._launch(grid, *given, **constants)
        known = self._programs.get(self._kind(given, constants)[0])
        if known is not None:  # the interpreter has none
            if len(self._kept) == MANY:
                self._kept.clear()
            self._kept[key] = _whole(grid), known

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *given: Any, **constants: Any) -> None:
        kind, passed = self._kind(given, constants)
        known = self._programs.get(kind)
        if known is None:
            self._compile(kind, grid, given, constants)
            return
        program, run, stream_of, device, function, metadata, rest = known
        whole = _whole(grid)
        if _is_observed():
            program[whole](*given, *rest)
        else:  # the same, without Triton's calls of profiler hooks
            run(*whole, stream_of(device), function, metadata, None, None, None, *passed, *rest)

    def _kind(self, given: tuple[Any, ...], constants: dict[str, Any]) -> tuple[tuple[Any, ...], list[Any]]:
        """Return the kind of a call, and its arguments with addresses in place of tensors."""
        kinds: list[Any] = [*constants, *constants.values()]
        passed: list[Any] = []
        _read(given, kinds, passed, self._free)
        return tuple(kinds), passed

    def _compile(
        self, kind: tuple[Any, ...], grid: tuple[int, ...], given: tuple[Any, ...], constants: dict[str, Any]
    ) -> None:
        """Launch a kind of call for the first time, and remember its program."""
        program = self._function[grid](*given, **constants)
        if program is not None:  # the interpreter returns none
            if len(self._programs) == MANY:
                self._programs.clear()
            rest, active = tuple(constants[name] for name in self._names[len(given) :]), driver.active
            how = program.run, active.get_current_stream, active.get_current_device()
            self._programs[kind] = program, *how, program.function, program.packed_metadata, rest


def _whole(grid: tuple[int, ...]) -> tuple[int, ...]:
    """Return the three lengths of a grid."""
    return (*grid, 1, 1)[:3]


def _is_observed() -> bool:
    """Return whether a profiler has asked Triton to report launches."""
    before, after = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(before, "calls", before) or getattr(after, "calls", after))


def _read(given: Sequence[Any], kinds: list[Any], passed: list[Any], free: Collection[int] = ()) -> None:
    """Append what a compiled program depends on, such as dtypes, and arguments with addresses in place of tensors.

    Launchers read an address in less time than a tensor. Its kind has the device, so that a first call, which gets
    tensors, has refused those on a CPU.
    """
    for place, argument in enumerate(given):
        kind = type(argument)
        if kind is int:
            kinds.append(int if place in free else argument)
        elif kind is Tensor or isinstance(argument, Tensor):
            address = argument.data_ptr()
            kinds += argument.dtype, argument.get_device(), address % 16
            passed.append(address)
            continue
        elif kind is tuple:
            inner: list[Any] = []
            kinds += tuple, len(argument)
            _read(argument, kinds, inner)
            passed.append(tuple(inner))
            continue
        else:
            kinds.append(kind if kind is float else argument)
        passed.append(argument)
