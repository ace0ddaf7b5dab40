"""The log likelihood of bits is that of the library, on either path, batched and compiled."""

import math

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from concretely import Bernoulli
from concretely.functional.bernoulli import log_likelihood as summed_log_likelihood
from tests.cases import LOGITS
from tests.kernel import DEVICE, DTYPES, PATHS, TINY, assert_precise, kernel, on, opcheck, sizes

SIZES = sizes((1, 1, 1, 1), (3, 2, 3, 7), (1, 5, 2, 784), (2, 1, 3, 300), (1, 2, 1, 2100), (2, 70, 1, 3))
"""Members, samples, data points and units."""


def given(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits and bits."""
    members, _, batch, units = shape
    return (4 * torch.randn(shape)).to(DEVICE, dtype), (torch.rand(members, batch, units) < 0.3).to(DEVICE)


def true_log_likelihood(logits: Tensor, bits: Tensor) -> Tensor:
    """The log likelihood by the variable of the library in float64."""
    return Bernoulli(logits=logits.double()).log_prob(bits.double().unsqueeze(1).expand_as(logits)).sum(-1)


def log_likelihood(logits: Tensor, bits: Tensor) -> Tensor:
    """The log likelihood of every member."""
    return summed_log_likelihood(logits, bits, 1, 1)


def both(path: str, logits: Tensor, bits: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    """The log likelihood, and the gradient of the logits."""
    leaf = logits.detach().requires_grad_()
    with on(path, "likelihood"):
        found = log_likelihood(leaf, bits)
        return found.detach(), torch.autograd.grad(found, leaf, by)[0]


@PATHS
@pytest.mark.parametrize("units", [1, 40])
def test_one_size_of_logits_is_as_precise_as_another(units: int, path: str) -> None:
    logits = torch.tensor(LOGITS, device=DEVICE).view(1, -1, 1, 1).expand(1, -1, 2, units)
    bits = torch.tensor([False, True], device=DEVICE).view(1, 2, 1).expand(1, 2, units)
    found, by_logits = both(path, logits, bits, torch.ones(1, len(LOGITS), 2, device=DEVICE))
    torch.testing.assert_close(found.double(), true_log_likelihood(logits, bits), rtol=1e-5, atol=TINY)
    sign = (2 * bits.double() - 1).unsqueeze(1)
    slope = sign * torch.sigmoid(-sign * logits.double())
    torch.testing.assert_close(by_logits.double(), slope, rtol=1e-5, atol=TINY)


@PATHS
def test_infinite_logits_are_certain(path: str) -> None:
    logits = torch.tensor([math.inf, -math.inf, 1.0], device=DEVICE).view(1, 1, 1, 3)
    bits = torch.tensor([[[1.0, 0.0, 1.0]]], device=DEVICE)
    with on(path, "likelihood"):
        found, nothing = (log_likelihood(each, bits) for each in (torch.cat([logits, -logits], 1), logits * math.nan))
    torch.testing.assert_close(found.flatten().tolist(), [-math.log1p(math.exp(-1)), -math.inf])
    assert nothing.isnan().all()


@kernel
@SIZES
def test_kernel_is_its_definition(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    logits, bits = given(shape, dtype)
    wide = logits.double().requires_grad_()
    truth = true_log_likelihood(wide, bits)
    by = torch.randn(shape[:-1], device=DEVICE)
    for cast in (bits, bits.float(), bits.byte()):
        found, defined = (both(path, logits, cast, by)[0] for path in ("fast", "plain"))
        assert_precise(found, defined, truth.detach())
    for one in (by, by[:, :1].expand_as(by), by.transpose(0, 1).contiguous().transpose(0, 1)):
        (true,) = torch.autograd.grad((one * truth).sum(), wide, retain_graph=True)
        assert_precise(*(both(path, logits, bits, one)[1] for path in ("fast", "plain")), true)


@PATHS
@pytest.mark.parametrize("shape", [(2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)], ids=str)
def test_nothing_has_a_likelihood(shape: tuple[int, ...], path: str) -> None:
    logits, bits = given(shape)
    nothing = torch.zeros(shape[:-1], device=DEVICE)
    found, by_logits = both(path, logits, bits, nothing)
    assert torch.equal(found, nothing)
    assert by_logits.shape == shape


@PATHS
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_any_number_of_last_axes_is_summed(axes: int, path: str) -> None:
    logits, bits = torch.randn(5, 2, 3, 4, 7, device=DEVICE), torch.rand(3, 4, 7, device=DEVICE) < 0.3
    with on(path, "likelihood"):
        found = summed_log_likelihood(logits, bits, axes)
    expected = Bernoulli(logits=logits).log_prob(bits.float()).sum(tuple(range(-axes, 0)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@PATHS
@DTYPES
def test_a_batch_of_programs_is_a_loop_over_them(dtype: torch.dtype, path: str) -> None:
    logits, bits = given((4, 5, 3, 7), dtype)
    logits = logits.unsqueeze(1).requires_grad_()
    with on(path, "likelihood"):
        for each, dim in ((bits.unsqueeze(1), 0), (bits[:1], None)):
            together = vmap(log_likelihood, (0, dim))(logits, each)
            alone = torch.stack([log_likelihood(logits[k], each[k] if dim == 0 else each) for k in range(4)])
            torch.testing.assert_close(together, alone)
            by = [torch.autograd.grad(found.square().sum(), logits)[0] for found in (together, alone)]
            torch.testing.assert_close(*by)
            assert by[0].dtype == dtype


@PATHS
@pytest.mark.parametrize("members", [0, 1])
def test_logits_and_bits_may_lie_in_any_order(members: int, path: str) -> None:
    leaf = torch.randn(2, 3, 4, 5, device=DEVICE, requires_grad=True)
    logits = leaf.movedim(0, -1).contiguous().movedim(-1, 0)
    bits = (torch.rand(2, 5, 4, device=DEVICE) < 0.3).mT
    bits = bits if members else bits[0].expand(3, 4, 5)
    with on(path, "likelihood"):
        found = summed_log_likelihood(logits, bits, 1, members)
        bys = torch.randn_like(found.mT).mT, torch.ones((), device=DEVICE).expand_as(found)
        slopes = [torch.autograd.grad(found, leaf, by, retain_graph=True)[0] for by in bys]
        by = torch.stack(bys)
        together = vmap(lambda by: torch.autograd.grad(found, leaf, by, retain_graph=True)[0])(by)
    expected = summed_log_likelihood.definition(logits, bits, 1, members)
    torch.testing.assert_close(found, expected)
    for by, slope in zip(bys, slopes, strict=True):
        torch.testing.assert_close(slope, torch.autograd.grad(expected, leaf, by, retain_graph=True)[0])
    torch.testing.assert_close(together, torch.stack(slopes))


@PATHS
def test_gradients_can_be_differentiated(path: str) -> None:
    logits, bits = given((2, 3, 2, 5))

    def curvature(found: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = torch.autograd.grad(found.sin().sum(), by, create_graph=True)
        return grad, torch.autograd.grad(grad.square().sum(), by)[0]

    with on(path, "likelihood"):
        found = curvature(log_likelihood(logits.requires_grad_(), bits), logits)
    wide = logits.detach().double().requires_grad_()
    for one, other in zip(found, curvature(true_log_likelihood(wide, bits), wide), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.unchecked
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("path", ["plain", "fast"])
def test_the_likelihood_compiles(path: str) -> None:
    logits, bits = given((4, 5, 3, 7))
    logits = logits.unsqueeze(1).requires_grad_()
    run = vmap(log_likelihood)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    with on(path, "likelihood"):
        by = [torch.autograd.grad(each(logits, bits.unsqueeze(1)).square().sum(), logits) for each in (run, compiled)]
    torch.testing.assert_close(*by)


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
def test_the_likelihood_is_an_operator(path: str) -> None:
    logits, bits = given((2, 5, 3, 7))
    with on(path, "likelihood"):
        opcheck(summed_log_likelihood, (logits.requires_grad_(), bits, 1, 1))
