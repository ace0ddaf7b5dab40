"""The ExpConcrete kernel is its definition, which is the distribution; so it is by the noise of the control."""

import os
from collections.abc import Callable, Sequence

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
from concretely.distribution.hypercube import corners
from concretely.functional.edge import smallest
from concretely.kernel import exp_concrete
from concretely.kernel.category import tile
from concretely.kernel.exp_concrete import Squash, naive
from concretely.kernel.philox import naive as philox
from tests.kernel import opcheck

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NO_TRITON = not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"


def needs_triton(test: Callable[..., None]) -> Callable[..., None]:
    """Leave a test to where kernels run; the checks of types would hide them from their compiler."""
    reason = "there is neither a GPU nor, with TRITON_INTERPRET=1, an interpreter"
    return pytest.mark.unchecked(pytest.mark.skipif(NO_TRITON, reason=reason)(test))


# members, samples, units, n: one of all, odd ones, more than a tile, sums in parts, and several thousand categories
SIZES = [(1, 1, 1, 2), (1, 3, 7, 8), (3, 2, 5, 3), (2, 1, 70, 8), (1, 20, 1, 130), (1, 2, 3, 5_000)]
SQUASHES: tuple[Squash, ...] = ("none", "simplex", "cube")
CASES = [(*size, squash) for size in SIZES for squash in SQUASHES if squash != "cube" or not size[3] & (size[3] - 1)]


