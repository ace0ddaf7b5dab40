"""Estimators that backpropagate through relaxed or straight-through draws."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..functional.noise import Source
from ..graph.mode import Mode, Noise, Relaxed, Surrogate, Temperatures
from ..graph.program import Program
from ..model.model import Model
from ..objective import LogWeights, Objective, Treatment, bound_target, log_weights, loss
from ..spelling import require_one_of
from ..temperature import MEASURED, PAPER, PAPER_PRIOR, ByStates
from .base import Estimate

NoBound = Literal["mass", "analytic"]


@dataclass(frozen=True)
class Pathwise:
    """The pathwise gradient of the Concrete relaxation.

    Approximates: the gradient of the objective of the discrete graph.
    With: relaxed draws at `temperature`, scored under p at `prior_temperature`, by default `temperature`. Either may be
        a mapping from node names to temperatures.
    Requires: a cost that is differentiable between the states.
    Bias: none for the relaxed objective, which is a lower bound on the relaxed log-likelihood only if `kl` is
        "density". For the discrete objective, the bias vanishes as the temperature falls, but not with an inference
        network and "density": the KL between relaxed nodes exceeds the discrete KL by an amount that does not depend
        on the temperature. See [maddison2017concrete].

    Without arguments, each node has a temperature that suits its number of states (`concretely.temperature`), and `kl`
    is "analytic". With "density", the KL between relaxed nodes is so large that small models with categorical latents
    may learn to ignore them. The default has two drawbacks: its objective is not a bound, and at a fixed temperature,
    very long training may move it away from the discrete objective. Then lower the temperature. With a temperature,
    `kl` is by default "density", and `Pathwise(kl="density")` takes the paper's temperatures.

    `noise="normal"` replaces Gumbel by Gaussian noise, as in a control experiment of the paper. Its relaxed graph does
    not converge to the discrete graph as the temperature falls.

    >>> Pathwise().kl, Pathwise(temperature=2 / 3, prior_temperature=1 / 2).kl
    ('analytic', 'density')
    """

    temperature: Temperatures | None = None
    prior_temperature: Temperatures | None = None
    kl: Treatment | None = None
    noise: Noise = "gumbel"
    _modes: tuple[Mode, Mode] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kl is None:
            is_given = self.temperature is not None or self.prior_temperature is not None
            object.__setattr__(self, "kl", "density" if is_given else "analytic")
        require_one_of("kl", self.kl, "density", "mass", "analytic")
        object.__setattr__(self, "_modes", self._chosen_modes())

    def __call__(
        self,
        target: Model | Program,
        *inputs: Any,
        samples: int,
        objective: Objective,
        generator: Source | None,
        batch_dims: int = 1,
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
            batch_dims=batch_dims,
        )
        _require_gradient(weights)
        is_bound = self.kl == "density" or (isinstance(target, Model) and target.q is None)
        bounds = bound_target(target, objective, relaxed=True) if is_bound else None
        return Estimate(*loss(weights, objective), bounds, weights=weights)

    def _chosen_modes(self) -> tuple[Mode, Mode]:
        scored_by: Literal["density", "mass"] = "mass" if self.kl == "mass" else "density"
        temperature, prior = self.temperature, self.prior_temperature
        if prior is None:
            prior = PAPER_PRIOR if temperature is None else temperature
        if temperature is None:
            temperature = by_states(self.kl)
        return Relaxed(temperature, scored_by, self.noise), Relaxed(prior, scored_by, self.noise)


@dataclass(frozen=True)
class GumbelSoftmax:
    """The pathwise gradient of relaxed draws with the KL of discrete distributions, as in the Gumbel-Softmax paper.

    Approximates: the gradient of the objective of the discrete graph.
    With: relaxed draws, scored by the discrete log masses weighted by the value or, if `kl` is "analytic", by the KL of
        the discrete distributions. Without a temperature, each node has one for its number of states.
    Requires: a cost that is differentiable between the states.
    Bias: yes; the objective is not a bound, and long training moves it away from the discrete objective.
        See [jang2017categorical] and [maddison2017concrete], appendix C.2.

    >>> import torch, concretely as c
    >>> c.estimate(c.density("2H-4V"), torch.zeros(8, 4), estimator=c.GumbelSoftmax(0.5)).loss.backward()
    """

    temperature: Temperatures | None = None
    kl: NoBound = "mass"

    def __post_init__(self) -> None:
        require_one_of("kl", self.kl, "mass", "analytic")
        Pathwise(self.temperature, kl=self.kl)

    def __call__(
        self,
        target: Model | Program,
        *inputs: Any,
        samples: int,
        objective: Objective,
        generator: Source | None,
        batch_dims: int = 1,
    ) -> Estimate:
        """Estimate an objective."""
        return Pathwise(self.temperature, kl=self.kl)(
            target, *inputs, samples=samples, objective=objective, generator=generator, batch_dims=batch_dims
        )


@dataclass(frozen=True)
class StraightThrough:
    """Discrete draws that are differentiated as if they were their mean.

    Approximates: the gradient of the objective of the discrete graph.
    With: discrete draws in the forward pass, and their mean in the backward pass.
    Requires: a cost that is differentiable at the states.
    Bias: yes, unless the cost is linear. The value of the objective is exact. See [bengio2013estimating].

    >>> import torch, concretely as c
    >>> c.estimate(c.density("2H-4V"), torch.zeros(8, 4), estimator=c.StraightThrough()).loss.backward()
    """

    kl: NoBound = "mass"

    def __post_init__(self) -> None:
        require_one_of("kl", self.kl, "mass", "analytic")

    def __call__(
        self,
        target: Model | Program,
        *inputs: Any,
        samples: int,
        objective: Objective,
        generator: Source | None,
        batch_dims: int = 1,
    ) -> Estimate:
        """Estimate an objective."""
        return _straight_through(self, Surrogate(), target, inputs, samples, objective, generator, batch_dims)


@dataclass(frozen=True)
class StraightThroughGumbelSoftmax:
    """Discrete draws that are differentiated as if they were relaxed draws.

    Approximates: the gradient of the objective of the discrete graph.
    With: discrete draws in the forward pass, and relaxed draws of the same noise in the backward pass. Without a
        temperature, each node has one for its number of states.
    Requires: a cost that is differentiable at the states.
    Bias: yes; as the temperature falls, it uses the mean slope of the cost at the states instead of the difference
        between the costs of the states. The value of the objective is exact. See [jang2017categorical].

    >>> import torch, concretely as c
    >>> c.estimate(c.density("2H-4V"), torch.zeros(8, 4), estimator=c.StraightThroughGumbelSoftmax()).loss.backward()
    """

    temperature: Temperatures | None = None
    kl: NoBound = "mass"
    _mode: Mode = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_one_of("kl", self.kl, "mass", "analytic")
        temperature = by_states(self.kl) if self.temperature is None else self.temperature
        object.__setattr__(self, "_mode", Surrogate(temperature))

    def __call__(
        self,
        target: Model | Program,
        *inputs: Any,
        samples: int,
        objective: Objective,
        generator: Source | None,
        batch_dims: int = 1,
    ) -> Estimate:
        """Estimate an objective."""
        return _straight_through(self, self._mode, target, inputs, samples, objective, generator, batch_dims)


def _straight_through(
    method: StraightThrough | StraightThroughGumbelSoftmax,
    mode: Mode,
    target: Model | Program,
    inputs: tuple[Any, ...],
    samples: int,
    objective: Objective,
    generator: Source | None,
    batch_dims: int,
) -> Estimate:
    analytic = method.kl == "analytic"
    weights = log_weights(
        target, *inputs, mode=mode, analytic=analytic, samples=samples, generator=generator, batch_dims=batch_dims
    )
    _require_gradient(weights)
    # with an analytic KL, the mean of several weights may exceed the likelihood
    bounds = None if analytic and samples > 1 else bound_target(target, objective)
    return Estimate(*loss(weights, objective), bounds, weights=weights)


def by_states(kl: Treatment | None) -> ByStates:
    """Return the temperatures of nodes for which none is given."""
    return MEASURED if kl == "analytic" else PAPER


def _require_gradient(weights: LogWeights) -> None:
    """Raise if the cost of a program has no gradient with respect to its draws."""
    draws = [weights.q[name].seen for name in weights.q.latent]
    cost = weights.log_p.get("cost")
    if cost is not None and not cost.requires_grad and any(draw.requires_grad for draw in draws):
        raise ValueError(
            "a cost must have a gradient with respect to the draws for this estimator, got one without: "
            "use an estimator that needs only its values, such as RLOO() or Reinforce()"
        )
