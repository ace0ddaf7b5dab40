"""Updates of the parameters of a program's members from their gradients."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from ..kernel.deferred import DeferredGradient, materialized
from .optimizer import ParameterState, StepSizes, adam_, muon_


class Update(ABC):
    """Updates the parameters of some members. The first axis of every gradient counts members."""

    @abstractmethod
    def __call__(self, gradients: Mapping[str, Tensor], sizes: StepSizes) -> None:
        """Update all parameters that have a gradient. A learning rate of zero stops a member."""


class OwnUpdate(Update):
    """An update by Adam or, for weights, by Muon, of all members together and without waiting for the device."""

    def __init__(self, states: Mapping[str, ParameterState], *, weights: frozenset[str], muon: bool) -> None:
        self._states, self._weights, self._muon = states, weights, muon

    def __call__(self, gradients: Mapping[str, Tensor], sizes: StepSizes) -> None:
        """Update all parameters. Some gradients are still pairs of factors, and multiplied here."""
        states, waiting = self._states, dict(gradients)
        if self._muon:
            matrices = [name for name in states if name in self._weights and name in waiting]
            products = [materialized(waiting.pop(name)).flatten(2) for name in matrices]
            if matrices:
                flat = [ParameterState(*(part.flatten(2) for part in states[name])) for name in matrices]
                muon_(flat, products, sizes)
        deferred = [name for name, gradient in waiting.items() if isinstance(gradient, DeferredGradient)]
        for name in deferred:  # one after the other, so that the product is read before it leaves the cache
            adam_([states[name]], [materialized(waiting.pop(name))], sizes, decays=[name in self._weights])
        if waiting:
            decays = [name in self._weights for name in waiting]
            adam_([states[name] for name in waiting], list(waiting.values()), sizes, decays=decays)
