"""Draws of few and of many subsets on a CPU are those of the definition."""

import math

import pytest
import torch
from torch import Size

import concretely as c
from concretely.functional import subset as law
from concretely.functional import subset_concrete
from concretely.functional.subset_chunk import FARTHER, relax_chunk
from concretely.functional.subset_few import relax_few
from concretely.functional.threshold import _solve, largest, solve_few
from tests.cases import DTYPES
from tests.distribution.test_subset import SIZES, random_logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("number", ["few", "more", "many"])
def test_a_draw_as_one_node_is_that_of_its_parts(
    dtype: torch.dtype, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if number != "few":
        monkeypatch.setattr(law, "FEW", 0)
    if number == "many":
        monkeypatch.setattr(law, "MANY", 1)
        monkeypatch.setattr(law, "CHUNK", 50)
    logits = random_logits(7, batch=(20,)).to(dtype).requires_grad_()
    noise = law.noise(logits.shape, dtype, device=logits.device)
    by = random_logits(7, batch=(20,)).to(dtype)
    found = subset_concrete.draw(logits, 3, 0.5, noise)
    expected = subset_concrete.squash(subset_concrete.push(logits, 3, 0.5, noise), 3, 0.5, dtype)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(value, logits, by, create_graph=True)[0] for value in (found, expected)]
    (plain,) = torch.autograd.grad(subset_concrete.draw(logits, 3, 0.5, noise), logits, by)
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(plain, gradients[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("n", "k"), [*SIZES, (29, 27), (200, 11), (256, 130)])
@pytest.mark.parametrize("scale", [0.0, 2.0, 20.0, 1e4, math.inf])
def test_many_draws_leave_out_nothing_that_few_draws_have(
    n: int, k: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = random_logits(n, min(scale, 1e9), batch=(2, 7))
    if math.isinf(scale):
        logits = logits.masked_fill(~largest(logits, max(k, 1)), -math.inf)
    noise = law.noise(Size((3, 2, 7, n)), torch.float64, device=logits.device)
    monkeypatch.setattr(law, "FEW", 0)
    expected = law.push(logits, k, noise)
    monkeypatch.setattr(law, "MANY", 1)
    monkeypatch.setattr(law, "CHUNK", 7 * n)
    assert torch.equal(law.push(logits, k, noise), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("temperature", [0.01, 0.5, 20.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0, 20.0, 400.0])
@pytest.mark.parametrize(("n", "k"), [(20, 6), (64, 61), (500, 1), (301, 140)])
def test_many_relaxed_draws_are_those_of_the_definition_or_left_to_it(
    n: int, k: int, scale: float, temperature: float, dtype: torch.dtype
) -> None:
    logits = random_logits(n, scale, batch=(9,)).to(dtype)
    noise = law.noise(Size((2, 9, n)), dtype, device=logits.device)
    slope, value = torch.empty(2, 9, n, dtype=dtype), torch.empty(2, 9, n, dtype=dtype)
    is_found = relax_chunk(logits, noise, k, temperature, slope=slope, value=value)
    assert is_found == (scale < 400 or float((logits.amax(-1) - logits.amin(-1)).max()) < FARTHER)
    if is_found:
        slopes, _, values = subset_concrete._draw_any(logits, k, temperature, noise)
        # the definition leaves out exp(-x) beside x > 20
        error = 2e-7 if dtype == torch.float32 else 1e-9 if temperature > 1 else 1e-14
        torch.testing.assert_close(value, values, rtol=0, atol=error)
        torch.testing.assert_close(slope * temperature, slopes.to(dtype) * temperature, rtol=0, atol=error)
        chosen = law.push(logits, k, noise) > 0
        lowest = torch.where(chosen, value, 2).amin(-1)
        assert (lowest > torch.where(chosen, -1, value).amax(-1)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_relaxed_draws_can_be_modified_and_have_gradients_in_any_dtype(dtype: torch.dtype) -> None:
    logits = random_logits(64, batch=(law.MANY // 64,)).to(dtype).requires_grad_()
    value = c.Subset(logits=logits, k=5).relax(0.5).rsample()
    assert (value.dtype, value.shape) == (dtype, logits.shape)
    torch.testing.assert_close(value.double().sum(-1), torch.full((len(logits),), 5.0).double(), rtol=0, atol=0.1)
    (by,) = torch.autograd.grad(value.mul_(2)[:, 0].double().sum(), logits)
    torch.testing.assert_close(by.double().sum(-1), torch.zeros(len(logits)).double(), rtol=0, atol=0.02)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (9, 4), (300, 40)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_few_thresholds_are_those_of_the_bracketed_iteration(n: int, k: int, scale: float) -> None:
    scores = random_logits(n, scale, batch=(20,))
    found = solve_few(scores.numpy(), k)
    assert found is not None
    torch.testing.assert_close(torch.from_numpy(found).unsqueeze(-1), _solve(scores, k), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("temperature", [0.02, 0.5, 5.0])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 5.0, 30.0, 1e4])
@pytest.mark.parametrize(("n", "k"), [(2, 1), (9, 4), (10, 5), (10, 7), (11, 1), (11, 10), (200, 1), (33, 32)])
def test_few_relaxed_draws_are_those_of_the_definition_or_left_to_it(
    n: int, k: int, scale: float, temperature: float, dtype: torch.dtype
) -> None:
    logits = random_logits(n, scale, batch=(4, 25)).to(dtype)
    noise = law.noise(logits.shape, dtype, device=logits.device)
    found = relax_few(logits, noise, k, temperature)
    if scale < 5 and temperature == 0.5 and dtype == torch.float32:
        assert found is not None
    if scale == 1e4:
        assert found is None
    if found is not None:
        slope, total, value = found
        slopes, _, values = subset_concrete._draw_any(logits, k, temperature, noise)
        # the definition leaves out exp(-x) beside x > 20
        error = 2e-7 if dtype == torch.float32 else 1e-9 if temperature > 1 else 1e-13
        torch.testing.assert_close(value, values, rtol=0, atol=error)
        torch.testing.assert_close(slope * temperature, slopes.to(dtype) * temperature, rtol=0, atol=error)
        torch.testing.assert_close(total, slope.sum(-1, keepdim=True))
        chosen = law.push(logits, k, noise) > 0
        lowest = torch.where(chosen, value, 2).amin(-1)
        assert (lowest > torch.where(chosen, -1, value).amax(-1)).all()


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_few_relaxed_draws_can_be_modified_and_have_finite_gradients(shape: tuple[int, ...]) -> None:
    for gap in (0.0, 30.0, 100.0, 1e4):
        logits = torch.zeros(shape)
        logits[..., 1] = gap
        value = c.Subset(logits=logits.requires_grad_(), k=1).relax(0.1).rsample().mul_(2)
        assert torch.autograd.grad(value[..., 0].sum(), logits)[0].isfinite().all()


@pytest.mark.parametrize(("n", "k"), [(2, 1), (7, 1), (10, 3), (10, 5), (16, 2), (12, 9), (256, 255)])
def test_few_subsets_are_selected_by_the_inverse_cdf_of_all(n: int, k: int) -> None:
    logits, noise = random_logits(n, 1.0, batch=(5,)), torch.full((5, 2, n), 0.5, dtype=torch.float64)
    states = law.states_of(logits, k)
    assert len(states.unique(dim=0)) == len(states) == math.comb(n, k)
    assert (states.sum(-1) == k).all()
    total = (logits @ states.T).softmax(-1).cumsum(-1)
    for place in {0, len(states) // 3, len(states) // 2, len(states) - 1}:
        below = total[:, place - 1] if place else torch.zeros(5).double()
        for share in (1e-6, 0.5, 1 - 1e-6):
            noise[:, 0, 0] = below + share * (total[:, place] - below)
            assert torch.equal(law.push(logits, k, noise), states[place].expand(5, n))
            found = relax_few(logits, noise, k, 0.5)
            assert found is not None
            assert torch.equal(largest(found[2], k).double(), states[place].expand(5, n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [(), (1,), (5,)])
def test_a_draw_leaves_its_logits_and_noise_as_they_are(rows: tuple[int, ...], dtype: torch.dtype) -> None:
    logits = torch.randn(*rows, 3, dtype=dtype, requires_grad=True)
    relaxed = c.Subset(logits=logits, k=2).relax(0.7)
    noise = relaxed.noise()
    before = logits.detach().clone(), noise.clone()
    first, second = relaxed.push(noise), relaxed.push(noise)
    drawn = [relaxed.rsample(generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(first, second)
    assert torch.equal(*drawn)
    assert torch.equal(logits, before[0])
    assert torch.equal(noise, before[1])
