"""Losses work under torch.compile, vmap over stacked parameters, and autocast."""

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

import concretely as c
from tests.budget import assert_likely
from tests.estimator.expectation import Loss, forced_noise

X = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
ESTIMATORS = {"pathwise": c.Pathwise(), "density": c.Pathwise(2 / 3, prior_temperature=1 / 2), "vimco": c.VIMCO()}
each_estimator = pytest.mark.parametrize("estimator", list(ESTIMATORS.values()), ids=list(ESTIMATORS))


def model_of(seed: int, notation: str = "2H~3V") -> c.Model:
    """A model with weights and biases at random."""
    model = c.density(notation)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.unchecked
@each_estimator
def test_compiled_loss_and_gradient_have_the_law_of_the_plain_ones(estimator: c.Estimator) -> None:
    model = model_of(0)
    loss = Loss(model, estimator, samples=5, objective=c.bound)
    parameters = list(model.parameters())

    def drawn(loss: Callable[[Tensor], Tensor], times: int = 60) -> Tensor:
        rows = []
        for _ in range(times):
            value = loss(X)
            gradient = torch.autograd.grad(value, parameters)
            rows.append(torch.cat([value.detach()[None], *(entry.flatten() for entry in gradient)]))
        return torch.stack(rows)

    torch.manual_seed(1)
    compiled = drawn(torch.compile(loss, fullgraph=True, backend="aot_eager"))
    torch.manual_seed(2)
    plain = drawn(loss)
    assert compiled.isfinite().all()
    assert len(compiled[:, 0].unique()) > 50  # the noise is new at every call
    difference = compiled.double().mean(0) - plain.double().mean(0)
    deviation = ((compiled.double().var(0) + plain.double().var(0)) / len(plain)).sqrt()
    p_value = 2 * stats.norm.sf((difference.abs() / deviation).max().item())
    assert_likely(min(1.0, p_value * len(difference)), "of a compiled mean against the plain one")
    assert (deviation[0] * math.sqrt(len(plain))).item() > 1e-3


@pytest.mark.unchecked
@pytest.mark.parametrize("notation", ["2H~3V", "4H:4-3V"])
def test_a_compiled_enumeration_is_the_plain_one(notation: str) -> None:
    model = model_of(0, notation)
    loss, parameters = Loss(model, c.Exact(), samples=2, objective=c.bound), list(model.parameters())
    values = [function(X) for function in (torch.compile(loss, fullgraph=True, backend="aot_eager"), loss)]
    slopes = [torch.autograd.grad(value, parameters, allow_unused=True) for value in values]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*slopes)


@each_estimator
@pytest.mark.parametrize("notation", ["2H~3V", "2H~1H-3V", "4H:4-3V"])
def test_ensemble_is_an_axis_of_the_parameters(estimator: c.Estimator, notation: str) -> None:
    members = [Loss(model_of(seed, notation).eval(), estimator, samples=4, objective=None) for seed in range(3)]
    parameters, buffers = stack_module_state(members)

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(members[0], (parameters, buffers), (X,))

    gradient, value = vmap(grad_and_value(loss), randomness="different")(parameters, buffers)
    assert value.shape == (3,)
    assert value.isfinite().all()
    for name, entry in gradient.items():
        assert entry.shape == parameters[name].shape
        assert entry.isfinite().all()
        assert all(row.abs().max() > 0 for row in entry)


def test_member_of_an_ensemble_draws_noise_of_its_own_if_asked() -> None:
    member = Loss(model_of(0).eval(), c.Pathwise(2 / 3), samples=4, objective=None)
    parameters, _ = stack_module_state([member] * 5)
    for randomness, distinct in (("different", 5), ("same", 1)):
        value = vmap(lambda each: functional_call(member, each, (X,)), randomness=randomness)(parameters)
        assert len(value.unique()) == distinct


@pytest.mark.parametrize("notation", ["2H~3V", "2H~2H-3V"])
@pytest.mark.parametrize("estimator", [*ESTIMATORS.values(), c.GumbelSoftmax(0.5), c.Reinforce(), c.RLOO()])
def test_member_of_an_ensemble_is_what_it_is_alone(estimator: c.Estimator, notation: str) -> None:
    members = [Loss(model_of(seed, notation).eval(), estimator, samples=4, objective=None) for seed in range(3)]
    parameters, buffers = stack_module_state(members)
    noise = torch.randn(3, 4, len(X), 2)

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], noise: Tensor) -> Tensor:
        with forced_noise(noise):
            return functional_call(members[0], (parameters, buffers), (X,))

    gradient, value = vmap(grad_and_value(loss))(parameters, buffers, noise)
    for row, member in enumerate(members):
        with forced_noise(noise[row]):
            alone = member(X)
        torch.testing.assert_close(value[row], alone.detach())
        for name, entry in zip(parameters, torch.autograd.grad(alone, list(member.parameters())), strict=True):
            torch.testing.assert_close(gradient[name][row], entry, rtol=1e-4, atol=1e-5)


@each_estimator
@pytest.mark.parametrize("notation", ["2H~3V", "2H~1H-3V", "4H:4-3V"])
def test_autocast_leaves_loss_and_gradient_near_those_of_float32(estimator: c.Estimator, notation: str) -> None:
    model = model_of(0, notation)
    results = []
    for enabled in (False, True):
        generator = torch.Generator().manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = c.estimate(model.eval(), X, estimator=estimator, samples=50, generator=generator).loss
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        results.append(torch.cat([loss.detach().float()[None], *(entry.flatten() for entry in gradient)]))
    plain, cast = results
    assert cast.isfinite().all()
    assert (cast - plain).norm() < 0.1 * plain.norm()
