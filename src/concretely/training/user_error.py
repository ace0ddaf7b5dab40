"""Errors of a user's builder or program: the line that raised them, and one sentence."""

import sys
import sysconfig
from pathlib import Path
from traceback import walk_tb
from types import FrameType

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
