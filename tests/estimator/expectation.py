"""Expectations over all ways that samples or noise can fall, each weighted by its probability."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import concretely as c
from concretely.estimator import nvil, reinforce, vimco
from concretely.functional import bernoulli, categorical, exp_concrete, logistic
from concretely.objective import Objective
from tests.estimator.target import DOUBLE, State, Target

Gradient = dict[str, Tensor]


class Loss(nn.Module):
    """The loss of a target as a module, so that its parameters can be put in from outside."""

    def __init__(self, target: nn.Module, estimator: c.Estimator, *, samples: int, objective: Objective | None) -> None:
        super().__init__()
        self.target, self.estimator = target, estimator
        self.samples, self.objective = samples, objective

    def forward(self, *inputs: Tensor) -> Tensor:
        """The loss."""
        return c.estimate(
            self.target, *inputs, estimator=self.estimator, samples=self.samples, objective=self.objective
        ).loss


@contextmanager
def forced(values: dict[str, Tensor]) -> Iterator[None]:
    """Have the score-function estimators draw these values."""
    with pytest.MonkeyPatch.context() as patch:
        for room in (reinforce, vimco, nvil):
            patch.setattr(room, "Discrete", lambda: c.mode.Replay(values))
        yield


def _shaped(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The value in rows, if a draw asks for samples and data points in one axis."""
    return value.reshape(shape) if value.numel() == torch.Size(shape).numel() else value.expand(shape)


@contextmanager
def forced_noise(value: Tensor) -> Iterator[None]:
    """Have all logistic noise be this, and Gumbel noise of two categories differ by it."""

    def of_bits(shape: tuple[int, ...], *_: object, **__: object) -> Tensor:
        return _shaped(value, shape).clone()

    def of_categories(shape: tuple[int, ...], *_: object, **__: object) -> Tensor:
        return _shaped(torch.stack([value / 2, -value / 2], -1), shape).clone()

    with pytest.MonkeyPatch.context() as patch:
        for law in (bernoulli, logistic):
            patch.setattr(law, "noise", of_bits)
        for law in (categorical, exp_concrete):
            patch.setattr(law, "noise", of_categories)
        yield


def logistic_quadrature(threshold: float, width: float, order: int = 16) -> tuple[Tensor, Tensor]:
    """Points and weights of an integral over logistic noise that changes within a width of a threshold.

    Gauss-Legendre on panels that grow away from the threshold; what lies beyond 42 has probability 1e-18.
    """
    edges = width * 2.0 ** np.arange(-1, np.ceil(np.log2(100 / width)))
    edges = threshold + np.concatenate([-edges[::-1], [0.0], edges])
    edges = np.concatenate([[-42.0], edges[(edges > -42) & (edges < 42)], [42.0]])
    # the density of the noise asks for panels of its own
    edges = np.unique(np.concatenate([edges, np.arange(-40.0, 41.0, 4.0)]))
    point, weight = np.polynomial.legendre.leggauss(order)
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    points = torch.tensor((middle[:, None] + half[:, None] * point).ravel(), dtype=DOUBLE)
    weights = torch.tensor((half[:, None] * weight).ravel(), dtype=DOUBLE)
    return points, weights * torch.sigmoid(points) * torch.sigmoid(-points)


def ways(states: list[State], samples: int) -> tuple[dict[str, Tensor], Tensor]:
    """The values of all tuples of states, with axes of tuples, samples and one data point, and their probabilities."""
    index = torch.tensor(list(itertools.product(range(len(states)), repeat=samples)))
    values = {name: torch.stack([state.values[name] for state in states])[index] for name in states[0].values}
    log_prob = torch.stack([state.log_prob for state in states]).detach()[index].sum(-1)
    return {name: value.unsqueeze(2) for name, value in values.items()}, log_prob.exp()


def expected_gradient(
    target: Target, module: nn.Module, estimator: c.Estimator, *, samples: int, objective: Objective | None = None
) -> Gradient:
    """The gradient that an estimator gives on average, over all states that its samples can have."""
    gradients = []
    for point, states in zip(zip(*target.inputs, strict=True), target.listed(module), strict=True):
        values, probability = ways(states, samples)
        inputs = tuple(entry.unsqueeze(0) for entry in point)
        loss = Loss(module, estimator, samples=samples, objective=objective)
        gradients.append(mean_gradient(loss, inputs, forced, values, probability))
    return {name: sum(gradient[name] for gradient in gradients) / len(gradients) for name in gradients[0]}


def mean_gradient(
    loss: Loss, inputs: tuple[Tensor, ...], force: Callable[..., object], events: object, weight: Tensor
) -> Gradient:
    """The weighted sum of the gradients of a loss in the parameters of its target, over events that are forced."""
    parameters = dict(loss.target.named_parameters(prefix="target"))

    def once(parameters: Gradient, event: object) -> Tensor:
        with force(event):
            return functional_call(loss, parameters, inputs)

    gradients = vmap(grad(once), in_dims=(None, 0))(parameters, events)
    return {name: torch.tensordot(weight, gradient, 1).detach() for name, gradient in gradients.items()}


def bound(log_w: Tensor) -> Tensor:
    """The multi-sample bound by its definition."""
    return log_w.exp().mean(0).log()


def average(log_w: Tensor) -> Tensor:
    """The mean over samples by its definition."""
    return log_w.sum(0) / len(log_w)


def truth(target: Target, module: nn.Module, *, samples: int, objective: Objective) -> tuple[Tensor, Gradient]:
    """The expected objective of every data point, summed over all states by hand, and the gradient of the loss."""
    values = []
    for states in target.listed(module):
        log_q, log_w = (torch.stack([getattr(state, name) for state in states]) for name in ("log_prob", "log_w"))
        index = torch.tensor(list(itertools.product(range(len(states)), repeat=samples))).T
        values.append((log_q[index].sum(0).exp() * objective(log_w[index])).sum())
    value = torch.stack(values)
    return value.detach(), gradient_of(-value.mean(), module)


def gradient_of(loss: Tensor, module: nn.Module) -> Gradient:
    """The gradient of a loss in all parameters, zero where it does not depend on one."""
    parameters = dict(module.named_parameters(prefix="target"))
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(parameters, gradients, strict=True))


def assert_same(actual: Gradient, expected: Gradient, tolerance: float = 1e-10) -> None:
    """Fail unless two gradients are one, and not zero."""
    assert flat(expected).abs().max() > 1e-3
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def flat(gradient: Gradient) -> Tensor:
    """All of a gradient as one vector."""
    return torch.cat([entry.flatten() for entry in gradient.values()])
