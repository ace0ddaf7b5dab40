"""Triton's interpreter, which runs kernels where there is no GPU, in a fraction of the time that it takes."""

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any


def prepare() -> None:
    """Have kernels interpreted, without the work that takes most of the interpreter's time and changes no result."""
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
    if find_spec("triton") is None or os.environ["TRITON_INTERPRET"] != "1":
        return
    _patch_once()
    _reduce_by_halves()
    _remember_types()
    _skip_unused_checks()


def _patch_once() -> None:
    """Replace Triton's functions at the first launch only, not at every launch and every call within a kernel."""
    from triton.runtime.interpreter import InterpretedFunction

    call, patched = InterpretedFunction.__call__, set[str]()

    def called(function: Any, *arguments: Any, **options: Any) -> Any:
        module = function.fn.__module__
        if module in patched:
            return function.rewrite()(*arguments, **options)
        patched.add(module)
        return call(function, *arguments, **options)

    InterpretedFunction.__call__ = called


def _reduce_by_halves() -> None:
    """Reduce a block as a GPU does, by combining its halves, not element by element."""
    from triton.runtime.interpreter import ReduceOps

    reduce = ReduceOps.generic_reduce

    def reduced(operation: Any, blocks: tuple[Any, ...]) -> Any:
        if operation.axis is None:
            return reduce(operation, blocks)
        parts = [(block.handle.data.swapaxes(0, operation.axis), block.dtype) for block in blocks]
        while (size := len(parts[0][0])) > 1:
            cuts = slice(size // 2), slice(size // 2, size)
            combined = operation.combine_fn.fn(
                *(operation.to_tensor(data[cut], dtype) for cut in cuts for data, dtype in parts)
            )
            results = combined if isinstance(combined, tuple) else (combined,)
            parts = [(result.handle.data, result.dtype) for result in results]
        whole = [data.swapaxes(0, operation.axis) for data, _ in parts]
        kept = [data if operation.keep_dims else data.squeeze(operation.axis) for data in whole]
        return [operation.to_tensor(data, dtype) for data, (_, dtype) in zip(kept, parts, strict=True)]

    ReduceOps.generic_reduce = reduced


def _remember_types() -> None:
    """Build each type of a block, and what follows from it, once."""
    from triton.language import core, semantic
    from triton.runtime import interpreter

    numpy_dtype, dtypes = interpreter._get_np_dtype, {}

    def remembered_dtype(dtype: Any) -> Any:
        if dtype.name not in dtypes:
            dtypes[dtype.name] = numpy_dtype(dtype)
        return dtypes[dtype.name]

    blocks: dict[tuple[Any, ...], Any] = {}

    def remembered_block(dtype: Any, shape: Any) -> Any:
        key = dtype.name, *shape
        if key not in blocks:
            blocks[key] = core.block_type(dtype, shape)
        return blocks[key]

    make = core.tensor.__init__

    def made(tensor: Any, handle: Any, dtype: Any) -> None:
        attributes = vars(dtype).get("_attributes")
        if attributes is None:
            make(tensor, handle, dtype)
            dtype._attributes = {name: value for name, value in vars(tensor).items() if name != "handle"}
        else:
            vars(tensor).update(attributes, handle=handle)

    broadcast = semantic.TritonSemantic.broadcast_impl_value

    def broadcasted(self: Any, left: Any, right: Any) -> Any:
        if left.type is right.type or (
            left.type.is_block() and right.type.is_block() and [*left.type.shape] == [*right.type.shape]
        ):
            return left, right
        return broadcast(self, left, right)

    interpreter._get_np_dtype = remembered_dtype
    interpreter.InterpreterBuilder.get_block_ty = lambda builder, dtype, shape: remembered_block(dtype, shape)
    core.block_type.with_element_ty = lambda block, dtype: remembered_block(dtype, block.shape)
    core.tensor.__init__ = made
    semantic.TritonSemantic.broadcast_impl_value = broadcasted


def _skip_unused_checks() -> None:
    """Leave out the arithmetic of overflow checks, whose outcome the interpreter looks at only when it debugs."""
    from triton.runtime.interpreter import interpreter_builder as builder

    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)
