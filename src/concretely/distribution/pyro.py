"""The methods that pyro adds to torch distributions, looked up on first use."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

if TYPE_CHECKING:
    _Base = Distribution
else:
    _Base = object


class _Borrowed:
    """A method of pyro's mixin for distributions, bound to the variable."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        try:
            from pyro.distributions.torch_distribution import TorchDistributionMixin  # type: ignore[import-not-found]
        except ImportError as error:
            raise AttributeError(f"{owner.__name__}.{self.name} is pyro's, which is not installed") from error
        return getattr(TorchDistributionMixin, self.name).__get__(instance, owner)


class PyroMixin(_Base):
    """Makes a distribution usable in `pyro.sample`."""

    event_dim = _Borrowed()
    expand_by = _Borrowed()
    has_rsample_ = _Borrowed()
    infer_shapes = _Borrowed()
    mask = _Borrowed()
    score_parts = _Borrowed()
    shape = _Borrowed()
    to_event = _Borrowed()

    def __init__(self, batch_shape: Size, event_shape: Size, *, validate_args: bool) -> None:
        super().__init__(batch_shape, event_shape, validate_args=validate_args)
        # pyro checks isinstance; a program that has not imported pyro has no sites
        pyro = None if torch.compiler.is_compiling() else sys.modules.get("pyro.distributions.torch_distribution")
        if pyro is not None:
            pyro.TorchDistributionMixin.register(PyroMixin)

    def __call__(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw values, with a pathwise gradient if available."""
        shape = tuple(sample_shape)
        return self.rsample(Size(shape)) if self.has_rsample else self.sample(Size(shape))
