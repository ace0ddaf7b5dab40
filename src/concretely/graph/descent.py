"""Track which tensors of a program depend on which drawn values."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.distributions import Distribution, Transform
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from .program import Program, eval_mode

ESCAPES = {"numpy", "tolist", "item", "__array__", "__bool__", "__float__", "__int__", "__index__"}
ESCAPES |= {"__dlpack__", "data_ptr", "untyped_storage"}
"""Methods of tensors whose results are not tensors, but depend on the values."""
SHAPES = {"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"}
SHAPES |= {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"}
"""Functions whose results depend on the shape of a tensor alone."""

MEASURES = {"__len__", "size", "__get__", "numel"}
"""Methods of tensors that return a shape or a length; `__get__` is that of `shape`, among others."""
CHECKING = (__name__.partition(".")[0], "torch", "jaxtyping", "beartype", "typeguard")
"""Packages that read values only to check them."""


LIKE = {"to", "type_as"}
"""Functions that take only the dtype and the device of their other tensors."""


class Descent(TorchFunctionMode):
    """Records, while it is active, the names of the drawn values that each tensor was computed from.

    With `rows`, a tensor that has only its shape from another one counts as computed from it.
    Values that leave torch may return anywhere: all later tensors count as computed from them.
    """

    def __init__(self, *, rows: bool = False) -> None:
        super().__init__()
        self._names = WeakIdKeyDictionary()
        self._written: list[tuple[Tensor, frozenset[str]]] = []
        """Tensors that were written in place, of which others may be views."""
        self._escaped: frozenset[str] = frozenset()
        self._measured: frozenset[str] = frozenset()
        """Names of values whose shape was read, from which new tensors may be made."""
        self._rows = rows

    def add(self, name: str, value: Tensor) -> None:
        """Record a drawn value."""
        self._names[value] = frozenset({name})

    def of(self, distribution: Distribution) -> frozenset[str]:
        """Return the names of the values that the parameters of a distribution depend on."""
        return self._of(_tensors(distribution))

    def _of(self, tensors: Iterable[Tensor]) -> frozenset[str]:
        result = set(self._escaped)
        for tensor in tensors:
            result.update(self._names.get(tensor, ()))
            for written, names in self._written:
                if _shares_memory(tensor, written):
                    result |= names
        return frozenset(result)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        title = getattr(function, "__name__", "")
        if not self._names or (title in SHAPES and not self._rows):
            return result
        given = [
            leaf for leaf in tree_leaves((args[:1] if title in LIKE else args, kwargs)) if isinstance(leaf, Tensor)
        ]
        names = self._of(map(_unwrapped, given))
        if not given and self._rows:
            names = self._measured
        if names:
            changed = args[0] if title == "__setitem__" else result
            for leaf in tree_leaves(changed):
                if isinstance(leaf, Tensor):
                    self._names[leaf] = names
                    if title == "__setitem__" or (title.endswith("_") and leaf is args[0]):
                        self._written.append((leaf, names))
            is_user = _is_user(sys._getframe(1))
            if (title in ESCAPES and is_user) or any(_unwrapped(leaf) is not leaf for leaf in given):
                self._escaped |= names
            if title in MEASURES and is_user:
                self._measured |= names
        return result


def _is_user(frame: FrameType | None) -> bool:
    """Return whether a method of a tensor was called neither by this package nor by torch."""
    while frame is not None and frame.f_globals.get("__name__") in ("torch._tensor", "torch.overrides"):
        frame = frame.f_back
    return frame is None or not frame.f_globals.get("__name__", "").startswith(CHECKING)


def _unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor inside the wrappers of `torch.func`."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def _shares_memory(tensor: Tensor, other: Tensor) -> bool:
    try:
        return bool(tensor.untyped_storage()._cdata == other.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a tensor without storage
        return False


def parents(program: Program, inputs: tuple[Any, ...], values: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """Return, for every node, the nodes that its distribution depends on, by running the program with given values.

    If a distribution has no tensors, all earlier nodes count as its parents.
    """
    result: dict[str, tuple[str, ...]] = {}
    leaves, connected = dict[str, Tensor](), dict[str, list[Tensor]]()
    descent = Descent()

    def draw(name: str, distribution: Distribution, *, observed: Tensor | None = None) -> Tensor:
        known = any(True for _ in _tensors(distribution))
        names = descent.of(distribution) if known else frozenset(result)
        result[name] = tuple(other for other in result if other in names)
        value = values[name].detach().clone()  # other names may have the same tensor
        leaves[name] = value.requires_grad_(value.is_floating_point())
        connected[name] = [tensor for tensor in _tensors(distribution) if tensor.requires_grad]
        descent.add(name, value)
        return value

    with _uncompiled(), eval_mode(program), torch.enable_grad(), descent:
        program(draw, *inputs)
    for name, tensors in connected.items():  # autograd sees through compiled and scripted functions
        earlier = [other for other in result if other != name and leaves[other].requires_grad]
        if tensors and earlier:
            with torch.enable_grad():
                total = torch.stack([tensor.double().sum() for tensor in tensors]).sum()
            slopes = torch.autograd.grad(total, [leaves[key] for key in earlier], allow_unused=True, retain_graph=True)
            reached = {other for other, slope in zip(earlier, slopes, strict=True) if slope is not None}
            result[name] = tuple(other for other in result if other in reached or other in result[name])
    return result


def _uncompiled() -> AbstractContextManager[Any]:
    """Return a context in which compiled functions run without their compiler, which cannot trace a `Descent`."""
    stance = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    return cast("AbstractContextManager[Any]", stance)


def _tensors(part: object) -> Iterator[Tensor]:
    """Yield the tensors in a distribution, its base distribution and its transforms."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, Distribution | Transform):
        for inner in vars(part).values():
            yield from _tensors(inner)
    elif isinstance(part, list | tuple) and not isinstance(part, torch.Size):
        for inner in part:
            yield from _tensors(inner)
