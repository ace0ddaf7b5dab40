"""The kernel of gates against its definition, on the same noise."""

from unittest import mock

import pytest
import torch
from torch import Tensor

from concretely.functional import gate, hard_concrete
from concretely.functional.noise import Keys, fractions
from concretely.layer import Gate
from tests.kernel import DEVICE, DTYPES, assert_precise, fast, kernel

SHAPES = [((1,), (1,)), ((7,), (3,)), ((3, 5), (2, 7)), ((40,), (67,)), ((600,), (3,))]
"""Shapes of points and of gates: one, odd ones, several axes, quarters that end within rows, several parts of a sum."""
STRETCHES = pytest.mark.parametrize("stretch", [(-0.1, 1.1), (-0.5, 1.01)])
KEY = (2**62 + 5, 2**62 + 8)


def given(points: tuple[int, ...], units: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """Inputs, logits and the gradient of the outputs."""
    shapes = ((*points, *units), units, (*points, *units))
    return [(2 * torch.randn(shape)).to(DEVICE, dtype) for shape in shapes]


def noise(shape: torch.Size) -> Tensor:
    """The noise of the key, in float64."""
    signed = fractions(torch.tensor([KEY], device=DEVICE), shape.numel(), torch.float32, True).double()
    return torch.logit(signed.abs()).copysign(signed).view(shape)


@kernel
@STRETCHES
@DTYPES
@pytest.mark.parametrize("key", ["numbers", "tensor"])
@pytest.mark.parametrize(("points", "units"), SHAPES)
def test_the_kernel_computes_its_definition(
    points: tuple[int, ...], units: tuple[int, ...], key: str, dtype: torch.dtype, stretch: tuple[float, float]
) -> None:
    kernels, (x, logits, by) = fast("gate"), given(points, units, dtype)
    drawn = noise(x.shape)

    def results(wide: torch.dtype) -> list[Tensor]:
        """Outputs and gradients by the definition, with logits in a dtype."""
        own = [x.to(wide if wide == torch.float64 else dtype), logits.to(wide)]
        for each in own:
            each.requires_grad_()
        out = gate.defined(*own, drawn.to(wide), 0.7, stretch)
        return [out.detach(), *torch.autograd.grad(out, own, by.to(out.dtype))]

    of_key = torch.tensor([KEY], device=DEVICE) if key == "tensor" else KEY
    out, gates = kernels.draw(x, logits, of_key, 0.7, stretch, hard_concrete.ends(stretch))
    by_x, by_logits = kernels.pull(by, x, gates, logits.shape, 0.7, stretch, (True, True))
    defined, truth = results(torch.float32), results(torch.float64)
    node = (logits.double() + drawn) / 0.7
    # a node is rounded in both, and neither the gate nor its derivative has a slope above that of the stretched sigmoid
    off = (
        2 * torch.finfo(torch.float32).eps * (logits.double().abs() + drawn.abs()) / 0.7 * (stretch[1] - stretch[0]) / 4
    )
    drift = (off * x.abs(), off * by.abs(), (off / 0.7 * (x * by).double().abs()).view(-1, *units).sum(0))
    for one, other, true, allowed in zip((out, by_x, by_logits), defined, truth, drift, strict=True):
        assert_precise(one, other, true, allowed)
    start, end = hard_concrete.ends(stretch)
    near = ((node - start).abs() < 1e-5) | ((node - end).abs() < 1e-5)
    assert torch.equal((gates == 0) | near, (node <= start) | near)
    assert torch.equal((gates == 1) | near, (node >= end) | near)
    for needs in ((True, False), (False, True)):
        found = kernels.pull(by, x, gates, logits.shape, 0.7, stretch, needs)
        assert [each is not None for each in found] == [*needs]
        assert all(
            each is None or torch.equal(each, whole) for each, whole in zip(found, (by_x, by_logits), strict=True)
        )


@kernel
def test_gradients_are_those_of_the_definition_and_can_be_differentiated() -> None:
    fast("gate")
    x, logits, by = (each.requires_grad_() for each in given((7,), (3,), torch.float32))

    def gradients(value: Tensor) -> list[Tensor]:
        slopes = torch.autograd.grad(value, (x, logits), by, create_graph=True)
        return [*slopes, *torch.autograd.grad(sum(slope.square().sum() for slope in slopes), (x, logits, by))]

    found = gate._GATED_BY_KERNEL(x, logits, KEY, 0.7, (-0.1, 1.1))
    truth = gate.defined(x, logits, noise(x.shape).float(), 0.7, (-0.1, 1.1))
    torch.testing.assert_close(found, truth)
    once = torch.autograd.grad(found, (x, logits), by, retain_graph=True)
    torch.testing.assert_close(once, torch.autograd.grad(truth, (x, logits), by, retain_graph=True))
    torch.testing.assert_close(gradients(found), gradients(truth))


@kernel
def test_samples_are_the_draws_of_the_kernel_above_one_half() -> None:
    fast("gate")
    layer, keys = Gate(5).to(DEVICE), torch.tensor([[3, 4]], device=DEVICE)
    layer.logits.data.normal_()
    ones = torch.ones(30, 5, device=DEVICE)
    with mock.patch.object(gate, "runs_kernel", return_value=True), mock.patch.object(Tensor, "is_cpu", False):
        soft = layer(ones, generator=Keys(keys))
    bit = layer.logits + noise_of(keys, ones.shape) >= 0
    assert torch.equal(soft >= 0.5, bit)


def noise_of(keys: Tensor, shape: torch.Size) -> Tensor:
    """The noise of a key."""
    return gate.logistic.noise_of_key(keys, 1, shape.numel()).view(shape)
