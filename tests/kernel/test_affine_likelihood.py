"""Likelihoods without logits are those with, in value and gradient, on either path, batched, and as models use them."""

import math
import os
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import concretely as c
from concretely.functional import arithmetic
from concretely.functional.bernoulli import affine_log_likelihood
from concretely.kernel.deferred import DeferredGradient, deferred_gradients, materialized
from tests.kernel import DEVICE, PATHS, fast, kernel, opcheck, precise

SHAPES = pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1), (3, 3, 5, 5, 7), (1, 2, 3, 130, 200), (2, 1, 19, 7, 33), (1, 1, 1, 784, 7)], ids=str
)
"""Members, samples, data points, units and inputs: one, odd ones, more than a block of each."""


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter works on one element after the other, and on those past the end too."""
    if os.environ.get("CONCRETELY_UNCHECKED") and DEVICE == "cpu":
        for name, size in (("HIGH", 16), ("WIDE", 64), ("WIDE_WITH_SLOPES", 32)):
            monkeypatch.setattr(fast("affine_likelihood"), name, size)


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
    return c.Bernoulli(logits=logits).log_prob(bits.double().unsqueeze(1).expand_as(logits)).sum(-1)


def pulled(found: Tensor, by: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradients of what is not linear in the output."""
    return torch.autograd.grad((found / 10).sin().sum(), by, retain_graph=True)


def slope_of(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor) -> Tensor:
    """What the log mass gains with each logit: a bit less its probability."""
    logits = torch.einsum("rmbi,rui->rmbu", state.double(), weight.double()) + bias.double()[:, None, None]
    return (bits.double().unsqueeze(1) - logits.sigmoid()).flatten(1, 2).float()


def scored(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor, slopes: bool = True, **how: Any) -> Any:
    """What the kernel finds."""
    return fast("affine_likelihood").affine_log_likelihood(state, weight, bias, bits, slopes, "ieee", **how)


def log_likelihood(*given: Tensor) -> Tensor:
    """The log likelihood of every member."""
    return affine_log_likelihood(*given)[0]


