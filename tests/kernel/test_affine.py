"""Affine maps are those of torch on either path, batched and compiled, and gradients of weights may stay factors."""

from collections.abc import Sequence
from contextlib import nullcontext
from threading import Thread
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from concretely.functional import arithmetic as operation
from concretely.functional import linear
from concretely.functional.arithmetic import affine
from concretely.functional.linear import FewerLaunches
from concretely.kernel import deferred, operator
from concretely.kernel.deferred import DeferredGradient, deferred_gradients, materialized
from tests.cases import exhaustive
from tests.kernel import (
    DEVICE,
    PATHS,
    assert_precise,
    drift,
    exact_products,
    fast,
    kernel,
    on,
    opcheck,
    precise,
    wished,
)

SIZES = [(1, 1, 1, 1), (3, 5, 7, 9), (1, 40, 20, 70), (3, 33, 17, 1)]
"""Members, rows, outputs and inputs."""
TANH = pytest.mark.parametrize("tanh", [True, False])


def given(members: int, high: int, wide: int, deep: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, weights and biases."""
    shapes = ((members, high, deep), (members, wide, deep), (members, wide))
    x, weight, bias = (torch.randn(shape, device=DEVICE) for shape in shapes)
    return x, weight / deep**0.5, bias


def true_affine(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """The maps of torch in float64, one member after the other."""
    maps = zip(x.double(), weight.double(), bias.double(), strict=True)
    total = torch.stack([torch.nn.functional.linear(*each) for each in maps])
    return total.tanh() if tanh else total


def drifts(
    x: Tensor, weight: Tensor, bias: Tensor, by: Tensor, out: Tensor, tanh: bool, product: str = "ieee"
) -> list[Tensor]:
    """How far the output and the gradients of input, weight and bias may be off; tanh takes nothing further apart."""
    ones = torch.ones_like(by[..., :1])
    terms = torch.cat([x, ones], -1), torch.cat([weight, bias.unsqueeze(-1)], -1).mT
    size = by.abs() * (1 + out.float().square()) if tanh else by.abs()  # a slope of tanh takes three roundings
    by_bias = drift(size.mT, ones, more=3).squeeze(-1)
    return [drift(*terms, product), drift(size, weight, product, 3), drift(size.mT, x, product, 3), by_bias]


def pulled(found: Tensor, by: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradients of what is not linear in the output."""
    return torch.autograd.grad(found.sin().sum(), by, retain_graph=True)


def defined(given: Sequence[Tensor], by: Tensor, tanh: bool) -> tuple[Tensor, ...]:
    """The output of the definition, and the gradients of input, weight and bias that autograd takes of it."""
    leaves = [tensor.detach().requires_grad_() for tensor in given]
    out = affine.definition(*leaves, tanh)
    return out.detach(), *torch.autograd.grad(out, leaves, by)


def pulled_by_kernel(by: Tensor, x: Tensor, weight: Tensor, out: Tensor, tanh: bool, product: str) -> list[Tensor]:
    """The gradients of the kernel, from one launch."""
    return list(fast("affine").gradients(by, x, weight, out, tanh, product, True))


@kernel
@TANH
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_kernel_is_its_definition(shape: tuple[int, int, int, int], tanh: bool) -> None:
    x, weight, bias = given(*shape)
    shared = x[:1].expand_as(x), weight[:1].expand_as(weight), bias[:1].expand_as(bias)
    pieces = x.mT.contiguous().mT, weight.mT.contiguous().mT, bias.T.contiguous().T
    for each in ((x, weight, bias), shared, pieces):
        wide = [tensor.double().requires_grad_() for tensor in each]
        truth = true_affine(*wide, tanh)
        by = torch.randn(truth.shape, device=DEVICE)
        out = affine.definition(*each, tanh)
        forward, *_ = drifts(*each, by, out, tanh)
        assert_precise(fast("affine").affine(*each, tanh, "ieee"), out, truth.detach(), forward)
        ones = torch.ones((), device=DEVICE).expand_as(by)
        for one in (by, ones, by[:1].expand_as(by), by.mT.contiguous().mT) if each[0] is x else (ones,):
            true = torch.autograd.grad((one * truth).sum(), wide, retain_graph=True)
            found = pulled_by_kernel(one, *each[:2], out, tanh, "ieee")
            _, *backward = drifts(*each, one, out, tanh)
            for k, expected in enumerate(defined(each, one, tanh)[1:]):
                # the definition drifts as well, maybe towards the truth, which both leave as their output does
                assert_precise(found[k], expected, true[k], 2 * backward[k])
    without = fast("affine").gradients(by, x, weight, affine.definition(x, weight, bias, tanh), tanh, "ieee", False)
    assert without[0].shape == (shape[0], 0, shape[3])


@PATHS
@pytest.mark.parametrize("shape", [(9, 5), (2, 3, 5), (5,), (0, 5), (operation.FEW + 3, 5)], ids=str)
def test_small_linear_layers_of_modules_are_affine_maps(shape: tuple[int, ...], path: str) -> None:
    layer, x = torch.nn.Linear(5, 7).to(DEVICE), torch.randn(shape, device=DEVICE, requires_grad=True)
    leaves = x, *layer.parameters()
    calls = []
    with exact_products(), on(path, "affine"), FewerLaunches(stacked=False):
        assert not operator.is_watched()
        with mock.patch.object(linear, "affine", side_effect=lambda *given: calls.append(1) or affine(*given)):
            found = layer(x)
        gradients = torch.autograd.grad(found.sin().sum(), leaves)
    assert len(calls) == (x.numel() > 0)
    expected = layer(x)
    for one, other in zip((found, *gradients), (expected, *pulled(expected, leaves)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 if path == "fast" else 1e-6)
    without = torch.nn.Linear(5, 7, bias=False).to(DEVICE)
    with FewerLaunches(stacked=False):
        torch.testing.assert_close(without(x), x @ without.weight.T)


@kernel
@pytest.mark.parametrize("deferred", [True, False])
def test_small_linear_layers_of_members_are_affine_maps(deferred: bool) -> None:
    shapes = (3, 90, 200), (3, 200, 200), (3, 200)  # more rows than are pulled in one launch, and fewer than weights
    x, weight, bias = (torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes)
    with exact_products(), on("fast", "affine"), linear.fewer_launches(stacked=True, deferred=deferred):
        found = vmap(torch.nn.functional.linear)(x, weight, bias)
        gradients = torch.autograd.grad(found.sin().sum(), (x, weight, bias))
    assert isinstance(gradients[1], DeferredGradient) == deferred
    expected = torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    for one, other in zip((found, *gradients), (expected, *pulled(expected, (x, weight, bias))), strict=True):
        torch.testing.assert_close(materialized(one), other, rtol=1e-3, atol=1e-3)


def before_tanh(by: Tensor, out: Tensor, tanh: bool) -> Tensor:
    """The gradient of what goes into tanh."""
    return torch.ops.aten.tanh_backward(by, out) if tanh else by


@kernel
@TANH
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 33, 65), (1, 130, 3)], ids=str)
def test_the_gradient_before_tanh_and_its_sum_are_those_of_the_definition(
    shape: tuple[int, int, int], tanh: bool
) -> None:
    by, out = torch.randn(shape, device=DEVICE), torch.rand(shape, device=DEVICE)
    ones = torch.ones((), device=DEVICE).expand(shape)
    for one in (by, ones, by[:1].expand_as(by), by.mT.contiguous().mT):
        defined, truth = (before_tanh(each, value, tanh) for each, value in ((one, out), (one.double(), out.double())))
        found, sums = fast("affine").before_tanh(one, out, tanh)
        if tanh:
            assert_precise(found, defined, truth)
        torch.testing.assert_close(sums.double(), truth.sum(1), rtol=1e-6, atol=1e-5)
    half, sums = fast("affine").before_tanh(by.bfloat16(), out.bfloat16(), tanh)
    truth = before_tanh(by.bfloat16().double(), out.bfloat16().double(), tanh)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), truth if tanh else truth[:, :0], rtol=0.01, atol=1e-6)
    torch.testing.assert_close(sums.double(), truth.sum(1), rtol=1e-6, atol=1e-5)


