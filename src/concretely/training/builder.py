"""Models of a user: instances, programs and functions that build them, and their names for later imports."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..graph.program import Draw, required_names
from ..model.model import as_module
from ..spelling import did_you_mean
from .rng import Purpose, seed_of
from .stream import seeded_everything
from .user_error import describe_raised, user_line

Build = Callable[..., Any]
"""A function that returns a model or a program."""
DIGITS = 12
"""The number of digits in the name of a module that no other has."""
_IMPORTS = RLock()


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


def require_arguments(build: Build, arguments: Mapping[str, Any], *, name: str = "") -> None:
    """Raise an error in one sentence unless a builder can be called with some arguments."""
    title = name or name_of(build) or "the builder"
    parameters = inspect.signature(build).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for key in arguments:
        if key not in parameters and not takes_any:
            raise ValueError(f"{title} has no parameter {key!r}{did_you_mean(key, parameters)}")
    if missing := [key for key in required_names(parameters.values()) if key not in arguments]:
        how = ", ".join(f"{key}=…" for key in missing)
        todo = f"pass arguments=dict({how}), or --set {how.replace(', ', ' --set ')} on the command line"
        program = " (the first parameter of a program is called draw)" if not isinstance(build, type) else ""
        raise ValueError(f"{title} must be given {', '.join(missing)}, got no value{program}: {todo}")


def built(build: Build, arguments: Mapping[str, Any], *, seed: int) -> nn.Module:
    """Call a builder with the global generators seeded, and return its model or program as a module."""
    require_arguments(build, arguments)
    return _as_model(name_of(build) or "the builder", _called(build, arguments, seed=seed))


def built_by_name(name: str, arguments: Mapping[str, Any], *, seed: int) -> nn.Module:
    """Import a builder by its name and call it. An error of its own code becomes one sentence that says where.

    >>> built_by_name("torch.nn:Linear", {"in_features": 2, "out_features": 3}, seed=0)
    Linear(in_features=2, out_features=3, bias=True)
    """
    build = imported(name)
    require_arguments(build, arguments, name=name)
    try:
        target = _called(build, arguments, seed=seed)
    except (Exception, SystemExit) as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        must = f"{name} must build a model from {given or 'its defaults'}"
        raise ValueError(f"{must}, got {describe_raised(error)}") from error
    return _as_model(name, target)


def require_separate(models: Sequence[nn.Module]) -> None:
    """Raise if two of several models would train the same parameter."""
    seen = set[int]()
    for model in models:
        own = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
        if shared := [name for key, name in own.items() if key in seen]:
            must = "a builder must make new parameters for each seed and setting"
            raise ValueError(f"{must}, got the same {shared[0]!r} twice: make all modules inside of it")
        seen |= own.keys()


def _called(build: Build, arguments: Mapping[str, Any], *, seed: int) -> Any:
    own = seed_of(seed, Purpose.INITIAL)
    with torch.random.fork_rng(), seeded_everything(own):
        torch.manual_seed(own)  # also the generators of GPUs
        return build(**arguments)


def _as_model(title: str, target: Any) -> nn.Module:
    if not callable(target) or isinstance(target, type):
        raise ValueError(f"{title} must return a Model or a program, got {type(target).__name__}")
    return as_model(target)


def as_model(target: Any) -> nn.Module:
    """Return a model or program as a module. Raise if it has parameters that cannot be trained."""
    model = as_module("program", target)
    for name, own in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(own):
            todo = "give its layer all sizes, or run the model on a batch first"
            raise ValueError(f"a model must have tensors of known shapes, got the lazy {name!r}: {todo}")
        if own.is_meta:
            todo = "make it on a device, or call its to_empty and load its parameters"
            raise ValueError(f"a model must have tensors with values, got {name!r} on the device meta: {todo}")
        if own.requires_grad and own.is_complex():
            got, todo = f"{name!r} of {str(own.dtype).removeprefix('torch.')}", "train its view_as_real instead"
            raise ValueError(f"a model must have parameters of real numbers, got {got}: {todo}")
    return model


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
            known = [name for name in dir(target) if not name.startswith("_") and callable(getattr(target, name))]
            raise ValueError(f"unknown name {part!r} in {place}{did_you_mean(part, known)}")
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
        if place.endswith(".py"):
            return _module_of_file(Path(place))
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        if isinstance(error, ImportError) and not user_line(error):  # there is no such module
            raise ValueError(f"model must be importable, such as package.module:build, got {name!r}: {error}") from None
        must = f"model must be importable, but importing {name!r}"
        raise ValueError(f"{must} raised {describe_raised(error)}") from error


def _module_of_file(path: Path) -> ModuleType:
    """Import a file, which may import others in its folder.

    Its module is called like the file if any process finds it by that name. Objects of its classes can then be sent to
    worker processes. Otherwise, such as for `json.py` or a second file of a name, it has a name of its own, which other
    processes do not know. So it takes the place of no other module.
    """
    if not path.is_file():
        raise ImportError("there is no such file")
    path = path.resolve()
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end, as nothing there may take the place of another module
    importlib.invalidate_caches()  # of folders, as the file may be new
    if _is_found_as(path.stem, path):
        return importlib.import_module(path.stem)
    name = f"{path.stem.replace('.', '_')}_{hashlib.sha256(str(path).encode()).hexdigest()[:DIGITS]}"
    with _IMPORTS:  # no thread gets a module before it is complete
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]  # so that a mended file is read again
            raise
        return module


def _is_found_as(name: str, path: Path) -> bool:
    """Return whether a file is imported by a name. That of a module of Python stays free, and a dot names a package."""
    if "." in name or name in sys.stdlib_module_names:
        return False
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module that was imported without one, such as a script
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path
