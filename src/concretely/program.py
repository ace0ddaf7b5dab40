"""What a stochastic graph is: a program whose random nodes go through the `draw` that is passed to it.

A program is any function of `draw` and its inputs, `draw(name, distribution)` giving a value and
`draw(name, distribution, observed=value)` scoring one. It must be written for leading axes, as `nn.Linear` and
elementwise functions are: with several samples, what has passed a draw has a sample axis in front.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.distributions import Distribution

__all__ = ["Draw"]


@runtime_checkable
class Draw(Protocol):
    """How a program asks for the value of a node, or has an observed one scored."""

    def __call__(self, name: str, distribution: Distribution, *, observed: Tensor | None = None) -> Tensor: ...


Program = Callable[..., Any]
"""A function of a `Draw` and of inputs."""


@contextmanager
def eval_mode(program: Program) -> Iterator[None]:
    """Keep the modules of a program from learning anything, such as running averages, from runs that only look."""
    modules = list(program.modules()) if isinstance(program, nn.Module) else []
    training = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, was_training in zip(modules, training, strict=True):
            module.training = was_training