@kernel
@pytest.mark.parametrize("product", ["tf32", "bfloat16"])
def test_products_may_be_less_precise(product: str) -> None:
    x, weight, bias = given(2, 5, 7, 40)
    out = affine.definition(x, weight, bias, True)
    found = (
        fast("affine").affine(x, weight, bias, True, product),
        *pulled_by_kernel(out, x, weight, out, True, product),
    )
    expected = list(defined((x, weight, bias), out, True))
    if product == "bfloat16":
        expected[0] = expected[0].bfloat16()  # the next product would round it so
    assert [(each.dtype, each.shape) for each in found] == [(each.dtype, each.shape) for each in expected]
    assert affine.definition(x, weight, bias, True, product).dtype == found[0].dtype
    if product == "tf32" or DEVICE == "cuda":  # the interpreter takes the bits of a bfloat16 for a whole number
        truth = defined([each.double() for each in (x, weight, bias)], out.double(), True)
        slack = drifts(x, weight, bias, out, out, True, product)
        for each in zip(found, expected, truth, slack, strict=True):
            assert_precise(*each)


@kernel
def test_tiles_keep_a_device_busy_and_are_not_twice_as_large_as_what_they_cover() -> None:
    triton = fast("affine")
    for high, wide, members in ((1, 1, 1), (100, 200, 1), (5_000, 784, 1), (20_000, 200, 8), (50, 10_000, 3)):
        tile = triton.tile(high, wide, 200, members)
        programs = triton.triton.cdiv(high, tile.high) * triton.triton.cdiv(wide, tile.wide) * members
        smallest = (tile.high, tile.wide) == (16, 16)
        assert smallest or (programs >= triton.PROGRAMS and tile.high <= 2 * high and tile.wide <= 2 * wide)


