"""Likelihoods without logits are those with, in value and gradient, on either path, batched, and as models use them."""

import math
import os
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import concretely as c
from concretely.kernel import affine, observed
from concretely.kernel.affine import ledger
from concretely.kernel.observed import naive
from concretely.model import layer
from tests.kernel import DEVICE, PATHS, fast, kernel, opcheck, precise, taken

SHAPES = pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1), (3, 3, 5, 5, 7), (1, 2, 3, 130, 200), (2, 1, 19, 7, 33), (1, 1, 1, 784, 7)], ids=str
)
"""Members, samples, data points, units and inputs: one, odd ones, more than a block of each."""


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter works on one element after the other, and on those past the end too."""
    if os.environ.get("CONCRETELY_UNCHECKED") and DEVICE == "cpu":
        for name, size in (("HIGH", 16), ("WIDE", 64), ("WIDE_WITH_SLOPES", 32)):
            monkeypatch.setattr(fast("observed"), name, size)


def given(members: int, samples: int, batch: int, units: int, inputs: int) -> tuple[Tensor, ...]:
    """States, a map and bits."""
    shapes = [(members, samples, batch, inputs), (members, units, inputs), (members, units)]
    state, weight, bias = (torch.randn(shape, device=DEVICE) for shape in shapes)
    return state, weight, bias, torch.rand(members, batch, units, device=DEVICE) < 0.3


def leaves_of(*shape: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """What has a gradient, and bits."""
    *leaves, bits = given(*shape)
    return tuple(leaf.requires_grad_() for leaf in leaves), bits


def true_log_likelihood(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor) -> Tensor:
    """That of the library in float64."""
    logits = torch.einsum("rmbi,rui->rmbu", state.double(), weight.double()) + bias.double()[:, None, None]
    return c.Bernoulli(logits).log_prob(bits.double().unsqueeze(1).expand_as(logits)).sum(-1)


def pulled(found: Tensor, by: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradients of what is not linear in the output."""
    return torch.autograd.grad((found / 10).sin().sum(), by, retain_graph=True)


