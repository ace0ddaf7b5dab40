"""Everything runs where the parameters are, on the CPU and on CUDA where there is one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import concretely as c
from concretely.data import load_data
from concretely.functional.hypercube import corners, mean_corner, mean_corner_by_sums
from concretely.training.engine import Engine
from concretely.training.folder import restored
from concretely.training.loop import train
from concretely.training.recipe import resolve
from concretely.training.train_state import TrainState
from tests.cases import DEVICES

ELSEWHERE = torch.device("meta")
"""A device whose tensors mix with no others: as a default, it exposes each tensor that is made without a device."""
ESTIMATORS: dict[str, Any] = {
    "pathwise": (c.Pathwise(2 / 3, prior_temperature=1 / 2), 3),
    "gumbel-softmax": (c.GumbelSoftmax(0.5, kl="analytic"), 3),
    "straight-through": (c.StraightThrough(), 3),
    "straight-through-gumbel-softmax": (c.StraightThroughGumbelSoftmax(0.5), 3),
    "reinforce": (c.Reinforce(), 3),
    "rloo": (c.RLOO(), 3),
    "vimco": (c.VIMCO(), 3),
    "exact": (c.Exact(), 2),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("notation", ["2H-1H~5V", "4H:4-5V", "5V-2H~2H-5V"])
@pytest.mark.parametrize("name", [*ESTIMATORS, "nvil"])
def test_estimates_and_gradients_do_not_depend_on_the_default_device(name: str, notation: str, device: str) -> None:
    is_density = c.parse(notation).context is None
    model = (c.density if is_density else c.prediction)(notation).to(device).eval()
    bits = torch.randint(2, (6, 5), device=device)
    inputs = (bits,) if is_density else (bits, bits)
    estimator, samples = (c.NVIL(model, *inputs).eval(), 1) if name == "nvil" else ESTIMATORS[name]

    def result() -> tuple[Tensor, ...]:
        generator = torch.Generator(device).manual_seed(0)
        estimate = c.estimate(model, *inputs, estimator=estimator, samples=samples, generator=generator)
        return estimate.bound, *torch.autograd.grad(estimate.loss, list(model.parameters()))

    expected = result()
    with ELSEWHERE:
        found = result()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_likelihoods_and_samples_do_not_depend_on_the_default_device(device: str) -> None:
    model = c.density("3H-2H:4~5V").to(device)

    def result() -> tuple[Tensor, Tensor]:
        generator = torch.Generator(device).manual_seed(0)
        x = model.sample(7, generator=generator)
        return x, c.evaluate(model, x, samples=100, generator=generator).log_likelihood

    expected = result()
    with ELSEWHERE:
        found = result()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("estimator", ["concrete", "vimco", "nvil"])
def test_runs_train_stop_and_go_on_where_they_are_told_to(estimator: str, device: str, tmp_path: Path) -> None:
    recipe = resolve(notation="6H-4H~64V", estimator=estimator, steps=30, validate=15, lr=1e-2, weight_decay=1)
    data = load_data("digits")
    whole = train(recipe, tmp_path / "whole", data=data, device=device)
    asked = iter(step == 17 for step in range(30))
    half = train(recipe, tmp_path / "parts", data=data, device=device, stop=lambda: next(asked))
    assert (half.finished, half.step) == (False, 18)
    resumed = train(recipe, tmp_path / "parts", data=data, device=device)
    assert resumed.finished
    for run, again in zip(whole.rows, resumed.rows, strict=True):
        assert run.objective == pytest.approx(again.objective, rel=1e-4)
    parameters = restored(tmp_path / "whole", device=device)[1].state_dict()
    for name, tensor in restored(tmp_path / "parts", device=device)[1].state_dict().items():
        assert tensor.device.type == device
        torch.testing.assert_close(tensor, parameters[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_no_step_is_taken_from_a_fault_on(device: str) -> None:
    state = TrainState.of(resolve(notation="4H-3H-64V", steps=30, lr=1e-2), load_data("digits"), device=device)
    engine = Engine([state])
    engine.advance(3)
    weight = state.model.get_parameter("q.layers.1.network.0.weight")
    before = {name: tensor.clone() for name, tensor in state.model.named_parameters()}
    with torch.no_grad():
        weight[0, 0] = float("nan")
    engine.advance(9)
    assert state.first_nonfinite() == (3, "q.layers.1.network.0")
    for name, tensor in state.model.named_parameters():
        assert tensor is weight or torch.equal(tensor, before[name])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_means_of_corners_are_precise_whatever_products_are(n: int, device: str) -> None:
    weight = torch.randn(50, n, device=device).softmax(-1)
    truth = weight.double() @ corners(n, dtype=torch.float64, device=torch.device(device))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        found = mean_corner(weight), mean_corner_by_sums(weight)
    finally:
        torch.set_float32_matmul_precision(before)
    for each in found:
        torch.testing.assert_close(each.double(), truth, rtol=0, atol=n * 2.0**-24)
