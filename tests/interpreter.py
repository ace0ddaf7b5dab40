"""Triton's interpreter, which runs kernels where there is no GPU, in a fraction of the time that it takes."""

import os
from importlib.util import find_spec
from typing import Any


def prepare() -> None:
    """Have kernels interpreted, without the two things that take most of the interpreter's time.

    It replaces Triton's functions by its own when a kernel is launched, and again at every call within a kernel. And it
    reduces a block element by element, where a GPU combines halves.
    """
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
    if find_spec("triton") is None or os.environ["TRITON_INTERPRET"] != "1":
        return
    from triton.runtime.interpreter import InterpretedFunction, ReduceOps

    call, reduce, patched = InterpretedFunction.__call__, ReduceOps.generic_reduce, set[str]()

    def called(function: Any, *arguments: Any, **options: Any) -> Any:
        module = function.fn.__module__
        if module in patched:
            return function.rewrite()(*arguments, **options)
        patched.add(module)
        return call(function, *arguments, **options)

    def reduced(operation: Any, blocks: tuple[Any, ...]) -> Any:
        if operation.axis is None:
            return reduce(operation, blocks)
        parts = [(block.handle.data.swapaxes(0, operation.axis), block.dtype) for block in blocks]
        while (size := len(parts[0][0])) > 1:
            cuts = slice(size // 2), slice(size // 2, size)
            found = operation.combine_fn.fn(
                *(operation.to_tensor(data[cut], dtype) for cut in cuts for data, dtype in parts)
            )
            parts = [(each.handle.data, each.dtype) for each in (found if isinstance(found, tuple) else (found,))]
        whole = [data.swapaxes(0, operation.axis) for data, _ in parts]
        kept = [data if operation.keep_dims else data.squeeze(operation.axis) for data in whole]
        return [operation.to_tensor(data, dtype) for data, (_, dtype) in zip(kept, parts, strict=True)]

    InterpretedFunction.__call__ = called
    ReduceOps.generic_reduce = reduced
