"""A study finds the bias and the variance that an estimator has on paper, within the errors that it states."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit, logit
from scipy.stats import norm
from torch import Generator, Tensor
from torch.testing import assert_close

import concretely as c
from concretely.evaluation.finding import Finding, GradientStudy
from concretely.evaluation.gradient import gradient_study
from concretely.evaluation.tally import Measure
from tests.budget import assert_likely, assert_mean

LOGITS = [0.8, -0.3]
TARGET = [0.45, 0.1]


@dataclass
class Program:
    """Two bits with the cost of their squared distance from a target, and their logits."""

    logits: Tensor

    def __call__(self, draw: c.Draw) -> Tensor:
        return (draw("b", c.Bernoulli(logits=self.logits)) - self.logits.new_tensor(TARGET)).square().sum(-1)


def program() -> Program:
    return Program(torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True))


def seeded(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def outcomes(gradient: Callable[[np.ndarray, np.ndarray], np.ndarray], samples: int) -> tuple[np.ndarray, float]:
    """The mean of a function of all samples and their costs, and the trace of its covariance, by enumeration."""
    theta = expit(np.array(LOGITS))
    mean, square = np.zeros(2), 0.0
    for bits in itertools.product([0.0, 1.0], repeat=2 * samples):
        b = np.array(bits).reshape(samples, 2)
        probability = np.where(b == 1, theta, 1 - theta).prod()
        value = gradient(b - theta, ((b - TARGET) ** 2).sum(-1, keepdims=True))
        mean, square = mean + probability * value, square + probability * (value**2).sum()
    return mean, square - (mean**2).sum()


def score(gap: np.ndarray, cost: np.ndarray) -> np.ndarray:
    return (cost * gap).mean(0)


def leave_one_out(gap: np.ndarray, cost: np.ndarray) -> np.ndarray:
    others = (cost.sum(0) - cost) / (len(cost) - 1)
    return ((cost - others) * gap).mean(0)


def straight_through(gap: np.ndarray, _: np.ndarray) -> np.ndarray:
    return 2 * slope() * (gap + expit(np.array(LOGITS)) - TARGET).mean(0)


def slope() -> np.ndarray:
    theta = expit(np.array(LOGITS))
    return theta * (1 - theta)


def exact_gradient() -> np.ndarray:
    """The derivative of the expected cost, in plain arithmetic."""
    return slope() * (1 - 2 * np.array(TARGET))


def straight_through_bias() -> float:
    theta = expit(np.array(LOGITS))
    return float(((2 * slope() * (theta - TARGET) - exact_gradient()) ** 2).sum())


def relaxed_bias(temperature: float) -> float:
    """The squared distance of the relaxed gradient, by quadrature, from the exact one."""

    def gradient(eta: float, target: float) -> float:
        def integrand(u: float) -> float:
            s = expit((eta + logit(u)) / temperature)
            return 2 * (s - target) * s * (1 - s) / temperature

        return quad(integrand, 0, 1)[0]

    relaxed = [gradient(eta, target) for eta, target in zip(LOGITS, TARGET, strict=True)]
    return float(((np.array(relaxed) - exact_gradient()) ** 2).sum())


CASES = {
    "score": (c.Reinforce(), 1, 0.0),
    "score of 2": (c.Reinforce(), 2, 0.0),
    "rloo": (c.RLOO(), 2, 0.0),
    "straight-through": (c.StraightThrough(), 1, straight_through_bias()),
    "concrete, cool": (c.Pathwise(0.5), 1, relaxed_bias(0.5)),
    "concrete, hot": (c.Pathwise(2.0), 2, relaxed_bias(2.0)),
}
VARIANCES = {
    "score": outcomes(score, 1),
    "score of 2": outcomes(score, 2),
    "rloo": outcomes(leave_one_out, 2),
    "straight-through": outcomes(straight_through, 1),
}


@cache
def study_of_cases() -> GradientStudy:
    target = program()
    estimators = {name: (estimator, samples) for name, (estimator, samples, _) in CASES.items()}
    return gradient_study(
        target,
        estimators={**estimators, "exact": c.Exact()},
        repeats=192,
        parameters=[target.logits],
        generator=seeded(0),
    )


def assert_measures(measure: Measure, truth: float, what: str) -> None:
    assert_likely(2 * norm.sf(abs(measure.value - truth) / measure.error), f"of {measure} against {truth} {what}")


@pytest.mark.parametrize("name", CASES)
def test_the_squared_bias_is_what_it_is_on_paper(name: str) -> None:
    assert_measures(study_of_cases()[name].squared_bias, CASES[name][2], name)


def test_a_bias_is_found_where_there_is_one_to_be_seen() -> None:
    # the cool one has a bias that is lost in the noise of so few gradients
    assert {name for name, finding in study_of_cases().findings.items() if finding.is_biased} == {
        "straight-through",
        "concrete, hot",
    }


@pytest.mark.parametrize("name", VARIANCES)
def test_the_variance_is_that_of_all_outcomes(name: str) -> None:
    mean, variance = VARIANCES[name]
    if not CASES[name][2]:
        np.testing.assert_allclose(mean, exact_gradient(), rtol=1e-12)
    assert_measures(study_of_cases()[name].variance, variance, name)


def test_what_follows_from_bias_and_variance_follows() -> None:
    found = study_of_cases()["straight-through"]
    length = float(np.linalg.norm(exact_gradient()))
    assert found.reference.length == pytest.approx(length, rel=1e-12)
    assert found.bias == pytest.approx(math.sqrt(found.squared_bias.value) / length)
    assert found.bias < found.bias_limit < 1.5 * found.bias
    assert found.noise.value == pytest.approx(math.sqrt(found.variance.value) / length)
    share = found.variance.error / found.variance.value
    assert found.noise.error == pytest.approx(found.noise.value * share / 2, rel=share)
    assert found.seconds_to_signal == pytest.approx(found.seconds * found.noise.value**2)


def test_the_exact_gradient_has_neither_bias_nor_variance() -> None:
    found = study_of_cases()["exact"]
    assert found.squared_bias == found.variance == (0, 0)
    assert found.p_value == 1
    assert (found.bias, found.bias_limit, *found.noise, found.seconds_to_signal) == (0, 0, 0, 0, 0)
    np.testing.assert_allclose(found.reference.gradient[0], exact_gradient(), rtol=1e-12)
    np.testing.assert_allclose(found.mean[0], exact_gradient(), rtol=1e-12)


@dataclass(frozen=True)
class Noisy:
    """A gradient of ones plus a constant and a known noise, whatever the target."""

    parameter: Tensor
    offset: float

    SCALES = (1.0, 0.5, 0.2)

    def __call__(self, *_: Any, generator: Generator, **__: Any) -> c.Estimate:
        noise = torch.randn(3, dtype=torch.float64, generator=generator) * torch.tensor(self.SCALES)
        return c.Estimate((self.parameter * (1 + self.offset + noise)).sum(), noise, noise)


@cache
def noisy_studies(offset: float) -> list[Finding]:
    """Independent studies of a gradient by a reference that is as noisy."""
    parameter = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    return [
        gradient_study(
            len,
            estimators={"noisy": Noisy(parameter, offset)},
            repeats=20,
            parameters=[parameter],
            reference=Noisy(parameter, 0.0),
            reference_repeats=30,
            generator=seeded(seed),
        )["noisy"]
        for seed in range(100)
    ]


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_bias_and_variance_are_unbiased_themselves(offset: float) -> None:
    found = noisy_studies(offset)
    assert_mean(torch.tensor([finding.squared_bias.value for finding in found]), 3 * offset**2, "of squared bias")
    assert_mean(torch.tensor([finding.variance.value for finding in found]), 1.29, "of variance")
    for part in range(3):
        assert_mean(torch.tensor([float(finding.mean[0][part]) for finding in found]), 1 + offset, "of gradient")


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_errors_are_the_spread_over_studies(offset: float) -> None:
    def stated_over_true(measures: list[Measure]) -> float:
        values, errors = np.array(measures).T
        return float(np.sqrt((errors**2).mean()) / values.std())

    found = noisy_studies(offset)
    assert stated_over_true([finding.variance for finding in found]) == pytest.approx(1, abs=0.25)
    # the jackknife doubles the variance of what is quadratic alone
    expected = 1 if offset else math.sqrt(2)
    assert stated_over_true([finding.squared_bias for finding in found]) == pytest.approx(expected, abs=0.3)


def test_a_sampled_reference_is_as_far_from_the_truth_as_it_says() -> None:
    found = [finding.reference for finding in noisy_studies(0.0)]
    assert {(reference.method, reference.repeats) for reference in found} == {("Noisy", 30)}
    assert_mean(torch.tensor([reference.error**2 for reference in found]), 1.29 / 30, "of stated error")
    gaps = torch.stack([(reference.gradient[0] - 1).square().sum() for reference in found])
    assert_mean(gaps, 1.29 / 30, "of true error")
    assert_mean(torch.tensor([reference.length**2 for reference in found]), 3.0, "of squared length")


def test_the_long_run_of_a_program_agrees_with_enumeration() -> None:
    target = program()
    study = gradient_study(
        target,
        estimators={"straight-through": c.StraightThrough()},
        repeats=64,
        parameters=[target.logits],
        reference=c.RLOO(),
        reference_repeats=128,
        generator=seeded(0),
    )
    found = study["straight-through"]
    gap = found.reference.gradient[0].numpy() - exact_gradient()
    assert np.linalg.norm(gap) < 3 * found.reference.error
    assert_measures(found.squared_bias, straight_through_bias(), "of straight-through")


def model_and_data() -> tuple[c.Model, Tensor]:
    model = c.density("1H-2V", generator=seeded(1)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=torch.float64, generator=seeded(2)))
    return model, torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)


def test_every_estimator_is_judged_by_the_objective_that_it_estimates() -> None:
    model, x = model_and_data()
    plain = c.NVIL(model, x, centre=False, scale=False, baseline=False)
    estimators = {
        "score": c.Reinforce(),
        "vimco": c.VIMCO(),
        "rloo": c.RLOO(),
        "nvil": (plain, 1),
        "single": (c.Reinforce(), 1),
    }
    study = gradient_study(model, x, estimators=estimators, samples=3, repeats=64, generator=seeded(0))
    aims = {name: finding.reference.aim for name, finding in study.findings.items()}
    assert aims == {
        "score": (c.bound, 3),
        "vimco": (c.bound, 3),
        "rloo": (c.average, 1),
        "nvil": (c.average, 1),
        "single": (c.average, 1),
    }
    assert len(study.references) == 2
    for name, finding in study.findings.items():
        assert_measures(finding.squared_bias, 0.0, name)
        assert not finding.is_biased
    for reference in study.references:
        objective, samples = reference.aim
        loss = c.estimate(model, x, estimator=c.Exact(), samples=samples, objective=objective).loss
        assert_close(reference.gradient, torch.autograd.grad(loss, list(model.parameters())))


def test_a_program_of_log_weights_can_be_judged_by_the_bound() -> None:
    target = program()
    study = gradient_study(
        target,
        estimators={"vimco": c.VIMCO(), "rloo": c.RLOO()},
        samples=2,
        repeats=64,
        objective=c.bound,
        parameters=[target.logits],
        generator=seeded(0),
    )
    assert study["vimco"].reference.aim == (c.bound, 2)
    assert study["rloo"].reference.aim == (c.average, 1)
    assert not any(finding.is_biased for finding in study.findings.values())


@pytest.mark.parametrize(
    ("points", "objective", "method"),
    [(2**12, c.bound, "Exact"), (2**12 + 1, c.bound, "VIMCO"), (2**14 + 1, c.average, "RLOO")],
)
def test_what_has_too_many_states_is_judged_by_a_long_run(
    points: int, objective: Callable[[Tensor], Tensor], method: str
) -> None:
    logits = torch.zeros(2, requires_grad=True)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return draw("b", c.Bernoulli(logits=logits + x)).sum(-1)

    study = gradient_study(
        program,
        torch.zeros(points, 2),
        estimators={"score": c.Reinforce()},
        samples=2,
        repeats=3,
        objective=objective,
        parameters=[logits],
    )
    reference = study["score"].reference
    assert (reference.method, reference.repeats) == (method, 1 if method == "Exact" else 30)
    assert (reference.error == 0) == (method == "Exact")


def test_continuous_nodes_and_objectives_of_ones_own_are_judged_by_a_long_run() -> None:
    logits = torch.zeros(2, requires_grad=True)

    def program(draw: c.Draw) -> Tensor:
        return (draw("y", c.Logistic(logits=logits, temperature=1.0)) * draw("b", c.Bernoulli(logits=logits))).sum(-1)

    def best(log_w: Tensor) -> Tensor:
        return log_w.amax(0)

    def method(objective: Callable[[Tensor], Tensor] | None) -> tuple[str, str]:
        estimators = {"score": c.Reinforce()}
        study = gradient_study(
            program, estimators=estimators, samples=2, repeats=2, objective=objective, parameters=[logits]
        )
        reference = study["score"].reference
        return reference.aim.title, reference.method

    assert method(None) == ("average", "RLOO")
    assert method(best) == ("best", "Reinforce")
