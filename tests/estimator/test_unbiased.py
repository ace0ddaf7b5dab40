"""Unbiased estimators: over all ways that the samples can fall, the expected gradient is the exact one."""

import pytest
import torch
from torch import nn

import concretely as c
from tests.estimator.expectation import assert_same, average, bound, expected_gradient, forced, truth, ways
from tests.estimator.target import DENSITIES, FOUR_STATES, PROGRAM, TARGETS, TWO_LAYERS, Target, each, randomised


@each(*TARGETS)
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_score_function_is_unbiased_for_the_multi_sample_bound(target: Target, samples: int) -> None:
    module = target.made()
    actual = expected_gradient(target, module, c.Reinforce(), samples=samples, objective=c.bound)
    assert_same(actual, truth(target, module, samples=samples, objective=bound)[1])


@each(*TARGETS)
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_score_function_is_unbiased_for_the_average(target: Target, samples: int) -> None:
    module = target.made()
    actual = expected_gradient(target, module, c.Reinforce(), samples=samples, objective=c.average)
    assert_same(actual, truth(target, module, samples=1, objective=average)[1])


@each(*TARGETS)
@pytest.mark.parametrize("samples", [2, 3])
def test_leave_one_out_is_unbiased_for_the_average(target: Target, samples: int) -> None:
    module = target.made()
    actual = expected_gradient(target, module, c.RLOO(), samples=samples)
    assert_same(actual, truth(target, module, samples=1, objective=average)[1])


@each(*DENSITIES)
def test_leave_one_out_teaches_q_nothing_if_all_samples_agree(target: Target) -> None:
    # the direct gradient of log q, whose mean is zero, is left out and adds no noise
    module = target.made()
    state, *_ = target.listed(module)[0]
    with forced({name: value.expand(3, 1, *value.shape) for name, value in state.values.items()}):
        loss = c.estimate(module, target.inputs[0][:1], estimator=c.RLOO(), samples=3).loss
    gradients = torch.autograd.grad(loss, list(module.q.parameters()), allow_unused=True, materialize_grads=True)
    assert max(gradient.abs().max() for gradient in gradients) < 1e-12


@each(*TARGETS)
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_nvil_with_any_baseline_is_unbiased_for_the_average(target: Target, samples: int) -> None:
    module = target.made()
    estimator = randomised(c.NVIL(module, *target.inputs, width=4, centre=False, scale=False), seed=1)
    actual = expected_gradient(target, module, estimator, samples=samples)
    assert_same(actual, truth(target, module, samples=1, objective=average)[1])


@each(*TARGETS)
@pytest.mark.parametrize("centre", [False, True])
def test_nvil_with_a_frozen_running_mean_is_unbiased(target: Target, centre: bool) -> None:
    module = target.made()
    estimator = randomised(c.NVIL(module, *target.inputs, baseline=False, centre=centre, scale=False), seed=1)
    actual = expected_gradient(target, module, estimator, samples=2)
    assert_same(actual, truth(target, module, samples=1, objective=average)[1])


@each(*TARGETS)
@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize("mean", ["geometric", "arithmetic"])
def test_vimco_is_unbiased_for_the_multi_sample_bound(target: Target, samples: int, mean: str) -> None:
    module = target.made()
    actual = expected_gradient(target, module, c.VIMCO(mean), samples=samples, objective=c.bound)
    assert_same(actual, truth(target, module, samples=samples, objective=bound)[1])


@pytest.mark.parametrize("estimator", [c.Reinforce(), c.RLOO(), c.VIMCO(), c.VIMCO("arithmetic"), None])
@each(TWO_LAYERS, FOUR_STATES, PROGRAM)
def test_gradient_of_a_batch_is_the_mean_of_those_of_its_points(target: Target, estimator: c.Estimator | None) -> None:
    module = target.made()
    if estimator is None:
        estimator = randomised(c.NVIL(module, *target.inputs, width=4), seed=1)
    objective = None if getattr(estimator, "averages", False) else c.bound
    chosen = [ways(states, 2)[0] for states in target.listed(module)]
    # point 0 draws tuple 3, point 1 tuple 9
    values = [{name: value[row] for name, value in entry.items()} for entry, row in zip(chosen, (3, 9), strict=True)]
    together = {name: torch.cat([entry[name] for entry in values], 1) for name in values[0]}

    def gradient(values: dict[str, torch.Tensor], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        trained = [*module.parameters(), *(estimator.parameters() if isinstance(estimator, nn.Module) else ())]
        with forced(values):
            loss = c.estimate(module, *inputs, estimator=estimator, samples=2, objective=objective).loss
        return torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)

    alone = [gradient(values[i], *(entry[i : i + 1] for entry in target.inputs)) for i in range(2)]
    batch = gradient(together, *target.inputs)
    assert max(entry.abs().max() for entry in batch) > 1e-3
    torch.testing.assert_close(batch, tuple((a + b) / 2 for a, b in zip(*alone, strict=True)), rtol=1e-10, atol=1e-10)