@pytest.fixture(autouse=True)
def _any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is for many rows, which would take long here."""
    monkeypatch.setattr(arithmetic, "FEW", 0)


@SHAPES
def test_the_definition_is_the_variable_of_the_library(shape: tuple[int, ...]) -> None:
    leaves, bits = leaves_of(*shape)
    truth = true_log_likelihood(*leaves, bits)
    found, slope = affine_log_likelihood.definition(*leaves, bits, True)
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(slope, slope_of(*leaves, bits), rtol=1e-4, atol=1e-5)


@kernel
@SHAPES
def test_kernel_is_its_definition(shape: tuple[int, ...]) -> None:
    state, weight, bias, bits = given(*shape)
    truth = true_log_likelihood(state, weight, bias, bits).float()
    found, slope = scored(state, weight, bias, bits)
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(slope, slope_of(state, weight, bias, bits), rtol=1e-4, atol=1e-5)


@kernel
@pytest.mark.parametrize("samples", [1, 2])
def test_bits_may_be_of_any_dtype_and_slopes_left_out(samples: int) -> None:
    shape = (2, samples, 3, 5, 7)
    *others, bits = given(*shape)
    found, _ = scored(*others, bits)
    for dtype in (torch.float32, torch.float64, torch.int64):
        without, slope = scored(*others, bits.to(dtype), slopes=False)
        assert without.equal(found)
        assert slope.shape == (2, 0)


@kernel
def test_members_may_share_all_they_have_and_lie_in_pieces() -> None:
    state, weight, bias, bits = given(2, 2, 3, 5, 7)
    shared = [each[:1].expand_as(each) for each in (state, weight, bias, bits)]
    pieces = [each.mT.contiguous().mT for each in (state, weight, bias, bits)]
    for each in (shared, pieces):
        found, slope = scored(*each)
        torch.testing.assert_close(found, true_log_likelihood(*each).float(), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(slope, slope_of(*each), rtol=1e-4, atol=1e-5)


@kernel
@pytest.mark.parametrize("size", [(16, 128), (64, 64), (32, 16), (128, 64)], ids=str)
def test_tiles_of_all_sizes_find_the_same(size: tuple[int, int]) -> None:
    shape = (1, 2, 3, 130, 40)
    state, weight, bias, bits = given(*shape)
    tile = fast("affine").Tile(*size, deep=32, warps=4, stages=3)
    found, slope = scored(state, weight, bias, bits, chosen=tile)
    torch.testing.assert_close(found, true_log_likelihood(state, weight, bias, bits).float(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(slope, slope_of(state, weight, bias, bits), rtol=1e-4, atol=1e-5)
    found, _ = scored(0 * state, weight, 0 * bias, bits, slopes=False, chosen=tile)
    torch.testing.assert_close(found, torch.full_like(found, -130 * math.log(2)), rtol=1e-6, atol=0)


@kernel
def test_bits_that_are_certain_or_impossible_are_scored_exactly() -> None:
    bits = torch.tensor([[[True, False, True], [False, True, False]]], device=DEVICE)
    bias = torch.tensor([[1e4, -1e4, 3e4]], device=DEVICE)
    state, weight = torch.zeros(1, 1, 2, 1, device=DEVICE), torch.zeros(1, 3, 1, device=DEVICE)
    found, slope = scored(state, weight, bias, bits)
    assert found.tolist() == [[[0, -5e4]]]
    assert slope.tolist() == [[[0, 0, 0], [-1, 1, -1]]]


@kernel
def test_what_is_no_number_stays_so() -> None:
    state, weight, bias, bits = given(1, 2, 3, 4, 5)
    bias[0, 2] = math.nan
    found, slope = scored(state, weight, bias, bits)
    assert found.isnan().all()
    assert slope.isnan().any((0, 1)).tolist() == [False, False, True, False]


@PATHS
@SHAPES
def test_gradients_are_those_of_the_library(shape: tuple[int, ...], path: str) -> None:
    leaves, bits = leaves_of(*shape)
    with precise(path):
        found = log_likelihood(*leaves, bits)
        grads = (*pulled(found, leaves), *pulled(found, leaves[1:]), *pulled(found, leaves[:1]))
    truth = true_log_likelihood(*leaves, bits)
    true = (*pulled(truth, leaves), *pulled(truth, leaves[1:]), *pulled(truth, leaves[:1]))
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(grads, true, rtol=1e-3, atol=1e-4)


@kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_slopes_and_states_may_be_as_coarse_as_products(dtype: torch.dtype) -> None:
    (state, *others), bits = leaves_of(2, 3, 4, 5, 6)
    leaves = (state.detach().to(dtype).requires_grad_(), *others)
    slope = slope_of(*leaves, bits).bfloat16()
    by = torch.randn(2, 3, 4, device=DEVICE)
    inputs, needs = (*leaves, bits, True, "bfloat16", False), (True, True, True, False, False, False, False)
    scale_rows = fast("affine_likelihood").scale_rows
    if DEVICE == "cpu":  # the interpreter takes the bits of a bfloat16 for a whole number

        def scale_rows(pull: Tensor, by_state: Tensor, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
            pull = pull.unsqueeze(-1)
            return (pull * by_state).to(state.dtype), (pull * state).to(dtype)

    with torch.no_grad(), mock.patch.object(fast("affine_likelihood"), "scale_rows", scale_rows):
        grads = fast("affine_likelihood").affine_log_likelihood_backward((by, None), needs, inputs, (by, slope))
    assert [grad.dtype for grad in grads] == [leaf.dtype for leaf in leaves]
    wide = [grad.float() for grad in grads]
    true = torch.autograd.grad(true_log_likelihood(*leaves, bits), leaves, by.double())
    torch.testing.assert_close(wide, [grad.float() for grad in true], rtol=0.03, atol=0.06)
    assert affine_log_likelihood.definition(*leaves, bits, True, "bfloat16")[1].dtype == torch.bfloat16


@kernel
def test_slopes_are_written_only_where_a_gradient_is_asked_for() -> None:
    leaves, bits = leaves_of(2, 1, 3, 4, 5)
    constants = [leaf.detach() for leaf in leaves]
    module = fast("affine_likelihood")
    with precise("fast"), mock.patch.object(module, "affine_log_likelihood", wraps=module.affine_log_likelihood) as run:
        log_likelihood(*leaves, bits)
        log_likelihood(*constants, bits)
        log_likelihood(*constants[:2], leaves[2], bits)
        with torch.no_grad():
            log_likelihood(*leaves, bits)
        vmap(log_likelihood)(*(each.unsqueeze(1) for each in (*leaves, bits)))  # which does not tell
    assert [call.args[4] for call in run.call_args_list] == [True, False, True, False, True]


@PATHS
def test_a_batch_of_programs_is_a_loop(path: str) -> None:
    leaves, bits = leaves_of(4, 2, 3, 4, 5)
    with precise(path):
        for dims in ((0, 0, 0), (None, 0, 0), (0, None, None)):
            pairs = list(zip(leaves, dims, strict=True))
            batch = [each[:1] if dim is None else each.unsqueeze(1) for each, dim in pairs]
            together = vmap(log_likelihood, (*dims, 0))(*batch, bits.unsqueeze(1))
            each_one = ([each[:1] if dim is None else each[k : k + 1] for each, dim in pairs] for k in range(4))
            alone = torch.stack([log_likelihood(*each, bits[k : k + 1]) for k, each in enumerate(each_one)])
            torch.testing.assert_close(together, alone)
            torch.testing.assert_close(*(pulled(each, leaves) for each in (together, alone)))


@kernel
def test_the_gradient_of_the_weight_may_stay_factors() -> None:
    leaves, bits = leaves_of(3, 2, 2, 30, 20)
    with precise("fast"):
        expected = torch.autograd.grad(log_likelihood(*leaves, bits).square().sum(), leaves)
        with deferred_gradients():
            found = torch.autograd.grad(log_likelihood(*leaves, bits).square().sum(), leaves)
    assert [isinstance(each, DeferredGradient) for each in found] == [False, True, False]
    torch.testing.assert_close(tuple(materialized(each) for each in found), expected)


@PATHS
def test_gradients_can_be_differentiated(path: str) -> None:
    leaves, bits = leaves_of(2, 2, 3, 4, 5)

    def curvature(found: Tensor) -> tuple[Tensor, ...]:
        grads = torch.autograd.grad((found / 10).sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in grads), leaves)

    with precise(path), deferred_gradients():
        found = curvature(log_likelihood(*leaves, bits))
    torch.testing.assert_close(found, curvature(true_log_likelihood(*leaves, bits)), rtol=1e-3, atol=1e-4)


@pytest.mark.unchecked
def test_likelihoods_compile() -> None:
    leaves, bits = leaves_of(2, 3, 4, 5, 6)
    compiled = torch.compile(log_likelihood, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(*(pulled(each(*leaves, bits), leaves) for each in (log_likelihood, compiled)))


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize("slopes", [True, False])
def test_rules_of_the_operator_hold(slopes: bool, path: str) -> None:
    leaves, bits = leaves_of(2, 3, 4, 5, 6)
    leaves = leaves if slopes else tuple(leaf.detach() for leaf in leaves)
    with precise(path):
        opcheck(affine_log_likelihood, (*leaves, bits, slopes, "ieee", False))


NOTATIONS = pytest.mark.parametrize("notation", ["4H~12V", "4H-4H-12V", "12V-4H-6V"])


def model_and_inputs(notation: str) -> tuple[Any, tuple[Tensor, ...]]:
    architecture = c.parse(notation)
    make: Any = c.density if architecture.context is None else c.prediction
    x = torch.randint(2, (7, 12), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    model = make(notation, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    return model, (x,) if architecture.context is None else (x, x[:, :6])


@kernel
@NOTATIONS
def test_models_are_scored_alike_with_logits_and_without(notation: str) -> None:
    model, inputs = model_and_inputs(notation)

    def evaluated() -> c.Likelihood:
        return c.evaluate(model, *inputs, samples=50, generator=torch.Generator(DEVICE).manual_seed(1))

    with precise("plain"):
        plain = evaluated()
    with precise("fast"):
        found = evaluated()
        with torch.no_grad():
            sampled = model.sample(3, *inputs[:-1], generator=torch.Generator(DEVICE).manual_seed(2))
    torch.testing.assert_close(found.log_likelihood, plain.log_likelihood, rtol=1e-5, atol=1e-5)
    assert set(sampled.unique().tolist()) <= {0.0, 1.0}


@kernel
@NOTATIONS
def test_models_have_the_same_gradients_with_logits_and_without(notation: str) -> None:
    def gradients() -> tuple[Tensor, ...]:
        model, inputs = model_and_inputs(notation)  # anew, as a step moves what states are centred at
        estimate = c.estimate(
            model,
            *inputs,
            estimator=c.Pathwise(temperature=0.6, prior_temperature=0.5),
            samples=3,
            generator=torch.Generator(DEVICE).manual_seed(1),
        )
        return torch.autograd.grad(estimate.loss, list(model.parameters()))

    with precise("plain"):
        plain = gradients()
    module = fast("affine_likelihood")
    with (
        precise("fast"),
        mock.patch.object(module, "affine_log_likelihood", wraps=module.affine_log_likelihood) as kernel,
    ):
        found = gradients()
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-6)
    assert kernel.called


@kernel
def test_logits_that_are_asked_for_have_their_gradient() -> None:
    model, (x,) = model_and_inputs("4H~12V")
    visible, state = model.p.visible, torch.randn(3, 7, 4, device=DEVICE)
    with precise("plain"):
        expected = torch.autograd.grad(visible(state).summed_log_prob(x.float(), 1).sum(), list(visible.parameters()))
    with precise("fast"):
        bits = visible(state)
        assert bits.sample((2,)).shape == (2, 3, 7, 12)  # which asks for them where no gradient is recorded
        for found in (bits.summed_log_prob(x.float(), 1), bits.log_prob(x.float()).sum(-1)):
            grads = torch.autograd.grad(found.sum(), list(visible.parameters()), retain_graph=True)
            torch.testing.assert_close(grads, expected, rtol=1e-4, atol=1e-5)


@kernel
def test_functions_of_torch_differentiate_layers_without_logits() -> None:
    model, (x,) = model_and_inputs("4H-12V")
    state = torch.randn(7, 4, device=DEVICE)

    def score(state: Tensor) -> Tensor:
        return model.p.visible(state).summed_log_prob(x.float(), 1).sum()

    with precise("plain"):
        expected = torch.func.grad(score)(state)
    with precise("fast"):
        found = torch.func.grad(score)(state)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


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
        found = fast("affine_likelihood").scale_rows(*given, dtype)
        pull = given[0].unsqueeze(-1)
        expected = (pull * given[1]).to(given[2].dtype), (pull * given[2]).to(dtype)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@kernel
def test_states_without_a_gradient_are_not_multiplied_for_one() -> None:
    state, weight, bias, bits = given(2, 3, 5, 6, 4)
    leaves = weight.requires_grad_(), bias.requires_grad_()
    module = fast("affine_likelihood")
    found = {}
    for needs in (True, False):
        with precise("fast"), mock.patch.object(module, "multiplied", wraps=module.multiplied) as products:
            likelihood = log_likelihood(state.clone().requires_grad_(needs), *leaves, bits)
            found[needs] = torch.autograd.grad(likelihood.sin().sum(), leaves)
        assert products.call_count == 1 + needs  # that of the bias, and that of the state
    torch.testing.assert_close(found[True], found[False])
