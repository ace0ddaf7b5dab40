"""Programs: stochastic graphs written as functions of `draw` and inputs.

`draw(name, distribution)` returns a value and `draw(name, distribution, observed=value)` scores one. A program is
written for an ordinary batch. With several samples, drawn values have more rows (see `run` and `tile`).
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution


@runtime_checkable
class Draw(Protocol):
    """Draws the value of a node, or scores an observed value."""

    def __call__(self, name: str, distribution: Distribution, *, observed: Tensor | None = None) -> Tensor: ...


Program = Callable[..., Any]
"""A function of a `Draw` and inputs."""


FOREIGN = {"torch", "numpy", __name__.partition(".")[0]}
"""Packages whose functions and objects are not searched for modules."""

_EVALUATED: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
"""For every module inside `eval_mode`: the number of open contexts, and its original `training` flag."""
_EVALUATED_LOCK = Lock()


@contextmanager
def eval_mode(program: Program) -> Iterator[None]:
    """Put the modules of a program into evaluation mode, so that a run updates no buffers.

    Threads may overlap: the last one to leave restores the original mode. In a compiled program, modules keep their
    mode.
    """
    if torch.compiler.is_compiling():  # it cannot trace the search for modules
        yield
        return
    parts = (part for _, part in variables(program) if isinstance(part, nn.Module))
    modules = list(dict.fromkeys(module for part in parts for module in part.modules()))
    with _EVALUATED_LOCK:
        for module in modules:
            count, was_training = _EVALUATED.get(module, (0, module.training))
            _EVALUATED[module] = count + 1, was_training
            module.training = False
    try:
        yield
    finally:
        with _EVALUATED_LOCK:
            for module in modules:
                count, was_training = _EVALUATED.pop(module)
                if count > 1:
                    _EVALUATED[module] = count - 1, was_training
                else:
                    module.training = was_training


def signature(program: Program) -> inspect.Signature:
    """Return the signature of a function, or of the forward pass of a module."""
    if isinstance(program, nn.Module) and not hasattr(program, "__signature__"):
        return inspect.signature(program.forward)
    return inspect.signature(program)


def required_names(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """Return the names of the parameters that every call must give.

    >>> required_names(inspect.signature(lambda a, b=1, *rest, c, **others: None).parameters.values())
    ['a', 'c']
    """
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [given.name for given in parameters if given.default is given.empty and given.kind not in kinds]


def variables(program: Program) -> Iterator[tuple[str, nn.Module | Tensor]]:
    """Yield the modules and tensors that a function uses, with their names.

    They are found among its variables, defaults and bound arguments, in functions inside it and that it refers to, in
    lists, dictionaries and objects of these, and by their names in modules and classes of the user.
    """
    waiting: list[tuple[str, Any]] = [("program", program)]
    seen = set[int]()
    while waiting:
        name, part = waiting.pop()
        if id(part) in seen or isinstance(part, type | ModuleType | str | bytes | Size):
            continue
        seen.add(id(part))
        if isinstance(part, nn.Module | Tensor):
            yield name, part
        elif _is_foreign(part):
            continue
        elif isinstance(part, FunctionType):
            waiting += _used(part)
        elif isinstance(part, partial):
            waiting += [(name, part.func), *enumerate_named(name, part.args), *part.keywords.items()]
        elif isinstance(part, MethodType):
            waiting.append(("owner", part.__self__))
            if isinstance(part.__func__, FunctionType):
                waiting += _used(part.__func__, type(part.__self__))
        elif isinstance(part, staticmethod | classmethod | property):
            waiting.append((name, part.fget if isinstance(part, property) else part.__func__))
        elif isinstance(part, Mapping):
            waiting += [(f"{name}_{key}", inner) for key, inner in part.items()]
        elif isinstance(part, list | tuple | set | frozenset):
            waiting += enumerate_named(name, part)
        else:
            slots = (slot for kind in type(part).__mro__ for slot in vars(kind).get("__slots__", ()))
            waiting += [(slot, getattr(part, slot)) for slot in slots if hasattr(part, slot)]
            waiting += getattr(part, "__dict__", {}).items()
            called = next((vars(kind)["__call__"] for kind in type(part).__mro__ if "__call__" in vars(kind)), None)
            if isinstance(called, FunctionType):
                waiting += _used(called, type(part))


def _is_foreign(part: Any) -> bool:
    """Return whether a function, object or module is of a library that keeps no modules of a user."""
    is_module = isinstance(part, ModuleType)
    owner = part if isinstance(part, FunctionType | type) else type(part)
    root = ((part.__name__ if is_module else owner.__module__) or "").partition(".")[0]
    searches = isinstance(part, FunctionType | type | ModuleType)
    return root in FOREIGN or (searches and root in sys.stdlib_module_names and root != "__main__")


def enumerate_named(name: str, parts: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return the parts of a sequence with a name for each."""
    return [(f"{name}_{index}", part) for index, part in enumerate(parts)]


def _used(function: FunctionType, owner: type | None = None) -> list[tuple[str, Any]]:
    """Return the variables of a function and, if it is a method of `owner`, of the other methods that it names."""
    functions, used = [function], list[tuple[str, Any]]()
    kinds = [kind for kind in owner.__mro__ if not _is_foreign(kind)] if owner else []
    for part in functions:
        used += _variables(part)
        for name, member in _members(kinds, used_names(part)):
            method = getattr(member, "__func__", member)
            if not isinstance(method, FunctionType):
                used.append((name, member))
            elif method not in functions:
                functions.append(method)
    return used


def _variables(function: FunctionType) -> list[tuple[str, Any]]:
    """Return what a function and the functions inside it refer to, also in modules and classes, and its defaults."""
    names = used_names(function)
    named = [(name, function.__globals__[name]) for name in names if name in function.__globals__]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        with suppress(ValueError):  # a variable that has no value yet
            named.append((name, cell.cell_contents))
    for _, holder in named:  # it grows by modules in packages and by classes in modules
        if isinstance(holder, ModuleType | type) and not _is_foreign(holder):
            named += [entry for entry in _members([holder], names) if all(entry[1] is not other for _, other in named)]
    named += enumerate_named("default", function.__defaults__ or ())
    return [*named, *(function.__kwdefaults__ or {}).items()]


def used_names(function: FunctionType) -> list[str]:
    """Return the names that a function and the functions inside it use, of variables and of attributes."""
    codes, names = [function.__code__], set[str]()
    for code in codes:
        names |= set(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return sorted(names)


def _members(holders: Iterable[ModuleType | type], names: Iterable[str]) -> list[tuple[str, Any]]:
    """Return the attributes of modules or classes that have one of the names."""
    return [(name, vars(holder)[name]) for holder in holders for name in names if name in vars(holder)]