@kernel
def test_the_kernel_is_for_float32_and_products_that_need_not_be_precise() -> None:
    x, weight, bias = given(1, 2, 3, 4)

    def is_eligible(*dtypes: torch.dtype) -> bool:
        tensors = [tensor.to(dtype) for tensor, dtype in zip((x, weight, bias), dtypes, strict=True)]
        return affine._is_eligible([*tensors, True, "ieee", False])

    with on("fast", "affine"):
        for precision, expected in (("highest", False), ("high", True), ("medium", True)):
            with wished(precision):
                assert is_eligible(torch.float32, torch.float32, torch.float32) == expected
                assert not is_eligible(torch.float64, torch.float64, torch.float64)
                assert not is_eligible(torch.float16, torch.float32, torch.float32)
                with torch.autocast(DEVICE, torch.bfloat16):
                    assert not is_eligible(torch.float32, torch.float32, torch.float32)


def few_rows(path: str, few: int) -> Any:
    """Let the kernels compute all gradients in one launch up to so many rows."""
    return mock.patch.object(fast("affine"), "FEW", few) if path == "fast" else nullcontext()


@PATHS
@TANH
@pytest.mark.parametrize("few", [0, 512])
def test_maps_are_those_of_torch(tanh: bool, few: int, path: str) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(3, 5, 7, 9))
    with precise(path), few_rows(path, few):
        found = affine(*leaves, tanh)
        grads = (*pulled(found, leaves), *pulled(found, leaves[1:]))
    truth = true_affine(*leaves, tanh)
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grads, (*pulled(truth, leaves), *pulled(truth, leaves[1:])), rtol=1e-4, atol=1e-5)


@kernel
@pytest.mark.parametrize("rows", [3, 4])
def test_what_comes_of_many_rows_is_rounded_as_the_next_product_would(rows: int) -> None:
    x, *leaves = (tensor.requires_grad_() for tensor in given(2, rows, 7, 9))
    half = torch.bfloat16 if rows == 4 else torch.float32
    with precise("fast"), wished("medium"), mock.patch.object(operation, "FEW", 3), few_rows("fast", 6):
        hidden = affine(x, *leaves, True)
        found = affine(hidden, leaves[0].mT, x[:, 0], False)
        grads = torch.autograd.grad(found.sin().sum(), (x, hidden, *leaves))
    assert (hidden.dtype, found.dtype) == (half, torch.float32)
    assert [grad.dtype for grad in grads] == [torch.float32, half, torch.float32, torch.float32]
    if rows == 3 or DEVICE == "cuda":  # the interpreter takes the bits of a bfloat16 for a whole number
        wide = [tensor.detach().double().requires_grad_() for tensor in (x, *leaves)]
        truth = true_affine(true_affine(*wide, True), wide[1].mT, wide[0][:, 0], False)
        true = torch.autograd.grad(truth.sin().sum(), wide)
        torch.testing.assert_close(found.double(), truth, rtol=0.03, atol=0.03)
        torch.testing.assert_close([grads[0], *grads[2:]], [each.float() for each in true], rtol=0.05, atol=0.1)


