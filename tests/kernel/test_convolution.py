"""The convolutions of members are those of torch, with their gradients, for modules inside `vmap` too."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from concretely.functional.convolution import convolution, is_supported
from concretely.functional.linear import fewer_launches
from tests.kernel import DEVICE, fast, kernel, on, opcheck

CASES = [
    # members, points, inputs, outputs, height and width; kernel height and width, stride, padding, extra
    (1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0),
    (2, 3, 2, 5, 6, 7, 4, 4, 2, 1, 0),
    (2, 2, 3, 17, 5, 4, 3, 3, 1, 1, 0),
    (1, 3, 2, 3, 7, 6, 3, 2, 2, 0, 1),  # a window that does not reach the last line
    (3, 5, 1, 2, 9, 9, 5, 3, 3, 2, 2),
    (2, 2, 16, 5, 5, 6, 3, 2, 1, 1, 0),
    (2, 3, 33, 2, 5, 4, 4, 4, 2, 1, 1),
    (1, 2, 13, 3, 4, 5, 2, 2, 3, 0, 2),
]
"""Odd sizes, windows that overlap, touch or leave gaps, outputs that no window reaches, and many channels."""
SHAPES = pytest.mark.parametrize("case", CASES, ids=str)
TRANSPOSED = pytest.mark.parametrize("transposed", [True, False])


def given(case: tuple[int, ...], transposed: bool) -> tuple[list[Tensor], tuple[Any, ...]]:
    """Images, weights and biases, and the options."""
    members, points, inputs, outputs, high, wide, *kernel, stride, padding, extra = case
    channels = (inputs, outputs) if transposed else (outputs, inputs)
    shapes = (members, points, high, wide, inputs), (members, *channels, *kernel), (members, outputs)
    scales = 1, 1 / math.sqrt(inputs * math.prod(kernel)), 1  # so that results are about 1
    tensors = [scale * torch.randn(shape, device=DEVICE) for scale, shape in zip(scales, shapes, strict=True)]
    tensors = [tensor.requires_grad_() for tensor in tensors]
    return tensors, (stride, padding, extra if transposed else 0, transposed)


def pulled(found: Tensor, leaves: Any) -> tuple[Tensor, ...]:
    """The gradients of what is not linear in the output."""
    return torch.autograd.grad(found.sin().sum(), leaves)


def assert_same(case: tuple[int, ...], transposed: bool) -> None:
    """Compare the kernel and its gradients with the definition."""
    tensors, options = given(case, transposed)
    with on("fast", "convolution"):
        result = convolution(*tensors, *options)
        gradients = pulled(result, tensors)
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = convolution.definition(*wide, *options)
    for one, other in zip((result, *gradients), (expected, *pulled(expected, wide)), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4, msg=lambda text: f"{case}: {text}")


@kernel
@SHAPES
@TRANSPOSED
def test_the_kernel_is_its_definition(case: tuple[int, ...], transposed: bool) -> None:
    assert_same(case, transposed)


@kernel
@TRANSPOSED
def test_all_windows_strides_and_paddings(transposed: bool) -> None:
    for window, stride, padding in product(((1, 2), (3, 3), (4, 1)), (1, 2, 3), (0, 1, 2)):
        assert_same((1, 2, 3, 2, 5, 6, *window, stride, padding, stride - 1), transposed)


@kernel
@TRANSPOSED
def test_what_does_not_fit_is_left_to_torch(transposed: bool) -> None:
    (x, weight, bias), options = given(CASES[1], transposed)
    with on("fast", "convolution"), pytest.raises(RuntimeError, match="to have 4 channels"):
        convolution(x.repeat(1, 1, 1, 1, 2), weight, bias, *options)
    if not transposed:  # a window larger than the image
        with on("fast", "convolution"), pytest.raises(RuntimeError, match="Kernel size can't be greater"):
            convolution(x[:, :, :1, :1], weight, bias, 1, 0, 0, False)


@kernel
@TRANSPOSED
def test_members_may_share_images_and_have_no_bias(transposed: bool) -> None:
    (x, weight, _), options = given(CASES[1], transposed)
    shared = x[:1].expand_as(x)
    with on("fast", "convolution"):
        found = convolution(shared, weight, None, *options)
        by = pulled(found, (x, weight))
    expected = convolution.definition(shared, weight, None, *options)
    for one, other in zip((found, *by), (expected, *pulled(expected, (x, weight))), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@kernel
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_of_modules_are_computed_for_all_members_at_once(bias: bool) -> None:
    layers = nn.Conv2d(2, 3, 4, 2, 1, bias=bias), nn.ConvTranspose2d(3, 2, 4, 2, 1, output_padding=1, bias=bias)
    module = nn.Sequential(layers[0], nn.ReLU(), layers[1]).to(DEVICE)
    own = {name: torch.randn(3, *each.shape, device=DEVICE) for name, each in module.named_parameters()}
    own = {name: each.requires_grad_() for name, each in own.items()}
    x = torch.randn(3, 5, 2, 8, 8, device=DEVICE)
    leaves = list(own.values())

    def called(own: dict[str, Tensor], x: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(module, own, x)
        return found

    calls = []
    kernels = fast("convolution")
    launched = kernels.convolution
    with pytest.MonkeyPatch.context() as patch, on("fast", "convolution"), fewer_launches(stacked=True, deferred=True):
        patch.setattr(kernels, "convolution", lambda *given: calls.append(given[0].shape) or launched(*given))
        patch.setattr(torch.backends.cudnn, "allow_tf32", False)
        found = vmap(called)(own, x)
        gradients = pulled(found, leaves)
    assert [shape[0] for shape in calls] == [3, 3]
    expected = torch.stack([called({name: each[i] for name, each in own.items()}, x[i]) for i in range(3)])
    for one, other in zip((found, *gradients), (expected, *pulled(expected, leaves)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@kernel
@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, dilation=2),
        nn.Conv2d(2, 2, 3, stride=(1, 2)),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.ConvTranspose2d(2, 2, 3, groups=2),
    ],
    ids=str,
)
def test_other_convolutions_are_left_to_torch(module: nn.Module) -> None:
    assert not is_supported(module)
    module, x = module.to(DEVICE), torch.randn(5, 2, 8, 8, device=DEVICE)
    with on("fast", "convolution"), fewer_launches(stacked=True, deferred=False):
        found = module(x)
    torch.testing.assert_close(found, module(x))


def test_which_modules_are_supported() -> None:
    assert is_supported(nn.Conv2d(2, 2, 3, stride=2, padding=1))
    assert is_supported(nn.ConvTranspose2d(2, 2, 3, stride=2, output_padding=1))
    others = [nn.Conv1d(2, 2, 3), nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), nn.Linear(2, 2)]
    assert not any(map(is_supported, others))


@kernel
@TRANSPOSED
def test_the_operator_is_one_of_torch(transposed: bool) -> None:
    tensors, options = given(CASES[1], transposed)
    with on("fast", "convolution"):
        opcheck(convolution, (*tensors, *options, "ieee"))
