"""Programs: stochastic graphs written as functions of `draw` and inputs.

`draw(name, distribution)` returns a value and `draw(name, distribution, observed=value)` scores one. A program is
written for an ordinary batch. With several samples, drawn values have more rows (see `run` and `tile`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.distributions import Distribution


@runtime_checkable
class Draw(Protocol):
    """Draws the value of a node, or scores an observed value."""

    def __call__(self, name: str, distribution: Distribution, *, observed: Tensor | None = None) -> Tensor: ...


Program = Callable[..., Any]
"""A function of a `Draw` and inputs."""


_EVALUATED: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
"""For every module inside `eval_mode`: the number of open contexts, and its original `training` flag."""
_EVALUATED_LOCK = Lock()


@contextmanager
def eval_mode(program: Program) -> Iterator[None]:
    """Put the modules of a program into evaluation mode, so that a run updates no buffers.

    Threads may overlap: the last one to leave restores the original mode.
    """
    modules = list(program.modules()) if isinstance(program, nn.Module) else []
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
