"""Affine maps are those of torch on either path, batched and compiled, and a ledger has the factors of gradients."""

from threading import Thread
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from concretely.kernel import affine as operation
from concretely.kernel.affine import affine, ledger, naive
from tests.kernel import DEVICE, PATHS, assert_precise, drift, fast, kernel, opcheck, precise, taken, wished

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
        defined = naive.affine(*each, tanh)
        by = torch.randn_like(defined)
        forward, *_ = drifts(*each, by, defined, tanh)
        assert_precise(fast("affine").affine(*each, tanh, "ieee"), defined, truth.detach(), forward)
        ones = torch.ones((), device=DEVICE).expand_as(by)
        for one in (by, ones, by[:1].expand_as(by), by.mT.contiguous().mT) if each[0] is x else (ones,):
            true = torch.autograd.grad((one * truth).sum(), wide, retain_graph=True)
            arguments = (one, *each[:2], defined, tanh)
            found = fast("affine").affine_backward(*arguments, "ieee", True)
            _, *backward = drifts(*each, one, defined, tanh)
            for k, expected in enumerate(naive.affine_backward(*arguments)):
                # the definition drifts as well, maybe towards the truth, which both leave as their output does
                assert_precise(found[k], expected, true[k], 2 * backward[k])
    without = fast("affine").affine_backward(by, x, weight, naive.affine(x, weight, bias, tanh), tanh, "ieee", False)
    assert without[0].shape == (shape[0], 0, shape[3])


@kernel
@TANH
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 33, 65), (1, 130, 3)], ids=str)
def test_the_gradient_before_tanh_and_its_sum_are_those_of_the_definition(
    shape: tuple[int, int, int], tanh: bool
) -> None:
    by, out = torch.randn(shape, device=DEVICE), torch.rand(shape, device=DEVICE)
    ones = torch.ones((), device=DEVICE).expand(shape)
    for one in (by, ones, by[:1].expand_as(by), by.mT.contiguous().mT):
        defined, truth = (
            naive.by_total(each, value, tanh) for each, value in ((one, out), (one.double(), out.double()))
        )
        found, sums = fast("affine").before_tanh(one, out, tanh)
        if tanh:
            assert_precise(found, defined, truth)
        torch.testing.assert_close(sums.double(), truth.sum(1), rtol=1e-6, atol=1e-5)
    half, sums = fast("affine").before_tanh(by.bfloat16(), out.bfloat16(), tanh)
    truth = naive.by_total(by.bfloat16().double(), out.bfloat16().double(), tanh)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), truth if tanh else truth[:, :0], rtol=0.01, atol=1e-6)
    torch.testing.assert_close(sums.double(), truth.sum(1), rtol=1e-6, atol=1e-5)


@kernel
@pytest.mark.parametrize("product", ["tf32", "bfloat16"])
def test_products_may_be_less_precise(product: str) -> None:
    x, weight, bias = given(2, 5, 7, 40)
    out = naive.affine(x, weight, bias, True)

    def both(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> tuple[Tensor, ...]:
        return naive.affine(x, weight, bias, True), *naive.affine_backward(out, x, weight, out, True)

    found = (
        fast("affine").affine(x, weight, bias, True, product),
        *fast("affine").affine_backward(out, x, weight, out, True, product, True),
    )
    defined = list(both(x, weight, bias, out))
    if product == "bfloat16":
        defined[0] = defined[0].bfloat16()  # the next product would round it so
    assert [(each.dtype, each.shape) for each in found] == [(each.dtype, each.shape) for each in defined]
    if product == "tf32" or DEVICE == "cuda":  # the interpreter takes the bits of a bfloat16 for a whole number
        truth = both(*(each.double() for each in (x, weight, bias, out)))
        slack = drifts(x, weight, bias, out, out, True, product)
        for each in zip(found, defined, truth, slack, strict=True):
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
    x, weight, _ = given(1, 2, 3, 4)
    with taken(operation, "fast"):
        for precision, suits in (("highest", False), ("high", True), ("medium", True)):
            with wished(precision):
                assert operation.suits(x, weight) == suits
                assert not operation.suits(x.double(), weight.double())
                assert not operation.suits(x.half(), weight)
                with torch.autocast(DEVICE, torch.bfloat16):
                    assert not operation.suits(x, weight)
    assert not operation.suits(x.cpu(), weight.cpu())


@PATHS
@TANH
@pytest.mark.parametrize("few", [0, 512])
def test_maps_are_those_of_torch(tanh: bool, few: int, path: str) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(3, 5, 7, 9))
    with precise(path), mock.patch.object(operation, "FEW", few):
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
    with precise("fast"), wished("medium"), mock.patch.object(operation, "FEW", 3):
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
    factors = operation.Factors(*(torch.empty(members, rows, wide, dtype=dtype) for wide in (inputs, outputs)))
    with mock.patch.object(operation, "is_fast", return_value=True):
        assert factors.parts == parts
        shared = operation.Factors(factors.x[:1].expand_as(factors.x), factors.by_total)
        assert shared.parts == 1
    assert factors.parts == 1  # they are on a CPU


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_is_the_sum_of_those_of_parts_of_the_rows(dtype: torch.dtype) -> None:
    x, by_total = (torch.randint(-3, 4, (3, 16, wide), device=DEVICE).to(dtype) for wide in (5, 7))  # no rounding
    factors = operation.Factors(x, by_total)
    with mock.patch.object(operation, "is_fast", return_value=True), mock.patch.object(operation, "DEEP", 8):
        assert factors.parts == {torch.float32: 8, torch.bfloat16: 4}[dtype]
        assert torch.equal(factors.product.double(), by_total.double().mT @ x.double())


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


