"""The kernel of concrete dropout against its definition, on the same noise."""

from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from concretely.functional import dropout
from concretely.functional.integral import mean_sigmoid
from concretely.functional.key import Key
from concretely.functional.noise import Keys
from concretely.functional.philox import fractions
from concretely.layer import ConcreteDropout
from tests.kernel import DEVICE, DTYPES, assert_precise, fast, kernel

KEY = (2**62 + 5, 2**62 + 8)
TEMPERATURES = pytest.mark.parametrize("temperature", [0.1, 0.67, 1.0, 3.0])
LOGITS = pytest.mark.parametrize("logit", [-8.0, -2.0, 0.3, 8.0])


def noise(shape: torch.Size) -> Tensor:
    """The noise of the key, in float64."""
    signed = fractions(torch.tensor([KEY], device=DEVICE), shape.numel(), torch.float32, True).double()
    return torch.logit(signed.abs()).copysign(signed).view(shape)


def draw(x: Tensor, logit: Tensor, temperature: float, key: Key = KEY) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernel draws."""
    return fast("dropout").draw(x, logit, key, temperature, *dropout._stretch_and_scale(temperature))


@kernel
@TEMPERATURES
@LOGITS
def test_the_kernel_integrates_the_mean_of_the_mask_and_its_derivative(temperature: float, logit: float) -> None:
    moments = draw(torch.ones(3, device=DEVICE), torch.tensor([logit], device=DEVICE), temperature)[2]
    odds = torch.tensor(-logit, dtype=torch.float64, requires_grad=True)
    mean = mean_sigmoid(torch.tensor(1 / temperature, dtype=torch.float64), odds / temperature)
    (slope,) = torch.autograd.grad(mean.log(), odds)
    expected = torch.stack([mean.detach(), slope]).to(DEVICE)
    torch.testing.assert_close(moments.double(), expected, rtol=3e-6, atol=1e-10)


@kernel
@DTYPES
@pytest.mark.parametrize("temperature", [0.1, 1.5])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (2, 5, 33), (3, 1100), (1, 17_000)], ids=str)
def test_the_kernel_computes_its_definition(shape: tuple[int, ...], temperature: float, dtype: torch.dtype) -> None:
    kernels = fast("dropout")
    x, by = (torch.randn(shape).to(DEVICE, dtype) for _ in range(2))
    logit, drawn = torch.tensor([-1.3], device=DEVICE), noise(x.shape)

    def results(wide: torch.dtype) -> list[Tensor]:
        """Outputs and gradients by the definition, with a logit in a dtype."""
        own = [x.to(wide if wide == torch.float64 else dtype).requires_grad_(), logit.to(wide).requires_grad_()]
        out = dropout.defined(*own, drawn.to(wide), temperature)
        return [out.detach(), *torch.autograd.grad(out, own, by.to(out.dtype))]

    out, shares, moments = draw(x, logit, temperature)
    assert torch.equal(out, draw(x, logit, temperature, torch.tensor([KEY], device=DEVICE))[0])
    by_x, by_logit = kernels.pull(by, x, shares, moments, temperature, (True, True))
    # a node is rounded in both, and the mean of masks by either integral
    mean, eps = moments[0].item(), torch.finfo(torch.float32).eps
    off = 2 * eps * (1.3 + drawn.abs()) / temperature / 4 / mean + 2 * eps / mean
    whole = (off / temperature * (x * by).double().abs()).sum().view(1) + 8 * eps * (x * by).double().abs().sum() / mean
    drift = off * x.abs(), off * by.abs(), whole
    for one, other, true, allowed in zip(
        (out, by_x, by_logit), results(torch.float32), results(torch.float64), drift, strict=True
    ):
        assert_precise(one, other, true, allowed)
    assert kernels.pull(by, x, shares, moments, temperature, (True, False))[1] is None
    assert kernels.pull(by, x, shares, moments, temperature, (False, True))[0] is None


@kernel
def test_gradients_are_those_of_the_definition_and_can_be_differentiated() -> None:
    fast("dropout")
    x, by = (torch.randn(7, 3, device=DEVICE, requires_grad=True) for _ in range(2))
    logit = torch.tensor([-0.4], device=DEVICE, requires_grad=True)

    def gradients(value: Tensor) -> list[Tensor]:
        slopes = torch.autograd.grad(value, (x, logit), by, create_graph=True)
        return [*slopes, *torch.autograd.grad(sum(slope.square().sum() for slope in slopes), (x, logit, by))]

    found = dropout._DROP_BY_KERNEL(x, logit, KEY, 0.7)
    truth = dropout.defined(x, logit, noise(x.shape).float(), 0.7)
    torch.testing.assert_close(found, truth)
    once = torch.autograd.grad(found, (x, logit), by, retain_graph=True)
    torch.testing.assert_close(once, torch.autograd.grad(truth, (x, logit), by, retain_graph=True))
    torch.testing.assert_close(gradients(found), gradients(truth))


@kernel
def test_the_layer_drops_by_the_kernel_what_it_would_drop_without_it() -> None:
    fast("dropout")
    layer = ConcreteDropout(nn.Linear(5, 5, bias=False), points=10, probability=0.3).to(DEVICE)
    layer.layer.weight.data = torch.eye(5, device=DEVICE)
    keys, x = torch.tensor([[3, 4]], device=DEVICE), torch.randn(30, 5, device=DEVICE)
    with mock.patch.object(dropout, "runs_kernel", return_value=True), mock.patch.object(Tensor, "is_cuda", True):
        found = dropout.dropped_by_kernel(x, layer.logit, 0.1, Keys(keys))
    drawn = dropout.logistic.noise_of_key(keys, 1, x.numel()).view(x.shape)
    torch.testing.assert_close(found, dropout.defined(x, layer.logit, drawn, 0.1))
