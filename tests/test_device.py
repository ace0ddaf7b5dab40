"""Everything runs where the parameters are, on the CPU and on CUDA where there is one."""

from typing import Any

import pytest
import torch

import concretely as c
from tests.cases import DEVICES

ESTIMATORS: dict[str, Any] = {
    "pathwise": (c.Pathwise(2 / 3, prior_temperature=1 / 2), 3),
    "gumbel-softmax": (c.GumbelSoftmax(0.5, kl="analytic"), 3),
    "straight-through": (c.StraightThrough(), 3),
    "straight-through-gumbel-softmax": (c.StraightThroughGumbelSoftmax(0.5), 3),
    "score": (c.Score(), 3),
    "rloo": (c.RLOO(), 3),
    "vimco": (c.VIMCO(), 3),
    "exact": (c.Exact(), 2),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("notation", ["2H-1H~5V", "4H:4-5V", "5V-2H~2H-5V"])
@pytest.mark.parametrize("name", [*ESTIMATORS, "nvil"])
def test_estimates_stay_on_the_device_of_the_model(name: str, notation: str, device: str) -> None:
    is_density = c.parse(notation).context is None
    model = (c.density if is_density else c.prediction)(notation).to(device).eval()
    bits = torch.randint(2, (6, 5), device=device)
    inputs = (bits,) if is_density else (bits, bits)
    estimator, samples = (c.NVIL(model, *inputs), 1) if name == "nvil" else ESTIMATORS[name]
    runs = []
    for _ in range(2):
        generator = torch.Generator(device).manual_seed(0)
        estimate = c.estimate(model, *inputs, estimator=estimator, samples=samples, generator=generator)
        gradients = torch.autograd.grad(estimate.loss, list(model.parameters()))
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert {estimate.loss.device.type, estimate.bound.device.type} == {device}
        runs.append(estimate.bound)
    assert name == "nvil" or torch.equal(*runs)


@pytest.mark.parametrize("device", DEVICES)
def test_likelihoods_and_samples_are_drawn_on_the_device_of_the_model(device: str) -> None:
    model = c.density("3H-2H:4~5V").to(device)
    generator = torch.Generator(device).manual_seed(0)
    x = model.sample(7, generator=generator)
    assert x.device.type == device
    result = c.evaluate(model, x, samples=100, generator=generator)
    assert result.log_likelihood.isfinite().all()
