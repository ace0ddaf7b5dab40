"""What a stochastic graph is: a program whose random nodes go through the `draw` that is passed to it.

A program is any function of `draw` and its inputs, `draw(name, distribution)` giving a value and
`draw(name, distribution, observed=value)` scoring one. It must be written for leading axes, as `nn.Linear` and
elementwise functions are: with several samples, what has passed a draw has a sample axis in front.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.distributions import Distribution

__all__ = ["Draw"]


@runtime_checkable
class Draw(Protocol):
    """How a program asks for the value of a node, or has an observed one scored."""

    def __call__(self, name: str, distribution: Distribution, *, observed: Tensor | None = None) -> Tensor: ...


Program = Callable[..., Any]
"""A function of a `Draw` and of inputs."""


_EVALUATED: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
"""For every module in evaluation mode: how many contexts keep it there, and whether it was in training mode before."""
_EVALUATED_LOCK = Lock()


@contextmanager
def eval_mode(program: Program) -> Iterator[None]:
    """Put the modules of a program into evaluation mode, so that a run changes nothing, such as a running average.

    Threads may do so at the same time: the last one to leave puts every module back into the mode that the first one
    found it in.
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