@pytest.mark.parametrize(
    ("members", "rows", "outputs", "inputs", "dtype", "parts"),
    [
        (2, 2_048, 200, 200, torch.float32, 4),  # no part has fewer than 512 rows
        (2, 2_048, 200, 200, torch.bfloat16, 1),
        (2, 12_800, 200, 200, torch.float32, 16),
        (2, 12_800, 200, 784, torch.float32, 8),
        (8, 12_800, 200, 784, torch.float32, 2),
        (32, 12_800, 200, 784, torch.float32, 1),  # members are tiles enough
        (1, 12_800, 200, 200, torch.float32, 1),
        (2, 2_050, 200, 200, torch.float32, 2),  # an odd number of rows is not divided
    ],
)
def test_rows_are_divided_until_there_are_tiles_for_all_of_a_gpu(
    members: int, rows: int, outputs: int, inputs: int, dtype: torch.dtype, parts: int
) -> None:
    x, by_total = (torch.empty(members, rows, wide, dtype=dtype) for wide in (inputs, outputs))
    with mock.patch.object(deferred, "is_launchable", return_value=True):
        assert deferred.parts_of(x, by_total) == parts
        assert deferred.parts_of(x[:1].expand_as(x), by_total) == 1
    assert deferred.parts_of(x, by_total) == 1  # they are on a CPU


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_is_the_sum_of_those_of_parts_of_the_rows(dtype: torch.dtype) -> None:
    x, by_total = (torch.randint(-3, 4, (3, 16, wide), device=DEVICE).to(dtype) for wide in (5, 7))  # no rounding
    with mock.patch.object(deferred, "is_launchable", return_value=True), mock.patch.object(deferred, "DEEP", 8):
        assert deferred.parts_of(x, by_total) == {torch.float32: 8, torch.bfloat16: 4}[dtype]
        assert torch.equal(deferred.product(x, by_total).double(), by_total.double().mT @ x.double())


@PATHS
def test_an_input_without_a_gradient_has_none(path: str) -> None:
    x, weight, bias = given(2, 3, 4, 5)
    with precise(path):
        affine(x, weight.requires_grad_(), bias.requires_grad_(), True).sum().backward()
    assert x.grad is None
    truth = true_affine(x, weight, bias, True)
    for leaf, true in zip((weight, bias), torch.autograd.grad(truth.sum(), (weight, bias)), strict=True):
        torch.testing.assert_close(leaf.grad, true, rtol=1e-4, atol=1e-5)


@PATHS
def test_a_batch_of_programs_is_a_loop_over_them(path: str) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(4, 3, 7, 5))
    with precise(path):
        for dims in ((0, 0, 0), (None, 0, 0), (0, None, None)):
            pairs = list(zip(leaves, dims, strict=True))
            batch = [each[:1] if dim is None else each.unsqueeze(1) for each, dim in pairs]
            together = vmap(lambda *each: affine(*each, True), dims)(*batch)
            each_one = ([each[:1] if dim is None else each[k : k + 1] for each, dim in pairs] for k in range(4))
            alone = torch.stack([affine(*each, True) for each in each_one])
            torch.testing.assert_close(together, alone)
            torch.testing.assert_close(*(pulled(each, leaves) for each in (together, alone)))


@PATHS
@TANH
def test_gradients_can_be_differentiated(tanh: bool, path: str) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(2, 3, 4, 5))

    def curvature(found: Tensor) -> tuple[Tensor, ...]:
        grads = torch.autograd.grad(found.sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in grads), leaves)

    with precise(path):
        found = curvature(affine(*leaves, tanh))
    torch.testing.assert_close(found, curvature(true_affine(*leaves, tanh)), rtol=1e-4, atol=1e-4)


def gradients_of(leaves: tuple[Tensor, ...], tanh: bool = True) -> tuple[Tensor, ...]:
    """The gradients of a map that runs where they may be deferred."""
    with deferred_gradients():
        return torch.autograd.grad(affine(*leaves, tanh).sum(), leaves)


@kernel
@TANH
@pytest.mark.parametrize("members", [1, 3])
def test_gradients_of_weights_stay_factors_that_are_smaller(members: int, tanh: bool) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(members, 3, 7, 9))
    with precise("fast"), few_rows("fast", 0):
        found = gradients_of(leaves, tanh)
        expected = torch.autograd.grad(affine(*leaves, tanh).sum(), leaves)
    assert [type(each) for each in found] == [Tensor, DeferredGradient, Tensor]
    assert [(each.shape, each.dtype) for each in found] == [(each.shape, each.dtype) for each in expected]
    assert repr(found[1]) == f"DeferredGradient(shape={(members, 7, 9)})"
    assert found[1].by_total.is_contiguous()
    torch.testing.assert_close(tuple(materialized(each) for each in found), expected)
    torch.testing.assert_close(found[1] * 2 + 1, expected[1] * 2 + 1)