def typed(cases: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """All cases in float32, and those with odd sizes in narrower dtypes too."""
    narrow = [(*case, dtype) for case in cases if case[2] in (5, 7) for dtype in (torch.float16, torch.bfloat16)]
    return [(*case, torch.float32) for case in cases] + narrow


def given(members: int, units: int, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    logits = (3 * torch.randn(members, units, n, device=DEVICE)).to(dtype)
    temperature = torch.linspace(0.4, 1.1, members, dtype=torch.float64, device=DEVICE)
    return logits, temperature, torch.randint(-(2**62), 2**62, (members, 2), device=DEVICE)


by_both = pytest.mark.parametrize("normal", [False, True])


def noise(key: Tensor, samples: int, units: int, n: int, normal: bool = False) -> Tensor:
    """The noise of a draw in float64, from the same words."""
    places = philox.quarter(samples * units)
    tail = philox.fractions(key, 4 * places * n, torch.float32, normal)
    gumbel = -(-(-(tail * (1 - 2.0**-24)).double()).log1p()).log()
    drawn = torch.special.ndtri(tail.double().abs()).copysign(tail) if normal else gumbel
    return drawn.view(len(key), -1, n)[:, : samples * units].reshape(len(key), samples, units, n)


def law(logits: Tensor, temperature: Tensor, normal: bool) -> ExpConcrete | ExpLogisticNormal:
    """The distribution of a draw, in float64."""
    family = ExpLogisticNormal if normal else ExpConcrete
    return family(logits.double().unsqueeze(1), temperature.view(-1, 1, 1), validate_args=False)


def assert_as_good(found: Tensor, definition: Tensor, truth: Tensor) -> None:
    """Twice the error of the definition is the most that a kernel may make."""
    # the interpreter rounds to bfloat16 towards zero
    slack = max(4 * torch.finfo(torch.float32).eps, torch.finfo(found.dtype).eps) * truth.abs().max()
    assert (found - truth).abs().max() <= 2 * (definition - truth).abs().max() + slack


@by_both
@pytest.mark.parametrize(("members", "samples", "units", "n"), SIZES)
def test_the_definition_is_the_distribution(members: int, samples: int, units: int, n: int, normal: bool) -> None:
    logits, temperature, key = given(members, units, n)
    drawn = noise(key, samples, units, n, normal)
    node, _, log_density = naive.draw(logits, temperature, key, samples, "none", normal=normal)
    assert_close(node, law(logits, temperature, normal).push(drawn).float(), rtol=1e-5, atol=1e-5)
    assert_close(
        naive.score(node, logits, temperature, normal=normal),
        law(logits, temperature, normal).log_prob(node.double()).float(),
    )
    assert_close(log_density, law(logits, temperature, normal).log_prob_of_noise_(drawn).float(), rtol=1e-5, atol=1e-5)


@by_both
def test_values_are_those_of_the_distributions(normal: bool) -> None:
    logits, temperature, key = given(1, 9, 8)
    drawn, warmth = noise(key, 4, 9, 8, normal)[0], float(temperature[0])
    families = (LogisticNormal, HypercubeLogisticNormal) if normal else (Concrete, HypercubeConcrete)
    for squash, family in zip(("simplex", "cube"), families, strict=True):
        value = naive.draw(logits, temperature, key, 4, squash, normal=normal)[1][0]
        assert_close(value, family(logits[0].double(), warmth).push(drawn).float(), rtol=1e-5, atol=1e-6)


def test_constants_are_those_of_the_distributions() -> None:
    assert smallest(torch.float32) == naive.SMALLEST
    place = {"dtype": torch.float32, "device": torch.device(DEVICE)}
    assert torch.equal(naive.corners(16, **place), corners(16, **place))


@needs_triton
@by_both
@pytest.mark.parametrize(("members", "samples", "units", "n", "squash", "dtype"), typed(CASES))
def test_the_kernel_draws_its_definition(
    members: int, samples: int, units: int, n: int, squash: Squash, dtype: torch.dtype, normal: bool
) -> None:
    triton = pytest.importorskip("concretely.kernel.exp_concrete.triton")
    logits, temperature, key = given(members, units, n, dtype)
    node, value, log_density = triton.draw(logits, temperature, key, samples, squash, normal=normal)
    definition = naive.draw(logits, temperature, key, samples, squash, normal=normal)
    drawn = noise(key, samples, units, n, normal)
    truth = law(logits, temperature, normal).push(drawn)
    assert_as_good(node, definition[0], truth)
    assert_as_good(log_density, definition[2], law(logits, temperature, normal).log_prob_of_noise_(drawn))
    if squash == "none":
        assert value.shape == (members, 0)
    else:
        assert_as_good(value, definition[1], naive.squashed(truth, squash))

    by_node = torch.randn_like(node)
    by_value = None if squash == "none" else torch.randn_like(value)
    for by in (by_node, by_value), (by_node, None), (None, by_value):
        if by != (None, None):
            pulled = triton.draw_backward(*by, node, temperature, squash, dtype)
            wide = (None if each is None else each.double() for each in by)
            truth = naive.draw_backward(*wide, node.double(), temperature, squash, torch.float64)
            assert_as_good(pulled, naive.draw_backward(*by, node, temperature, squash, dtype), truth)
            assert pulled.dtype == dtype


@needs_triton
@by_both
@pytest.mark.parametrize(("members", "samples", "units", "n", "dtype"), typed(SIZES))
def test_the_kernel_scores_as_its_definition(
    members: int, samples: int, units: int, n: int, dtype: torch.dtype, normal: bool
) -> None:
    triton = pytest.importorskip("concretely.kernel.exp_concrete.triton")
    logits, temperature, key = given(members, units, n, dtype)
    node = naive.draw(2 * logits, temperature, key, samples, "none")[0].to(dtype)
    truth = law(logits, temperature, normal).log_prob(node.double())
    found = triton.score(node, logits, temperature, normal=normal)
    assert_as_good(found, naive.score(node, logits, temperature, normal=normal), truth)
    by = torch.randn_like(found)
    pulled = triton.score_backward(by, node, logits, temperature, True, True, normal=normal)
    definition = naive.score_backward(by, node, logits, temperature, True, True, normal=normal)
    doubled = (each.double() for each in (by, node, logits))
    wide = naive.score_backward(*doubled, temperature, True, True, normal=normal)
    for each, naively, true, like in zip(pulled, definition, wide, (node, logits), strict=True):
        assert_as_good(each, naively, true)
        assert each.dtype == dtype
        assert each.shape == like.shape
    for needs in (True, False), (False, True):
        for each, whole, need in zip(
            triton.score_backward(by, node, logits, temperature, *needs, normal=normal), pulled, needs, strict=True
        ):
            # summed in another order where the tiles are others
            assert_close(each, whole) if need else None
            assert each.shape == (whole.shape if need else (members, 0))


@needs_triton
def test_the_kernel_takes_members_that_share_and_gradients_that_are_expanded() -> None:
    triton = pytest.importorskip("concretely.kernel.exp_concrete.triton")
    logits, temperature, key = (each[:1].expand(3, *each.shape[1:]) for each in given(1, 5, 4))
    whole = [each.contiguous() for each in (logits, temperature, key)]
    for shared, own in zip(
        triton.draw(logits, temperature, key, 2, "cube"), triton.draw(*whole, 2, "cube"), strict=True
    ):
        assert torch.equal(shared, own)
    node = triton.draw(logits, temperature, key, 2, "none")[0]
    by = torch.ones((), device=DEVICE).expand(3, 2, 5)
    for shared, own in zip(
        triton.score_backward(by, node, logits, temperature, True, True),
        triton.score_backward(by.contiguous(), node, whole[0], whole[1], True, True),
        strict=True,
    ):
        assert torch.equal(shared, own)


@needs_triton
@by_both
def test_large_logits_and_low_temperatures_stay_finite(normal: bool) -> None:
    triton = pytest.importorskip("concretely.kernel.exp_concrete.triton")
    _, _, key = given(1, 1, 1)
    logits = torch.tensor([[[1e4, 0.0, -1e4]]], device=DEVICE)
    temperature = torch.full((1,), 1e-3, dtype=torch.float64, device=DEVICE)
    for draw in naive.draw, triton.draw:
        node, value, log_density = draw(logits, temperature, key, 5, "simplex", normal=normal)
        assert all(each.isfinite().all() for each in (node, value, log_density))
        assert (value > 0).all()
    drawn = noise(key, 5, 1, 3, normal)
    found, truth = triton.score(node, logits, temperature, normal=normal), law(logits, temperature, normal)
    assert_close(found, truth.log_prob(node.double()).float())
    assert_close(log_density, truth.log_prob_of_noise_(drawn).float())


@by_both
@pytest.mark.parametrize(("members", "samples", "units", "n", "squash"), CASES)
def test_gradients_are_those_of_the_definition(
    members: int, samples: int, units: int, n: int, squash: Squash, normal: bool
) -> None:
    logits, temperature, key = given(members, units, n)
    logits.requires_grad_()

    def gradient(node: Tensor, value: Tensor) -> Tensor:
        moved = value if squash != "none" else node
        torch.manual_seed(1)
        loss = (torch.randn_like(node) * node).sum() + (moved.square() * torch.randn_like(moved)).sum()
        return torch.autograd.grad(loss, logits)[0]

    found, definition = (
        gradient(*draw(logits, temperature, key, samples, squash, normal=normal)[:2])
        for draw in (exp_concrete.draw, naive.draw)
    )
    assert_close(found, definition, rtol=1e-4, atol=1e-4)

    node = naive.draw(-logits, temperature, key, samples, "none", normal=normal)[0].detach().requires_grad_()
    by = torch.randn(members, samples, units, device=DEVICE)
    pairs = (
        torch.autograd.grad((by * score(node, logits, temperature, normal=normal)).sum(), (node, logits))
        for score in (exp_concrete.score, naive.score)
    )
    for each, other in zip(*pairs, strict=True):
        assert_close(each, other, rtol=1e-4, atol=1e-4)


@by_both
@pytest.mark.parametrize("squash", SQUASHES)
def test_gradients_have_gradients(squash: Squash, normal: bool) -> None:
    logits, temperature, key = given(2, 3, 4)
    logits.requires_grad_()

    def second(node: Tensor, value: Tensor, score: Tensor) -> Tensor:
        loss = node.square().sum() + (value if squash != "none" else node).pow(3).sum() + score.sum()
        first = torch.autograd.grad(loss, logits, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), logits)[0]

    ours = exp_concrete.draw(logits, temperature, key, 2, squash, normal=normal)[:2]
    definition = naive.draw(logits, temperature, key, 2, squash, normal=normal)[:2]
    found = second(*ours, exp_concrete.score(2 * ours[0], logits, temperature, normal=normal))
    truth = second(*definition, naive.score(2 * definition[0], logits, temperature, normal=normal))
    assert_close(found, truth, rtol=1e-3, atol=1e-3)


def test_the_log_density_of_an_own_draw_has_no_gradient() -> None:
    logits, temperature, key = given(1, 3, 4)
    assert not exp_concrete.draw(logits.requires_grad_(), temperature, key, 2, "none")[2].requires_grad


def batch(squash: Squash, normal: bool = False) -> Callable[..., Tensor]:
    def loss(logits: Tensor, prior: Tensor, temperature: Tensor, key: Tensor) -> Tensor:
        node, value, log_density = exp_concrete.draw(logits, temperature, key, 3, squash, normal=normal)
        return (exp_concrete.score(node, prior, temperature, normal=normal) - log_density).sum() + value.square().sum()

    return loss


@pytest.mark.parametrize("squash", SQUASHES)
def test_a_batch_of_programs_is_a_loop(squash: Squash) -> None:
    logits, temperature, key = (each.unsqueeze(1) for each in given(4, 3, 4))
    prior = torch.randn(1, 3, 4, device=DEVICE)
    logits.requires_grad_(), prior.requires_grad_()
    loss = batch(squash)
    found = vmap(loss, in_dims=(0, None, 0, 0))(logits, prior, temperature, key)
    looped = torch.stack([loss(logits[k], prior, temperature[k], key[k]) for k in range(4)])
    assert_close(found, looped)
    pairs = (torch.autograd.grad(each.sum(), (logits, prior)) for each in (found, looped))
    for each, other in zip(*pairs, strict=True):
        assert_close(each, other)


@pytest.mark.unchecked
@by_both
def test_programs_compile(normal: bool) -> None:
    logits, temperature, key = (each.unsqueeze(1) for each in given(2, 3, 4))
    prior = torch.randn(1, 3, 4, device=DEVICE)
    logits.requires_grad_(), prior.requires_grad_()
    program = vmap(batch("cube", normal), in_dims=(0, None, 0, 0))
    found, eager = (each(logits, prior, temperature, key) for each in (torch.compile(program, fullgraph=True), program))
    assert_close(found, eager)
    pairs = (torch.autograd.grad(each.sum(), (logits, prior)) for each in (found, eager))
    for each, other in zip(*pairs, strict=True):
        assert_close(each, other)


@pytest.mark.unchecked
@by_both
@pytest.mark.parametrize("squash", SQUASHES)
def test_operators_keep_the_rules_of_operators(squash: Squash, normal: bool) -> None:
    logits, temperature, key = given(2, 3, 4)
    opcheck(exp_concrete._draw, (logits.requires_grad_(), temperature, key, 2, squash, 1, normal))
    node = naive.draw(logits, temperature, key, 2, "none", normal=normal)[0].detach().requires_grad_()
    opcheck(exp_concrete._score, (node, logits, temperature, 1, normal))


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
            assert drawn.programs * (drawn.units if drawn.length == 1 else length) >= philox.quarter(samples * units)
            scored = tile.score_tile(members, samples, units, n, length)
            assert scored.samples * scored.steps * scored.grid[1] >= samples
            assert scored.length in (1, length)
            assert scored.grid[1] < 2**16
            for each in drawn, scored:
                assert each.width >= n
                assert 1 <= each.warps <= 16
            assert drawn.units * drawn.width <= max(512, drawn.width)
    assert not tile.fits(1, 8193)