def entered(leaves: tuple[Tensor, ...], tanh: bool = True) -> tuple[operation.Ledger, tuple[Tensor | None, ...]]:
    """What a ledger has, and the gradients that are returned."""
    with ledger() as entries:
        grads = torch.autograd.grad(affine(*leaves, tanh).sum(), leaves, allow_unused=True)
    return entries, grads


@PATHS
@TANH
@pytest.mark.parametrize("members", [1, 3])
def test_a_ledger_has_the_factors_of_the_gradients_that_are_not_returned(members: int, tanh: bool, path: str) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(members, 3, 7, 9))
    with precise(path), mock.patch.object(operation, "FEW", 0):
        entries, (by_x, by_weight, by_bias) = entered(leaves, tanh)
        expected = torch.autograd.grad(affine(*leaves, tanh).sum(), leaves)
    assert by_weight is None
    ((place, factors),) = entries.items()
    assert place == leaves[1].data_ptr()
    assert factors.by_total.is_contiguous()
    torch.testing.assert_close((by_x, factors.product, by_bias), expected)


@PATHS
def test_the_weights_of_a_batch_are_entered_by_their_own_address(path: str) -> None:
    x, weight, bias = given(4, 2, 7, 5)
    leaves = weight.unsqueeze(1).requires_grad_(), bias.unsqueeze(1).requires_grad_()
    with precise(path), mock.patch.object(operation, "FEW", 0):
        run = vmap(lambda *each: affine(*each, True), (None, 0, 0))
        expected = torch.autograd.grad(run(x[:1], *leaves).sum(), leaves)
        with ledger() as entries:
            grads = torch.autograd.grad(run(x[:1], *leaves).sum(), leaves, allow_unused=True)
    assert grads[0] is None
    torch.testing.assert_close((entries[weight.data_ptr()].product.unsqueeze(1), grads[1]), expected)


def test_a_ledger_is_kept_by_whatever_thread_goes_backward() -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(1, 3, 7, 9))
    with mock.patch.object(operation, "FEW", 0), ledger() as entries:
        thread = Thread(target=affine(*leaves, True).sum().backward)
        thread.start()
        thread.join()
    assert list(entries) == [leaves[1].data_ptr()]
    assert leaves[0].grad is not None
    assert leaves[1].grad is None
    assert leaves[2].grad is not None


def test_nothing_is_entered_where_no_ledger_is_open() -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(1, 3, 7, 9))
    with mock.patch.object(operation, "FEW", 0):
        with ledger() as closed:
            pass
        before = affine(*leaves, True)
        with ledger() as late:
            before.sum().backward()
    assert not closed
    assert not late
    assert all(leaf.grad is not None for leaf in leaves)


def test_ledgers_nest() -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(1, 3, 7, 9))
    with mock.patch.object(operation, "FEW", 0), ledger() as outer:
        assert entered(leaves)[0]
        assert not outer
        affine(*leaves, True).sum().backward()
        assert outer


@pytest.mark.parametrize(
    ("members", "rows", "is_entered"),
    [(1, 2, False), (2, 2, False), (3, 2, True), (1, 6, False), (3, 3, False)],
)
def test_few_rows_of_all_members_and_factors_larger_than_their_product_are_not_entered(
    members: int, rows: int, is_entered: bool
) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(members, rows, 4, 6))
    with mock.patch.object(operation, "FEW", 4):
        entries, grads = entered(leaves)
    assert bool(entries) == is_entered
    assert [grad is None for grad in grads] == [False, is_entered, False]


@pytest.mark.unchecked
@TANH
def test_maps_compile(tanh: bool) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in given(2, 3, 4, 5))
    compiled = torch.compile(affine, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(*(pulled(each(*leaves, tanh), leaves) for each in (affine, compiled)))


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)], ids=str)
def test_maps_are_operators_however_their_tensors_lie(order: tuple[int, int, int], path: str) -> None:
    x, weight, by, out = (torch.randn(4, 4, 4, device=DEVICE).permute(order) for _ in range(4))
    bias = torch.randn(4, 4, device=DEVICE)
    with precise(path):
        leaves = (each.detach().requires_grad_() for each in (x, weight, bias))
        opcheck(operation._affine, (*leaves, True, "ieee"))
        for tanh, by_input in ((True, True), (False, True), (False, False)):
            opcheck(operation._affine_backward, (by, x, weight, out, tanh, by_input))
            opcheck(operation._before_tanh, (by, out, tanh))