@kernel
def test_weights_of_a_batch_have_gradients_of_their_own_shape() -> None:
    x, weight, bias = given(4, 2, 7, 5)
    leaves = weight.requires_grad_(), bias.requires_grad_()
    run = vmap(lambda weight, bias: affine(x[0], weight, bias, True))
    with precise("fast"), few_rows("fast", 0):
        expected = torch.autograd.grad(run(*leaves).sum(), leaves)
        with deferred_gradients():
            by_weight, by_bias = torch.autograd.grad(run(*leaves).sum(), leaves)
    assert isinstance(by_weight, DeferredGradient)
    assert by_weight.shape == weight.shape
    torch.testing.assert_close((by_weight.materialize(), by_bias), expected)


@kernel
def test_deferred_gradients_of_a_weight_that_is_used_twice_add_up() -> None:
    x, weight, bias = (tensor.requires_grad_() for tensor in given(1, 3, 7, 9))
    with precise("fast"), few_rows("fast", 0):
        expected = torch.autograd.grad(affine(x, weight, bias, True).sum(), weight)
        with deferred_gradients():
            twice = affine(x, weight, bias, True) + affine(x, weight, bias, True)
            found = torch.autograd.grad(twice.sum(), weight)
        assert type(found[0]) is Tensor
        torch.testing.assert_close(found[0], 2 * expected[0])
        with deferred_gradients():
            scaled = torch.autograd.grad(affine(x, 2 * weight, bias, True).sum(), weight)
    assert type(scaled[0]) is Tensor


@kernel
def test_gradients_are_deferred_by_whatever_thread_goes_backward() -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(1, 3, 7, 9))
    found = list[Tensor]()
    with precise("fast"), few_rows("fast", 0):
        with deferred_gradients():
            out = affine(*leaves, True).sum()
        thread = Thread(target=lambda: found.extend(torch.autograd.grad(out, leaves)))
        thread.start()
        thread.join()
    assert [isinstance(each, DeferredGradient) for each in found] == [False, True, False]


@kernel
def test_nothing_is_deferred_where_nobody_asked_for_it() -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(1, 3, 7, 9))
    with precise("fast"), few_rows("fast", 0):
        with deferred_gradients(), deferred_gradients():
            pass
        before = affine(*leaves, True)
        with deferred_gradients():
            before.sum().backward()
    assert all(type(leaf.grad) is Tensor for leaf in leaves)


@kernel
@pytest.mark.parametrize(
    ("members", "rows", "is_deferred"),
    [(1, 2, False), (2, 2, False), (3, 2, True), (1, 6, False), (3, 3, False)],
)
def test_few_rows_of_all_members_and_factors_larger_than_their_product_are_not_deferred(
    members: int, rows: int, is_deferred: bool
) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(members, rows, 4, 6))
    with precise("fast"), few_rows("fast", 4):
        found = gradients_of(leaves)
    assert [isinstance(each, DeferredGradient) for each in found] == [False, is_deferred, False]


@pytest.mark.unchecked
@TANH
def test_maps_compile(tanh: bool) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(2, 3, 4, 5))
    compiled = torch.compile(affine, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(*(pulled(each(*leaves, tanh), leaves) for each in (affine, compiled)))


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize("order", [(2, 1, 0), *exhaustive((0, 1, 2), (0, 2, 1))], ids=str)
def test_maps_are_operators_however_their_tensors_lie(order: tuple[int, int, int], path: str) -> None:
    x, weight, by, out = (torch.randn(4, 4, 4, device=DEVICE).permute(order) for _ in range(4))
    bias = torch.randn(4, 4, device=DEVICE)
    with precise(path):
        leaves = [each.detach().requires_grad_() for each in (x, weight, bias)]
        opcheck(affine, (*leaves, True, "ieee", False))
        for tanh, by_input in ((True, True), (False, True), (False, False)) if path == "fast" else ():
            needs = [by_input, True, True, False, False, False]
            for few in (0, 100):
                with few_rows(path, few):
                    given = ([by], x, weight, bias, tanh, "ieee", False, [out], needs)
                    torch.library.opcheck(affine.backward, given)
