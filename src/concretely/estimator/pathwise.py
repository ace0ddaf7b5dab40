"""Estimators that backpropagate through draws: relaxed ones, or discrete ones by a straight-through gradient."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..mode import Mode, Noise, Relaxed, Temperatures
from ..mode import StraightThrough as StraightThroughMode
from ..model.base import Model
from ..noise import Source
from ..objective import Objective, Treatment, log_weights, loss
from ..program import Program
from .base import Estimate, bound_target

NoBound = Literal["mass", "analytic"]


@dataclass(frozen=True)
class Pathwise:
    """Concrete relaxations: the pathwise gradient of the relaxed graph.

    Approximates: the gradient of the objective of the discrete graph, by that of the same objective of the relaxed one.
    With: relaxed draws at `temperature`, scored under p at `prior_temperature`, by default the same; either may be a
        map from the names of nodes to their temperatures.
    Requires: a cost with a derivative between the states.
    Bias: none for the relaxed objective. It is a lower bound of the relaxed log-likelihood if `kl` is "density", and no
        bound if it is "mass" or "analytic". As a gradient of the discrete objective it has a bias that vanishes with
        the temperature. With an inference network the bias does not vanish: the KL between relaxed nodes exceeds the
        discrete KL by an amount that does not depend on the temperature. See [maddison2017concrete].

    With normal noise it is the paper's control experiment: the relaxed graph does not tend to the discrete one.

    >>> Pathwise(temperature=2 / 3, prior_temperature=1 / 2).kl
    'density'
    """

    temperature: Temperatures
    prior_temperature: Temperatures | None = None
    kl: Treatment = "density"
    noise: Noise = "gumbel"
    _modes: tuple[Mode, Mode] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _require_known(self.kl, "density", "mass", "analytic")
        object.__setattr__(self, "_modes", self._chosen_modes())  # computed once, not at every step

    def __call__(
        self, target: Model | Program, *inputs: Any, samples: int, objective: Objective, generator: Source | None
    ) -> Estimate:
        """Estimate an objective."""
        mode, prior_mode = self._modes
        weights = log_weights(
            target,
            *inputs,
            mode=mode,
            prior_mode=prior_mode,
            analytic=self.kl == "analytic",
            samples=samples,
            generator=generator,
        )
        is_bound = self.kl == "density" or (isinstance(target, Model) and target.q is None)
        bounds = bound_target(target, objective, relaxed=True) if is_bound else None
        return Estimate(*loss(weights, objective), bounds)

    def _chosen_modes(self) -> tuple[Mode, Mode]:
        scored_by: Literal["density", "mass"] = "mass" if self.kl == "mass" else "density"
        prior = self.temperature if self.prior_temperature is None else self.prior_temperature
        return Relaxed(self.temperature, scored_by, self.noise), Relaxed(prior, scored_by, self.noise)


@dataclass(frozen=True)
class GumbelSoftmax:
    """The relaxed draw with a discrete divergence, as in the Gumbel-Softmax paper.

    Approximates: the gradient of the objective of the discrete graph.
    With: relaxed draws. Their log masses are weighted as the value weights the states or, with `kl` "analytic",
        replaced by the KL of the discrete distributions.
    Requires: a cost with a derivative between the states.
    Bias: yes; the objective is no bound, and drifts away from the discrete one if trained for long.
        See [jang2017categorical] and [maddison2017concrete], appendix C.2.
    """

    temperature: Temperatures
    kl: NoBound = "mass"

    def __post_init__(self) -> None:
        _require_known(self.kl, "mass", "analytic")
        Pathwise(self.temperature, kl=self.kl)

    def __call__(
        self, target: Model | Program, *inputs: Any, samples: int, objective: Objective, generator: Source | None
    ) -> Estimate:
        """Estimate an objective."""
        return Pathwise(self.temperature, kl=self.kl)(
            target, *inputs, samples=samples, objective=objective, generator=generator
        )


@dataclass(frozen=True)
class StraightThrough:
    """The discrete draw with the gradient of its mean.

    Approximates: the gradient of the objective of the discrete graph.
    With: discrete draws, whose gradient is passed on to their mean.
    Requires: a cost with a derivative at the states.
    Bias: yes, at any setting, unless the cost is linear; the objective itself is that of the discrete graph.
        See [bengio2013estimating].
    """

    kl: NoBound = "mass"

    def __post_init__(self) -> None:
        _require_known(self.kl, "mass", "analytic")

    def __call__(
        self, target: Model | Program, *inputs: Any, samples: int, objective: Objective, generator: Source | None
    ) -> Estimate:
        """Estimate an objective."""
        return _straight_through(self, StraightThroughMode(), target, inputs, samples, objective, generator)


@dataclass(frozen=True)
class StraightThroughGumbelSoftmax:
    """The discrete draw with the gradient of the relaxed draw of the same noise.

    Approximates: the gradient of the objective of the discrete graph.
    With: discrete draws, whose gradient is passed on to the relaxed draw of the same noise.
    Requires: a cost with a derivative at the states.
    Bias: yes, as it tends with the temperature to the slope at the states, averaged, and not to the difference between
        them; the objective itself is that of the discrete graph. See [jang2017categorical].
    """

    temperature: Temperatures
    kl: NoBound = "mass"

    def __post_init__(self) -> None:
        _require_known(self.kl, "mass", "analytic")
        StraightThroughMode(self.temperature)

    def __call__(
        self, target: Model | Program, *inputs: Any, samples: int, objective: Objective, generator: Source | None
    ) -> Estimate:
        """Estimate an objective."""
        mode = StraightThroughMode(self.temperature)
        return _straight_through(self, mode, target, inputs, samples, objective, generator)


def _straight_through(
    method: StraightThrough | StraightThroughGumbelSoftmax,
    mode: Mode,
    target: Model | Program,
    inputs: tuple[Any, ...],
    samples: int,
    objective: Objective,
    generator: Source | None,
) -> Estimate:
    analytic = method.kl == "analytic"
    weights = log_weights(target, *inputs, mode=mode, analytic=analytic, samples=samples, generator=generator)
    # the mean of several weights with an analytic divergence may exceed the likelihood
    bounds = None if analytic and samples > 1 else bound_target(target, objective)
    return Estimate(*loss(weights, objective), bounds)


def _require_known(kl: str, *treatments: str) -> None:
    if kl not in treatments:
        raise ValueError(f"kl must be one of {', '.join(map(repr, treatments))}, got {kl!r}")
