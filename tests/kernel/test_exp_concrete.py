"""The ExpConcrete kernel is its definition, which is the distribution; so it is by the noise of the control."""

from collections.abc import Callable, Sequence
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.testing import assert_close

from concretely.distribution import (
    Concrete,
    ExpConcrete,
    ExpLogisticNormal,
    HypercubeConcrete,
    HypercubeLogisticNormal,
    LogisticNormal,
)
from concretely.functional import exp_concrete, exp_logistic_normal
from concretely.functional.philox import fractions
from concretely.functional.squashing import squashed
from concretely.kernel import tile
from tests.kernel import DEVICE, PATHS, gradients, kernel, launched, on, opcheck

# members, samples, units, n: one of all, odd ones, more than a tile, sums in parts, and several thousand categories
SIZES = [(1, 1, 1, 2), (1, 3, 7, 8), (3, 2, 5, 3), (2, 1, 70, 8), (1, 20, 1, 130), (1, 2, 3, 5_000)]
SQUASHES = ("none", "simplex", "cube")
CASES = [(*size, squash) for size in SIZES for squash in SQUASHES if squash != "cube" or not size[3] & (size[3] - 1)]


def typed(cases: Sequence[tuple[object, ...]]) -> list[object]:
    """All cases in float32, and those with odd sizes in narrower dtypes too; in float16 it is left to all tests."""
    odd = [case for case in cases if case[2] in (5, 7)]
    half = [pytest.param(*case, torch.float16, marks=pytest.mark.exhaustive) for case in odd]
    return [(*case, torch.float32) for case in cases] + [(*case, torch.bfloat16) for case in odd] + half


