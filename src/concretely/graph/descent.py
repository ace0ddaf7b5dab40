"""Track which tensors of a program depend on which drawn values."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Transform
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from .program import Program, eval_mode

ESCAPES = {"numpy", "tolist", "item", "__array__", "__bool__", "__float__", "__int__", "__index__"}
"""Methods of tensors whose results are not tensors, but depend on the values."""
SHAPES = {"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"}
SHAPES |= {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"}
"""Functions whose results depend on the shape of a tensor alone."""

CHECKING = (__name__.partition(".")[0], "torch.distributions")
"""Packages that read values only to check them."""


class Descent(TorchFunctionMode):
    """Records, while it is active, the names of the drawn values that each tensor was computed from.

    Values that leave torch may return anywhere: all later tensors count as computed from them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names = WeakIdKeyDictionary()
        self._escaped: frozenset[str] = frozenset()

    def add(self, name: str, value: Tensor) -> None:
        """Record a drawn value."""
        self._names[value] = frozenset({name})

    def of(self, distribution: Distribution) -> frozenset[str]:
        """Return the names of the values that the parameters of a distribution depend on."""
        return self._of(_tensors(distribution))

    def _of(self, tensors: Iterable[Tensor]) -> frozenset[str]:
        return self._escaped.union(*(self._names.get(tensor, ()) for tensor in tensors))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        title = getattr(function, "__name__", "")
        if not self._names or title in SHAPES:
            return result
        names = self._of(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        if names:
            changed = args[0] if title == "__setitem__" else result
            for leaf in tree_leaves(changed):
                if isinstance(leaf, Tensor):
                    self._names[leaf] = names
            if title in ESCAPES and not sys._getframe(1).f_globals.get("__name__", "").startswith(CHECKING):
                self._escaped = names
        return result


def parents(program: Program, inputs: tuple[Any, ...], values: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """Return, for every node, the nodes that its distribution depends on, by running the program with given values.

    If a distribution has no tensors, all earlier nodes count as its parents.
    """
    found: dict[str, tuple[str, ...]] = {}
    descent = Descent()

    def draw(name: str, distribution: Distribution, *, observed: Tensor | None = None) -> Tensor:
        known = any(True for _ in _tensors(distribution))
        names = descent.of(distribution) if known else frozenset(found)
        found[name] = tuple(other for other in found if other in names)
        value = values[name].detach().clone()  # other names may have the same tensor
        descent.add(name, value)
        return value

    with eval_mode(program), torch.no_grad(), descent:
        program(draw, *inputs)
    return found


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
