"""Models of a user: instances, programs and functions that build them, and their names for later imports."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ..graph.program import Draw, required_names
from ..model.model import as_module
from ..spelling import did_you_mean, first_line
from .rng import Purpose, seed_of

Build = Callable[..., Any]
"""A function that returns a model or a program."""


def is_builder(target: Any) -> bool:
    """Return whether a target builds a model; otherwise it is a model or a program.

    A class of modules is a builder, as is a function whose first parameter is not `draw`.

    >>> is_builder(lambda: None), is_builder(lambda draw, x: x), is_builder(nn.Linear), is_builder(nn.Identity())
    (True, False, True, False)
    """
    if isinstance(target, nn.Module):
        return False
    if isinstance(target, type):
        return True
    if not callable(target):
        raise TypeError(
            f"a model must be a Model, a program or a function that builds one, got {type(target).__name__}"
        )
    return not takes_draw(inspect.signature(target))


def takes_draw(signature: inspect.Signature) -> bool:
    """Return whether a function is a program by its first parameter."""
    first = next(iter(signature.parameters.values()), None)
    return first is not None and (first.name == "draw" or first.annotation is Draw)


def require_arguments(build: Build, arguments: Mapping[str, Any]) -> None:
    """Raise an error in one sentence unless a builder can be called with some arguments."""
    title = f"{name_of(build) or 'the builder'}"
    parameters = inspect.signature(build).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in arguments:
        if name not in parameters and not takes_any:
            raise ValueError(f"{title} has no parameter {name!r}{did_you_mean(name, parameters)}")
    if missing := [name for name in required_names(parameters.values()) if name not in arguments]:
        how = ", ".join(f"{name}=…" for name in missing)
        todo = f"pass arguments=dict({how}), or --set {how.replace(', ', ' --set ')} on the command line"
        program = " (the first parameter of a program is called draw)" if not isinstance(build, type) else ""
        raise ValueError(f"{title} must be given {', '.join(missing)}, got no value{program}: {todo}")


def built(build: Build, arguments: Mapping[str, Any], *, seed: int) -> nn.Module:
    """Call a builder with the global generators seeded, and return its model or program as a module."""
    require_arguments(build, arguments)
    return _as_model(build, _called(build, arguments, seed=seed))


def built_by_name(name: str, arguments: Mapping[str, Any], *, seed: int) -> nn.Module:
    """Import a builder by its name and call it. An error of its own code becomes one sentence that says where.

    >>> built_by_name("torch.nn:Linear", {"in_features": 2, "out_features": 3}, seed=0)
    Linear(in_features=2, out_features=3, bias=True)
    """
    build = imported(name)
    require_arguments(build, arguments)
    try:
        target = _called(build, arguments, seed=seed)
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        why = f"{type(error).__name__}{_place(error)}: {first_line(error)}"
        raise ValueError(f"{name} must build a model from {given or 'its defaults'}, got {why}") from error
    return _as_model(build, target)


def _called(build: Build, arguments: Mapping[str, Any], *, seed: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(seed, Purpose.INITIAL))
        return build(**arguments)


def _as_model(build: Build, target: Any) -> nn.Module:
    if not callable(target) or isinstance(target, type):
        title = name_of(build) or "the builder"
        raise ValueError(f"{title} must return a Model or a program, got {type(target).__name__}")
    return as_module("program", target)


def _place(error: Exception) -> str:
    """Return the innermost line of the user's code that an error passed through, such as ` at my_model.py:12`."""
    others = Path(torch.__file__).parent, Path(importlib.__file__).parent, Path(__file__).parents[1]
    frames = [
        frame
        for frame in extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not any(map(Path(frame.filename).is_relative_to, others))
    ]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def name_of(target: Any) -> str:
    """Return the name by which a function or class can be imported, such as `package.module:build`, or an empty text.

    >>> name_of(nn.Linear), name_of(lambda: None)
    ('torch.nn.modules.linear:Linear', '')
    """
    if isinstance(target, partial):
        target = target.func
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "<unknown>")
    return "" if not module or "<" in name else f"{module}:{name}"


def name_of_class(model: Any) -> str:
    """Return the name of the class of a model if it can be built without arguments, else an empty text.

    >>> name_of_class(nn.ReLU()), name_of_class(nn.Linear(1, 1)), name_of_class(lambda draw: 0)
    ('torch.nn.modules.activation:ReLU', '', '')
    """
    own = type(model)
    if not isinstance(model, nn.Module):
        return ""
    try:
        require_arguments(own, {})
    except ValueError:
        return ""
    return name_of(own)


def imported(name: str) -> Build:
    """Import a builder by its name, `package.module:build` or `path/to/file.py:build`.

    >>> imported("torch.nn:Linear") is nn.Linear
    True
    """
    place, _, attribute = name.rpartition(":")
    module = _module_of(place, name)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part) and place == "__main__":
            raise ValueError(f"{part!r} is of the script that trained it, and not in this one")
        if not hasattr(target, part):
            raise ValueError(f"unknown name {part!r} in {place}{did_you_mean(part, dir(target))}")
        target = getattr(target, part)
    if not callable(target):
        raise ValueError(f"a model must be built by a function, got {type(target).__name__} in {name}")
    if not is_builder(target):
        kind = "module" if isinstance(target, nn.Module) else "program"
        raise ValueError(f"{name} must build a model, but it is a {kind} itself: name a function that returns it")
    build: Build = target
    return build


def _module_of(place: str, name: str) -> ModuleType:
    """Import a module, or a file by its path."""
    try:
        if not place.endswith(".py"):
            if "" not in sys.path and str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
            return importlib.import_module(place)
        path = Path(place)
        if path.stem in sys.modules and getattr(sys.modules[path.stem], "__file__", None) == str(path.resolve()):
            return sys.modules[path.stem]
        spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
        if spec is None or spec.loader is None or not path.is_file():
            raise ImportError("there is no such file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(path.stem, None)  # so that a mended file is read again
            raise
    except ImportError as error:
        raise ValueError(f"model must be importable, such as package.module:build, got {name!r}: {error}") from None
    except Exception as error:
        why = f"{type(error).__name__}{_place(error)}: {first_line(error)}"
        raise ValueError(f"model must be importable, but importing {name!r} raised {why}") from error
    return module
