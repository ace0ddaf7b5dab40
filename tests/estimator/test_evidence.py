"""Estimates come with their evidence, and one estimator takes the place of another by one argument."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import concretely as c
from tests.estimator.expectation import forced
from tests.estimator.target import (
    FOUR_STATES,
    ONE_BETWEEN,
    ONE_LAYER,
    PROGRAM,
    TARGETS,
    TWO_LAYERS,
    Target,
    each,
    one_layer,
)

SAMPLES = 3
SCORED: dict[str, Callable[..., c.Estimator]] = {
    "reinforce": lambda *_: c.Reinforce(),
    "rloo": lambda *_: c.RLOO(),
    "nvil": c.NVIL,
    "vimco": lambda *_: c.VIMCO(),
    "vimco-arithmetic": lambda *_: c.VIMCO("arithmetic"),
}
PATHWISE: dict[str, Callable[..., c.Estimator]] = {
    "pathwise": lambda *_: c.Pathwise(2 / 3, prior_temperature=1 / 2),
    "pathwise-mass": lambda *_: c.Pathwise(2 / 3, kl="mass"),
    "pathwise-analytic": lambda *_: c.Pathwise(2 / 3, kl="analytic"),
    "gumbel-softmax": lambda *_: c.GumbelSoftmax(2 / 3),
    "gumbel-softmax-analytic": lambda *_: c.GumbelSoftmax(2 / 3, kl="analytic"),
    "straight-through": lambda *_: c.StraightThrough(),
    "straight-through-analytic": lambda *_: c.StraightThrough(kl="analytic"),
    "straight-through-gumbel-softmax": lambda *_: c.StraightThroughGumbelSoftmax(2 / 3),
    "straight-through-gumbel-softmax-analytic": lambda *_: c.StraightThroughGumbelSoftmax(2 / 3, kl="analytic"),
}
ALL = {**SCORED, **PATHWISE, "exact": lambda *_: c.Exact()}


def each_of(builds: dict[str, Callable[..., c.Estimator]]) -> pytest.MarkDecorator:
    """Run a law over estimators."""
    return pytest.mark.parametrize("build", list(builds.values()), ids=list(builds))


def estimated(target: Target, module: nn.Module, estimator: c.Estimator, **options: Any) -> c.Estimate:
    """An estimate; of a program, whose cost then counts as minus a log-weight, the bound that VIMCO asks for."""
    if isinstance(estimator, c.VIMCO):
        options["objective"] = c.bound
    return c.estimate(module, *target.inputs, estimator=estimator, samples=SAMPLES, **options)


def nodes(target: Target) -> dict[str, tuple[int, ...]]:
    """The nodes of a target, with the shapes of their values for one data point."""
    state = next(target.states(target.made(), *(entry[0] for entry in target.inputs)))
    return {name: tuple(value.shape) for name, value in state.values.items()}


@each(*TARGETS)
@each_of(ALL)
def test_loss_is_minus_the_mean_objective_and_reaches_all_parameters(
    target: Target, build: Callable[..., c.Estimator]
) -> None:
    module = target.made()
    estimate = estimated(target, module, build(module, *target.inputs))
    assert estimate.loss.shape == ()
    assert estimate.bound.shape == (2,)
    assert estimate.loss.item() == pytest.approx(-estimate.bound.mean().item(), rel=1e-12)
    assert not estimate.bound.requires_grad
    assert not estimate.log_w.requires_grad
    assert bool(estimate.signal) == (build in SCORED.values())
    gradients = torch.autograd.grad(estimate.loss, list(module.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert max(gradient.abs().max() for gradient in gradients) > 0


@each(*TARGETS)
@each_of({**SCORED, **PATHWISE})
def test_objective_is_that_of_the_log_weights(target: Target, build: Callable[..., c.Estimator]) -> None:
    module = target.made()
    estimator = build(module, *target.inputs)
    estimate = estimated(target, module, estimator)
    assert estimate.log_w.shape == (SAMPLES, 2)
    averages = isinstance(estimator, (c.RLOO, c.NVIL)) or not (target.is_model or isinstance(estimator, c.VIMCO))
    objective = c.average if averages else c.bound
    torch.testing.assert_close(estimate.bound, objective(estimate.log_w))
    weights = estimate.log_w.softmax(0)
    torch.testing.assert_close(estimate.effective_sample_size, 1 / weights.square().sum(0))


@each(*TARGETS)
@each_of(SCORED)
def test_every_node_has_a_signal_for_each_sample_and_data_point(
    target: Target, build: Callable[..., c.Estimator]
) -> None:
    module = target.made()
    signal = estimated(target, module, build(module, *target.inputs)).signal
    assert list(signal) == list(nodes(target))
    for entry in signal.values():
        assert entry.shape == (SAMPLES, 2)
        assert not entry.requires_grad


@each(ONE_LAYER, FOUR_STATES, ONE_BETWEEN, PROGRAM)
@each_of({**SCORED, **PATHWISE})
def test_generator_repeats_an_estimate(target: Target, build: Callable[..., c.Estimator]) -> None:
    module = target.made()
    estimator = build(module, *target.inputs)
    if isinstance(estimator, nn.Module):
        estimator.eval()

    def result(seed: int) -> tuple[Tensor, ...]:
        estimate = estimated(target, module, estimator, generator=torch.Generator().manual_seed(seed))
        return (estimate.log_w, *torch.autograd.grad(estimate.loss, list(module.parameters())))

    first, again, others = result(0), result(0), [result(seed)[0] for seed in range(1, 6)]
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    assert any(not torch.equal(other, first[0]) for other in others)


@each(*TARGETS)
def test_score_function_estimators_draw_the_same_from_the_same_seed(target: Target) -> None:
    module = target.made()
    drawn = [
        estimated(target, module, build(module, *target.inputs), generator=torch.Generator().manual_seed(3)).log_w
        for build in SCORED.values()
    ]
    for log_w in drawn[1:]:
        torch.testing.assert_close(log_w, drawn[0], rtol=0, atol=0)


@each(*TARGETS)
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_log_weights_are_those_of_the_states_drawn(target: Target, samples: int) -> None:
    module = target.made()
    listed = target.listed(module)
    chosen = torch.randint(len(listed[0]), (samples, 2))
    states = [[listed[point][index] for point, index in enumerate(row)] for row in chosen.tolist()]
    values = {
        name: torch.stack([torch.stack([state.values[name] for state in row]) for row in states])
        for name in nodes(target)
    }
    expected = torch.stack([torch.stack([state.log_w for state in row]) for row in states]).detach()
    with forced(values):
        actual = c.estimate(module, *target.inputs, estimator=c.Reinforce(), samples=samples).log_w
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("samples", [1, 2, 3, 5])
@pytest.mark.parametrize("kl", ["mass", "analytic"])
@each(ONE_LAYER, TWO_LAYERS, FOUR_STATES)
def test_log_weight_of_a_straight_through_draw_is_that_of_its_state_or_has_the_divergence_for_its_latents(
    target: Target, kl: str, samples: int
) -> None:
    # as many data points as units: axes that are alike must not be taken for one another
    units = 2
    module = target.made()
    x = target.inputs[0][:units]
    generator = torch.Generator().manual_seed(samples)
    estimate = c.estimate(module, x, estimator=c.StraightThrough(kl), samples=samples, generator=generator)
    q = c.run(module.q, x, mode=c.mode.Discrete(), samples=samples, generator=generator.manual_seed(samples))
    p = c.run(module.p, x, mode=c.mode.Replay(q))
    expected = torch.zeros(samples, len(x), dtype=x.dtype)
    for point, states in enumerate(target.listed(module)[:units]):
        for row in range(samples):
            (state,) = (
                state
                for state in states
                if all(torch.equal(q[name].value[row, point], value) for name, value in state.values.items())
            )
            if kl == "mass":
                expected[row, point] = state.log_w.detach()
                continue
            expected[row, point] = state.log_p["x"].detach()
            for name in state.values:
                both = q.rows.aligned(q[name].distribution, p[name].distribution, axes=q[name].axes)
                divergence = q[name].total(torch.distributions.kl_divergence(*both))
                expected[row, point] -= divergence[row, point].detach()
    torch.testing.assert_close(estimate.log_w, expected)


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_what_is_observed_apart_from_the_latents_counts_once_for_each_sample(samples: int) -> None:
    model, x = ONE_LAYER.made(), ONE_LAYER.inputs[0]
    rate = torch.randn(3, dtype=x.dtype)

    def p(draw: c.Draw, x: Tensor) -> None:
        draw("y", c.Bernoulli(logits=rate), observed=x)
        model.p(draw, x)

    both = c.Model(p, model.q)
    for points in (1, 2):
        generator = torch.Generator().manual_seed(0)
        alone = c.estimate(model, x[:points], estimator=c.Reinforce(), samples=samples, generator=generator).log_w
        generator.manual_seed(0)
        actual = c.estimate(both, x[:points], estimator=c.Reinforce(), samples=samples, generator=generator).log_w
        torch.testing.assert_close(actual, alone + c.Bernoulli(logits=rate).log_prob(x[:points]).sum(-1))


def test_sample_axis_is_told_from_a_batch_of_the_same_length() -> None:
    # of an independent root nothing but the structure of the graph tells whether its axis counts samples
    target = Target("3 points", ONE_LAYER.build, (torch.eye(3, dtype=torch.float64),), one_layer)
    program, x = PROGRAM.made(), target.inputs[0]
    estimate = c.estimate(program, x, estimator=c.Reinforce(), samples=3)
    assert estimate.log_w.shape == (3, 3)
    trace = c.run(program, x, mode=c.mode.Discrete(), samples=3)
    assert trace["gate"].value.shape == (3, 3, 2)
    assert trace["code"].value.shape == (3, 3, 3)
