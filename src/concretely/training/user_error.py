"""Errors of a user's builder or program: the line that raised them, the batch, and one sentence."""

import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ..functional.arithmetic import has_nan
from ..spelling import first_line

OWN = __name__.partition(".")[0]
"""The name of this package."""
CALLERS = {f"{OWN}.graph.run", f"{OWN}.training.builder"}
"""The modules that call the code of a user."""
LIBRARIES = {OWN, "numpy", "scipy", "torch", *sys.stdlib_module_names}
"""Packages whose lines are not those of a user."""


def user_line(error: BaseException) -> str:
    """Return the innermost line of the user's code that an error passed through, such as ` at my_model.py:12`.

    A line of a package that was installed counts only if there is no other.
    """
    lines = [(frame, line) for frame, line in _called(error) if _package(frame) not in LIBRARIES]
    lines = [(frame, line) for frame, line in lines if not _is_installed(frame)] or lines
    return f" at {Path(lines[-1][0].f_code.co_filename).name}:{lines[-1][1]}" if lines else ""


def is_raised_by_user(error: BaseException) -> bool:
    """Return whether an error comes from the user's code, or a library that it calls, and not from this package."""
    packages = [_package(frame) for frame, _ in _called(error)]
    return next((package != OWN for package in reversed(packages) if package not in LIBRARIES - {OWN}), False)


def describe_raised(error: BaseException) -> str:
    """Return the type, the line, the text and the notes of an error of the user's code.

    >>> describe_raised(RuntimeError("no licence")), describe_raised(AssertionError())
    ('RuntimeError: no licence', 'AssertionError')
    """
    text = f": {first_line(error)}" if str(error) else ""
    return " ".join([f"{type(error).__name__}{user_line(error)}{text}", *getattr(error, "__notes__", [])])


def describe_batch(batch: Any) -> str:
    """Return the dtypes and the shapes of the tensors of a batch, and whether they have nan.

    >>> import torch
    >>> describe_batch((torch.zeros(8, 6), {"y": torch.zeros(8).long()})), describe_batch(torch.full((1,), torch.nan))
    ('float32 (8, 6) and int64 (8,)', 'float32 (1,) with nan')
    """
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    shapes = [f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}" for leaf in leaves]
    described = [shape + " with nan" * bool(has_nan(leaf)) for shape, leaf in zip(shapes, leaves, strict=True)]
    return " and ".join(described) or "no tensor"


def require_no_nan(batches: Iterable[Any], step: int, error: ValueError) -> None:
    """Raise an error of a step of one member that names the step if its batches have nan.

    They may have nan before, as a program may mask it.
    """
    described = [describe_batch(tree_map_only(Tensor, lambda leaf: leaf[0], batch)) for batch in batches]
    if any("nan" in batch for batch in described):
        raise ValueError(f"{error}, in step {step:,} on a batch of {' and '.join(described)}") from error


def _called(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames of an error, and their lines, from the first that calls the user's code."""
    frames = list(walk_tb(error.__traceback__))
    names = [frame.f_globals.get("__name__") for frame, _ in frames]
    return frames[next((place for place, name in enumerate(names) if name in CALLERS), len(frames)) :]


def _package(frame: FrameType) -> str:
    """Return the name of the package of a line; code without a file is Python's."""
    name = "builtins" if frame.f_code.co_filename.startswith("<") else str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0]


def _is_installed(frame: FrameType) -> bool:
    places = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return any(Path(frame.f_code.co_filename).is_relative_to(place) for place in places)