def room(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Where slopes are to be written."""
    members, samples, batch, units, _ = shape
    return torch.full((members, samples * batch, units), math.nan, dtype=dtype, device=DEVICE)


NONE = torch.empty(0, device=DEVICE)


@SHAPES
def test_the_definition_is_the_variable_of_the_library(shape: tuple[int, ...]) -> None:
    leaves, bits = leaves_of(*shape)
    truth = true_log_likelihood(*leaves, bits)
    torch.testing.assert_close(naive.log_likelihood(*leaves, bits).double(), truth, rtol=1e-5, atol=1e-4)
    (by_bias,) = torch.autograd.grad(truth.sum(), leaves[2])
    torch.testing.assert_close(naive.slope(*leaves, bits).sum(1), by_bias, rtol=1e-4, atol=1e-4)


@kernel
@SHAPES
def test_kernel_is_its_definition(shape: tuple[int, ...]) -> None:
    state, weight, bias, bits = given(*shape)
    truth = true_log_likelihood(state, weight, bias, bits).float()
    slope = room(shape)
    found = fast("observed").log_likelihood(state, weight, bias, bits, "ieee", slope)
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(slope, naive.slope(state, weight, bias, bits), rtol=1e-4, atol=1e-5)


@kernel
@pytest.mark.parametrize("samples", [1, 2])
def test_bits_may_be_of_any_dtype_and_slopes_left_out(samples: int) -> None:
    shape = (2, samples, 3, 5, 7)
    *others, bits = given(*shape)
    found = fast("observed").log_likelihood(*others, bits, "ieee", room(shape))
    for dtype in (torch.float32, torch.float64, torch.int64):
        assert fast("observed").log_likelihood(*others, bits.to(dtype), "ieee", NONE).equal(found)


@kernel
def test_members_may_share_all_they_have_and_lie_in_pieces() -> None:
    state, weight, bias, bits = given(2, 2, 3, 5, 7)
    shared = [each[:1].expand_as(each) for each in (state, weight, bias, bits)]
    pieces = [each.mT.contiguous().mT for each in (state, weight, bias, bits)]
    for each in (shared, pieces):
        slope = room((2, 2, 3, 5, 7))
        found = fast("observed").log_likelihood(*each, "ieee", slope)
        torch.testing.assert_close(found, naive.log_likelihood(*each), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(slope, naive.slope(*each), rtol=1e-4, atol=1e-5)


@kernel
@pytest.mark.parametrize("size", [(16, 128), (64, 64), (32, 16), (128, 64)], ids=str)
def test_tiles_of_all_sizes_find_the_same(size: tuple[int, int]) -> None:
    shape = (1, 2, 3, 130, 40)
    state, weight, bias, bits = given(*shape)
    slope = room(shape)
    found = fast("observed").log_likelihood(
        state, weight, bias, bits, "ieee", slope, fast("affine").Tile(*size, deep=32, warps=4, stages=3)
    )
    torch.testing.assert_close(found, naive.log_likelihood(state, weight, bias, bits), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(slope, naive.slope(state, weight, bias, bits), rtol=1e-4, atol=1e-5)
    found = fast("observed").log_likelihood(
        0 * state, weight, 0 * bias, bits, "ieee", NONE, fast("affine").Tile(*size, deep=32, warps=4, stages=3)
    )
    torch.testing.assert_close(found, torch.full_like(found, -130 * math.log(2)), rtol=1e-6, atol=0)


@kernel
def test_bits_that_are_certain_or_impossible_are_scored_exactly() -> None:
    bits = torch.tensor([[[True, False, True], [False, True, False]]], device=DEVICE)
    bias = torch.tensor([[1e4, -1e4, 3e4]], device=DEVICE)
    slope = room((1, 1, 2, 3, 1))
    state, weight = torch.zeros(1, 1, 2, 1, device=DEVICE), torch.zeros(1, 3, 1, device=DEVICE)
    found = fast("observed").log_likelihood(state, weight, bias, bits, "ieee", slope)
    assert found.tolist() == [[[0, -5e4]]]
    assert slope.tolist() == [[[0, 0, 0], [-1, 1, -1]]]


@kernel
def test_what_is_no_number_stays_so() -> None:
    state, weight, bias, bits = given(1, 2, 3, 4, 5)
    bias[0, 2] = math.nan
    slope = room((1, 2, 3, 4, 5))
    assert fast("observed").log_likelihood(state, weight, bias, bits, "ieee", slope).isnan().all()
    assert slope.isnan().any((0, 1)).tolist() == [False, False, True, False]


@PATHS
@SHAPES
def test_gradients_are_those_of_the_library(shape: tuple[int, ...], path: str) -> None:
    leaves, bits = leaves_of(*shape)
    with precise(path):
        found = observed.log_likelihood(*leaves, bits)
        grads = (*pulled(found, leaves), *pulled(found, leaves[1:]), *pulled(found, leaves[:1]))
    truth = true_log_likelihood(*leaves, bits)
    true = (*pulled(truth, leaves), *pulled(truth, leaves[1:]), *pulled(truth, leaves[:1]))
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(grads, true, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_slopes_and_states_may_be_as_coarse_as_products(dtype: torch.dtype) -> None:
    (state, *others), bits = leaves_of(2, 3, 4, 5, 6)
    leaves = (state.detach().to(dtype).requires_grad_(), *others)
    found, slope = observed._log_likelihood(*leaves, bits, True, "bfloat16")
    assert slope.dtype == torch.bfloat16
    grads = pulled(found, leaves)
    assert [grad.dtype for grad in grads] == [leaf.dtype for leaf in leaves]
    wide = [grad.float() for grad in grads]
    true = [grad.float() for grad in pulled(true_log_likelihood(*leaves, bits), leaves)]
    torch.testing.assert_close(wide, true, rtol=0.03, atol=0.03)


@PATHS
def test_slopes_are_written_only_where_a_gradient_is_asked_for(path: str) -> None:
    leaves, bits = leaves_of(2, 1, 3, 4, 5)
    constants = [leaf.detach() for leaf in leaves]
    asked: list[bool] = []
    with precise(path), mock.patch.object(observed, "_log_likelihood", wraps=observed._log_likelihood) as operator:
        observed.log_likelihood(*leaves, bits)
        observed.log_likelihood(*constants, bits)
        observed.log_likelihood(*constants[:2], leaves[2], bits)
        with torch.no_grad():
            observed.log_likelihood(*leaves, bits)
        asked = [call.args[4] for call in operator.call_args_list]
        sizes = [observed._log_likelihood(*constants, bits, each, "ieee")[1].shape for each in (True, False)]
    assert asked == [True, False, True, False]
    assert sizes == [(2, 3, 4), (2, 0)]


@PATHS
def test_a_batch_of_programs_is_a_loop(path: str) -> None:
    leaves, bits = leaves_of(4, 2, 3, 4, 5)
    with precise(path):
        for dims in ((0, 0, 0), (None, 0, 0), (0, None, None)):
            pairs = list(zip(leaves, dims, strict=True))
            batch = [each[:1] if dim is None else each.unsqueeze(1) for each, dim in pairs]
            together = vmap(observed.log_likelihood, (*dims, 0))(*batch, bits.unsqueeze(1))
            each_one = ([each[:1] if dim is None else each[k : k + 1] for each, dim in pairs] for k in range(4))
            alone = torch.stack([observed.log_likelihood(*each, bits[k : k + 1]) for k, each in enumerate(each_one)])
            torch.testing.assert_close(together, alone)
            torch.testing.assert_close(*(pulled(each, leaves) for each in (together, alone)))


@PATHS
def test_a_ledger_has_the_factors_of_the_gradient_of_the_weight(path: str) -> None:
    leaves, bits = leaves_of(3, 2, 2, 30, 20)
    with precise(path):
        expected = torch.autograd.grad(observed.log_likelihood(*leaves, bits).square().sum(), leaves)
        with ledger() as entries:
            found = torch.autograd.grad(
                observed.log_likelihood(*leaves, bits).square().sum(), leaves, allow_unused=True
            )
        ((place, factors),) = entries.items()
        assert place == leaves[1].data_ptr()
        assert found[1] is None
        torch.testing.assert_close((found[0], factors.product, found[2]), expected)


@PATHS
def test_gradients_can_be_differentiated(path: str) -> None:
    leaves, bits = leaves_of(2, 2, 3, 4, 5)

    def curvature(found: Tensor) -> tuple[Tensor, ...]:
        grads = torch.autograd.grad((found / 10).sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in grads), leaves)

    with precise(path), ledger() as entries:
        found = curvature(observed.log_likelihood(*leaves, bits))
    assert not entries
    torch.testing.assert_close(found, curvature(true_log_likelihood(*leaves, bits)), rtol=1e-3, atol=1e-4)


@pytest.mark.unchecked
def test_likelihoods_compile() -> None:
    leaves, bits = leaves_of(2, 3, 4, 5, 6)
    compiled = torch.compile(observed.log_likelihood, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(*(pulled(each(*leaves, bits), leaves) for each in (observed.log_likelihood, compiled)))


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize("slopes", [True, False])
def test_rules_of_the_operator_hold(slopes: bool, path: str) -> None:
    leaves, bits = leaves_of(2, 3, 4, 5, 6)
    with precise(path):
        opcheck(observed._log_likelihood, (*leaves, bits, slopes, "ieee"))


NOTATIONS = pytest.mark.parametrize("notation", ["4H~12V", "4H-4H-12V", "12V-4H-6V"])


def model_and_inputs(notation: str) -> tuple[Any, tuple[Tensor, ...]]:
    architecture = c.parse(notation)
    make: Any = c.density if architecture.context is None else c.prediction
    x = torch.randint(2, (7, 12), generator=torch.Generator().manual_seed(3))
    model = make(notation, generator=torch.Generator().manual_seed(0))
    return model, (x,) if architecture.context is None else (x, x[:, :6])


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Called, it has models score what is observed without its logits."""
    always = SimpleNamespace(suits=lambda x, weight: True, affine=affine.affine, FEW=0)
    return lambda: monkeypatch.setattr(layer, "affine", always)


@NOTATIONS
def test_models_are_scored_alike_with_logits_and_without(notation: str, unwritten: Any) -> None:
    model, inputs = model_and_inputs(notation)
    plain = c.evaluate(model, *inputs, samples=50, generator=torch.Generator().manual_seed(1))
    unwritten()
    found = c.evaluate(model, *inputs, samples=50, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(found.log_likelihood, plain.log_likelihood, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        sampled = model.sample(3, *inputs[:-1], generator=torch.Generator().manual_seed(2))
    assert set(sampled.unique().tolist()) <= {0.0, 1.0}


@NOTATIONS
def test_models_have_the_same_gradients_with_logits_and_without(notation: str, unwritten: Any) -> None:
    def gradients() -> tuple[Tensor, ...]:
        model, inputs = model_and_inputs(notation)  # anew, as a step moves what states are centred at
        estimate = c.estimate(
            model,
            *inputs,
            estimator=c.Pathwise(temperature=0.6, prior_temperature=0.5),
            samples=3,
            generator=torch.Generator().manual_seed(1),
        )
        return torch.autograd.grad(estimate.loss, list(model.parameters()))

    plain = gradients()
    unwritten()
    with mock.patch.object(layer.observed, "log_likelihood", wraps=observed.log_likelihood) as scored:
        torch.testing.assert_close(gradients(), plain, rtol=1e-4, atol=1e-6)
    assert scored.called


def test_logits_that_are_asked_for_have_their_gradient(unwritten: Any) -> None:
    model, (x,) = model_and_inputs("4H~12V")
    visible, state = model.p.visible, torch.randn(3, 7, 4)
    expected = torch.autograd.grad(visible(state).summed_log_prob(x.float(), 1).sum(), list(visible.parameters()))
    unwritten()
    bits = visible(state)
    assert isinstance(bits, layer.Unwritten)
    assert bits.sample((2,)).shape == (2, 3, 7, 12)  # which asks for them where no gradient is recorded
    for found in (bits.summed_log_prob(x.float(), 1), bits.log_prob(x.float()).sum(-1)):
        grads = torch.autograd.grad(found.sum(), list(visible.parameters()), retain_graph=True)
        torch.testing.assert_close(grads, expected, rtol=1e-4, atol=1e-5)


def test_functions_of_torch_differentiate_layers_without_logits(unwritten: Any) -> None:
    model, (x,) = model_and_inputs("4H-12V")
    state = torch.randn(7, 4)

    def score(state: Tensor) -> Tensor:
        return model.p.visible(state).summed_log_prob(x.float(), 1).sum()

    expected = torch.func.grad(score)(state)
    unwritten()
    torch.testing.assert_close(torch.func.grad(score)(state), expected, rtol=1e-4, atol=1e-5)


def weighing(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pulls, and rows of gradients and of states."""
    pull, by_state, state = (torch.randn(each, device=DEVICE) for each in (shape[:-1], shape, shape))
    return pull, by_state, state


@kernel
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 17, 33), (2, 9, 300), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_are_weighed_as_by_the_definition(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    pull, by_state, state = weighing(*shape)
    if dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("the interpreter takes the bits of a bfloat16 for a whole number")
    for given in ((pull, by_state.to(dtype), state.to(dtype)), (pull[:1].expand(shape[:2]), by_state, state)):
        found = fast("observed").weigh(*given, dtype)
        torch.testing.assert_close(found, naive.weigh(*given, dtype), rtol=0, atol=0)


@PATHS
def test_weighing_rows_is_an_operator(path: str) -> None:
    with taken(observed, path):
        opcheck(observed._weigh, (*weighing(2, 5, 3), torch.float32))
        programs = weighing(4, 2, 15, 3)
        found = vmap(lambda *each: observed._weigh(*each, torch.float32))(*programs)
        alone = [observed._weigh(*each, torch.float32) for each in zip(*programs, strict=True)]
        torch.testing.assert_close(found, tuple(torch.stack(each) for each in zip(*alone, strict=True)))


@PATHS
def test_states_without_a_gradient_are_not_multiplied_for_one(path: str) -> None:
    state, weight, bias, bits = given(2, 3, 5, 6, 4)
    leaves = weight.requires_grad_(), bias.requires_grad_()
    found = {}
    for needs in (True, False):
        with precise(path), mock.patch.object(observed, "multiplied", wraps=observed.multiplied) as products:
            likelihood = observed.log_likelihood(state.clone().requires_grad_(needs), *leaves, bits)
            found[needs] = torch.autograd.grad(likelihood.sin().sum(), leaves)
        assert products.call_count == 1 + needs  # that of the bias, and that of the state
    torch.testing.assert_close(found[True], found[False])
