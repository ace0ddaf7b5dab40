"""Triton's interpreter, which runs kernels where there is no GPU, without work that it repeats for nothing."""

import os
from importlib.util import find_spec
from typing import Any


def prepare() -> None:
    """Have kernels interpreted, and the language patched once a module.

    The interpreter replaces Triton's functions by its own when a kernel is launched, and again whenever one function of
    a kernel calls another: the latter is half of the time that a kernel takes.
    """
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
    if find_spec("triton") is None or os.environ["TRITON_INTERPRET"] != "1":
        return
    from triton.runtime.interpreter import InterpretedFunction

    plain, patched = InterpretedFunction.__call__, set[str]()

    def called(function: Any, *arguments: Any, **options: Any) -> Any:
        module = function.fn.__module__
        if module in patched:
            return function.rewrite()(*arguments, **options)
        patched.add(module)
        return plain(function, *arguments, **options)

    InterpretedFunction.__call__ = called