def given(members: int, units: int, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    logits = (3 * torch.randn(members, units, n, device=DEVICE)).to(dtype)
    temperature = torch.linspace(0.4, 1.1, members, dtype=torch.float64, device=DEVICE)
    return logits, temperature, torch.randint(-(2**62), 2**62, (members, 2), device=DEVICE)


by_both = pytest.mark.parametrize("normal", [False, True])


def module(normal: bool) -> ModuleType:
    """The functions of a node by its noise, which share their kernels."""
    return exp_logistic_normal if normal else exp_concrete


def noise(key: Tensor, samples: int, units: int, n: int, normal: bool = False) -> Tensor:
    """The noise of a draw in float64, from the same words."""
    places = -(-samples * units // 4)
    tail = fractions(key, 4 * places * n, torch.float32, normal)
    gumbel = -(-(-(tail * (1 - 2.0**-24)).double()).log1p()).log()
    drawn = torch.special.ndtri(tail.double().abs()).copysign(tail) if normal else gumbel
    return drawn.view(len(key), -1, n)[:, : samples * units].reshape(len(key), samples, units, n)


def law(logits: Tensor, temperature: Tensor, normal: bool) -> ExpConcrete | ExpLogisticNormal:
    """The distribution of a draw, in float64."""
    family = ExpLogisticNormal if normal else ExpConcrete
    return family(logits=logits.double().unsqueeze(1), temperature=temperature.view(-1, 1, 1), validate_args=False)


def assert_as_good(found: Tensor, definition: Tensor, truth: Tensor, truth_of_definition: Tensor | None = None) -> None:
    """Twice the error of the definition, from a truth of its own if it has one, is the most that a kernel may make."""
    # the interpreter rounds to bfloat16 towards zero
    slack = max(4 * torch.finfo(torch.float32).eps, torch.finfo(found.dtype).eps) * truth.abs().max()
    error = (definition - (truth if truth_of_definition is None else truth_of_definition)).abs().max()
    assert (found - truth).abs().max() <= 2 * error + slack


def true_slope(node: Tensor, temperature: Tensor, squash: str, by: Sequence[Tensor | None]) -> Tensor:
    """The gradient of the logits in float64 at nodes that were drawn, whose entries are rounded."""
    leaf = node.detach().double().requires_grad_()
    (by_node,) = gradients((1 * leaf, squashed(leaf, squash)), [leaf], by)
    slope = by_node - leaf.detach().exp() * by_node.sum(-1, keepdim=True)
    return slope.sum(1) / temperature.view(-1, 1, 1)


@by_both
@pytest.mark.parametrize(("members", "samples", "units", "n"), SIZES)
def test_the_definition_is_the_distribution(members: int, samples: int, units: int, n: int, normal: bool) -> None:
    logits, temperature, key = given(members, units, n)
    drawn, own = noise(key, samples, units, n, normal), law(logits, temperature, normal)
    node, _, log_density = module(normal).draw.definition(logits, temperature, key, samples, "none")
    assert_close(node, own.push(drawn).float(), rtol=1e-5, atol=1e-5)
    assert_close(module(normal).score.definition(node, logits, temperature), own.log_prob(node.double()).float())
    assert_close(log_density, own.log_prob_of_noise_(drawn).float(), rtol=1e-5, atol=1e-5)


@by_both
def test_values_are_those_of_the_distributions(normal: bool) -> None:
    logits, temperature, key = given(1, 9, 8)
    drawn, own = noise(key, 4, 9, 8, normal)[0], float(temperature[0])
    families = (LogisticNormal, HypercubeLogisticNormal) if normal else (Concrete, HypercubeConcrete)
    for squash, family in zip(("simplex", "cube"), families, strict=True):
        value = module(normal).draw.definition(logits, temperature, key, 4, squash)[1][0]
        assert_close(
            value, family(logits=logits[0].double(), temperature=own).push(drawn).float(), rtol=1e-5, atol=1e-6
        )


@PATHS
@pytest.mark.parametrize(("members", "samples", "units", "n"), SIZES[:5])
def test_hard_values_are_those_of_their_nodes_with_the_gradient_of_soft_ones(
    members: int, samples: int, units: int, n: int, path: str
) -> None:
    logits, temperature, key = given(members, units, n)
    slopes = []
    with on(path, "exp_concrete"):
        for squash in ("simplex", "one-hot"):
            leaf = logits.clone().requires_grad_()
            node, value, _ = exp_concrete.draw(leaf, temperature, key, samples, squash)
            by = torch.linspace(-1, 1, value.numel(), device=DEVICE).view(value.shape)
            slopes.append(torch.autograd.grad(value, leaf, by)[0])
    assert torch.equal(value, torch.nn.functional.one_hot(node.argmax(-1), n).float())
    torch.testing.assert_close(*slopes)


@kernel
@by_both
@pytest.mark.parametrize(("members", "samples", "units", "n", "squash", "dtype"), typed(CASES))
def test_the_kernel_draws_its_definition(
    members: int, samples: int, units: int, n: int, squash: str, dtype: torch.dtype, normal: bool
) -> None:
    logits, temperature, key = given(members, units, n, dtype)
    drawn, own, draw = noise(key, samples, units, n, normal), law(logits, temperature, normal), module(normal).draw
    truth = own.push(drawn)
    arguments = logits.requires_grad_(), temperature, key, samples, squash
    with launched("exp_concrete"):
        found, definition = draw(*arguments), draw.definition(*arguments)
        assert_as_good(found[0], definition[0], truth)
        assert_as_good(found[2], definition[2], own.log_prob_of_noise_(drawn))
        assert not found[2].requires_grad  # the logits cancel in it
        assert not definition[2].requires_grad
        if squash == "none":
            assert found[1].shape == definition[1].shape == (members, 0)
        else:
            assert_as_good(found[1], definition[1], squashed(truth, squash))
        by_node = torch.randn_like(found[0])
        by_value = None if squash == "none" else torch.randn_like(found[1])
        for by in (by_node, by_value), (by_node, None), (None, by_value):
            if by != (None, None):
                slopes = [gradients(each[:2], [logits], by, retain_graph=True)[0] for each in (found, definition)]
                wide = [None if each is None else each.double() for each in by]
                truths = [true_slope(each[0], temperature, squash, wide) for each in (found, definition)]
                assert_as_good(*slopes, *truths)
                assert slopes[0].dtype == dtype


@kernel
@by_both
@pytest.mark.parametrize(("members", "samples", "units", "n", "dtype"), typed(SIZES))
def test_the_kernel_scores_as_its_definition(
    members: int, samples: int, units: int, n: int, dtype: torch.dtype, normal: bool
) -> None:
    logits, temperature, key = given(members, units, n, dtype)
    node = exp_concrete.draw.definition(2 * logits, temperature, key, samples, "none")[0].to(dtype)
    narrow, wide = ([each.to(to).requires_grad_() for each in (node, logits)] for to in (dtype, torch.float64))
    score, truth = module(normal).score, law(wide[1], temperature, normal).log_prob(wide[0])
    by = torch.randn(members, samples, units, device=DEVICE)
    with launched("exp_concrete"):
        found, definition = score(*narrow, temperature), score.definition(*narrow, temperature)
        assert_as_good(found, definition, truth)
        slopes = [
            torch.autograd.grad(each, leaves, by, retain_graph=True)
            for each, leaves in ((found, narrow), (definition, narrow), (truth, wide))
        ]
        for each in zip(*slopes, strict=True):
            assert_as_good(*each)
            assert each[0].dtype == dtype
        for k in range(2):
            leaves = [leaf if k == i else leaf.detach() for i, leaf in enumerate(narrow)]
            (slope,) = torch.autograd.grad(score(*leaves, temperature), narrow[k], by)
            assert_close(slope, slopes[0][k])  # summed in another order where the tiles are others


@kernel
def test_the_kernel_takes_members_that_share_and_gradients_that_are_expanded() -> None:
    shared = [each[:1].expand(3, *each.shape[1:]) for each in given(1, 5, 4)]
    whole = [each.contiguous() for each in shared]
    by = torch.ones((), device=DEVICE).expand(3, 2, 5)
    with launched("exp_concrete"):
        pairs = [exp_concrete.draw(*each, 2, "cube") for each in (shared, whole)]
        node = pairs[0][0].requires_grad_()
        for each, slope in (shared, by), (whole, by.contiguous()):
            logits = each[0].detach().requires_grad_()
            scores = exp_concrete.score(node, logits, each[1])
            pairs.append(torch.autograd.grad(scores, (node, logits), slope))
    for one, other in ((pairs[0], pairs[1]), (pairs[2], pairs[3])):
        for each, own in zip(one, other, strict=True):
            assert torch.equal(each, own)


@PATHS
@by_both
def test_large_logits_and_low_temperatures_stay_finite(normal: bool, path: str) -> None:
    _, _, key = given(1, 1, 1)
    logits = torch.tensor([[[1e4, 0.0, -1e4]]], device=DEVICE)
    temperature = torch.full((1,), 1e-3, dtype=torch.float64, device=DEVICE)
    with on(path, "exp_concrete"):
        node, value, log_density = module(normal).draw(logits, temperature, key, 5, "simplex")
        found = module(normal).score(node, logits, temperature)
    assert all(each.isfinite().all() for each in (node, value, log_density))
    assert (value > 0).all()
    drawn, truth = noise(key, 5, 1, 3, normal), law(logits, temperature, normal)
    assert_close(found, truth.log_prob(node.double()).float())
    assert_close(log_density, truth.log_prob_of_noise_(drawn).float())


@kernel
@by_both
@pytest.mark.parametrize("squash", SQUASHES)
def test_gradients_have_gradients(squash: str, normal: bool) -> None:
    logits, temperature, key = given(2, 3, 4)
    logits.requires_grad_()

    def second() -> Tensor:
        node, value, _ = module(normal).draw(logits, temperature, key, 2, squash)
        score = module(normal).score(2 * node, logits, temperature)
        loss = node.square().sum() + (value if squash != "none" else node).pow(3).sum() + score.sum()
        first = torch.autograd.grad(loss, logits, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), logits)[0]

    with launched("exp_concrete"):
        found = second()
    with launched():
        assert_close(found, second(), rtol=1e-3, atol=1e-3)


def batch(squash: str, normal: bool = False) -> Callable[..., Tensor]:
    def loss(logits: Tensor, prior: Tensor, temperature: Tensor, key: Tensor) -> Tensor:
        node, value, log_density = module(normal).draw(logits, temperature, key, 3, squash)
        return (module(normal).score(node, prior, temperature) - log_density).sum() + value.square().sum()

    return loss


@PATHS
@pytest.mark.parametrize("squash", SQUASHES)
def test_a_batch_of_programs_is_a_loop(squash: str, path: str) -> None:
    logits, temperature, key = (each.unsqueeze(1) for each in given(2, 3, 4))
    prior = torch.randn(1, 3, 4, device=DEVICE)
    logits.requires_grad_(), prior.requires_grad_()
    loss = batch(squash)
    with on(path, "exp_concrete"):
        found = vmap(loss, in_dims=(0, None, 0, 0))(logits, prior, temperature, key)
        looped = torch.stack([loss(logits[k], prior, temperature[k], key[k]) for k in range(2)])
        assert_close(found, looped)
        pairs = [torch.autograd.grad(each.sum(), (logits, prior)) for each in (found, looped)]
    assert_close(*pairs)


@kernel
@pytest.mark.parametrize("path", [pytest.param("plain", marks=pytest.mark.exhaustive), "fast"])
@pytest.mark.parametrize("normal", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_programs_compile(normal: bool, path: str) -> None:
    logits, temperature, key = (each.unsqueeze(1) for each in given(2, 3, 4))
    prior = torch.randn(1, 3, 4, device=DEVICE)
    logits.requires_grad_(), prior.requires_grad_()
    program = vmap(batch("cube", normal), in_dims=(0, None, 0, 0))
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    with on(path, "exp_concrete"):
        found, eager = (each(logits, prior, temperature, key) for each in (compiled, program))
        assert_close(found, eager)
        pairs = [torch.autograd.grad(each.sum(), (logits, prior)) for each in (found, eager)]
    assert_close(*pairs)


@kernel
@pytest.mark.parametrize(
    ("squash", "normal"),
    [("cube", False)]
    + [
        pytest.param(*each, marks=pytest.mark.exhaustive)
        for each in (("none", True), ("none", False), ("simplex", False))
    ],
)
def test_operators_keep_the_rules_of_operators(squash: str, normal: bool) -> None:
    logits, temperature, key = given(2, 3, 4)
    logits.requires_grad_()
    with launched("exp_concrete"):
        opcheck(module(normal).draw, (logits, temperature, key, 2, squash, 1))
        node = module(normal).draw(logits.detach(), temperature, key, 2, "none")[0].requires_grad_()
        opcheck(module(normal).score, (node, logits, temperature, 1))


def test_tiles_cover_all_rows() -> None:
    for members, samples, units, n in (*SIZES, (1, 10**6, 30, 8), (1, 1, 2**22, 8), (2, 5000, 1, 2), (1, 9, 3, 8192)):
        for least in 1, 16:
            found = tile.unit_tile(members, samples, units, n, least=least)
            stride = found.samples * found.steps
            assert found.units * found.grid[0] >= units
            assert stride * found.grid[1] >= samples > stride * (found.grid[1] - 1)
        for length in 1, units:
            drawn = tile.draw_tile(members, samples * units, n, length)
            assert drawn.length in (1, length)
            assert drawn.programs * (drawn.units if drawn.length == 1 else length) >= -(-samples * units // 4)
            scored = tile.score_tile(members, samples, units, n, length)
            assert scored.samples * scored.steps * scored.grid[1] >= samples
            assert scored.length in (1, length)
            assert scored.grid[1] < 2**16
            for each in drawn, scored:
                assert each.width >= n
                assert 1 <= each.warps <= 16
            assert drawn.units * drawn.width <= max(512, drawn.width)
    assert not tile.fits(1, 8193)
