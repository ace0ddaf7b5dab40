"""Noise follows its law to the ends of its tails, and is never infinite."""

import math
from unittest import mock

import pytest
import torch
from scipy import stats

from concretely.functional import noise
from concretely.functional.torch_draw import sliced_draws
from tests.budget import assert_likely
from tests.cases import DEVICES

LAWS = {noise.uniform: "uniform", noise.logistic: "logistic", noise.gumbel: "gumbel_r", noise.normal: "norm"}
QUICK = {noise.few_normal: "norm", noise.few_uniform: "uniform", noise.rounding: "uniform"}
KINDS = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
WORDS = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1]
"""The words of 32 bits next to which anything could go wrong."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@KINDS
def test_noise_follows_its_law(law: noise.uniform, dtype: torch.dtype, device: str) -> None:
    draws = law((100_000,), dtype, device=torch.device(device))
    assert draws.dtype == dtype
    assert_likely(stats.kstest(draws.cpu().numpy(), LAWS[law]).pvalue, law.__name__)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("law", QUICK, ids=lambda law: law.__name__)
def test_few_and_many_numbers_of_quick_noise_follow_its_law(
    law: noise.uniform, dtype: torch.dtype, device: str
) -> None:
    for count, times in ((1_000, 100), (100_000, 1)):
        draws = torch.cat([law((count,), dtype, device=torch.device(device)) for _ in range(times)])
        assert draws.dtype == dtype
        assert_likely(stats.kstest(draws.cpu().numpy(), QUICK[law]).pvalue, law.__name__)


@pytest.mark.parametrize("law", [*LAWS, *QUICK], ids=lambda law: law.__name__)
@pytest.mark.parametrize("width", [2, 2_000])
def test_ranks_draw_what_one_process_does(law: noise.uniform, width: int) -> None:
    whole = law((6, width), generator=torch.Generator().manual_seed(0))
    parts = []
    for rank in range(2):
        source = noise.Slice(torch.Generator().manual_seed(0), rank=rank, ranks=2).of_rows(1, 3)
        parts.append(law((3, width), generator=source))
    assert torch.equal(torch.cat(parts), whole)
    for rank in range(2):
        torch.manual_seed(0)
        with sliced_draws(noise.Slice(None, rank=rank, ranks=2).of_rows(1, 3)):
            parts[rank] = law((3, width))
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.unchecked
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@KINDS
def test_noise_follows_its_law_under_compile(law: noise.uniform, dtype: torch.dtype) -> None:
    draws = torch.compile(lambda: law((100_001,), dtype), fullgraph=True, backend="aot_eager")()
    assert draws.shape == (100_001,)
    assert_likely(stats.kstest(draws.numpy(), LAWS[law]).pvalue, law.__name__)


def of_words(law: noise.uniform, words: list[int]) -> torch.Tensor:
    """The float32 noise that comes of given random words."""
    pairs = torch.tensor([w - 2**32 * (w >= 2**31) for w in [*words, *[0] * (len(words) % 2)]], dtype=torch.int32)
    with mock.patch.object(torch, "randint", return_value=pairs.view(torch.int64)):
        return law((len(words),))


@KINDS
def test_float32_noise_is_finite_at_every_word(law: noise.uniform) -> None:
    assert of_words(law, WORDS).isfinite().all()


def test_noise_to_round_many_numbers_is_at_least_zero_and_below_one_at_every_word() -> None:
    words = torch.tensor([[w - 2**32 * (w >= 2**31), 0] for w in WORDS], dtype=torch.int32).view(torch.int64).flatten()
    with mock.patch.dict(noise.FEW, cpu=0), mock.patch.object(torch, "empty") as empty:
        empty.return_value.random_.return_value = words
        draws = noise.rounding((2 * len(words),))
    assert ((draws >= 0) & (draws < 1)).all()
    assert draws.min() < 2.0**-23
    assert draws.max() > 1 - 2.0**-23


@KINDS
def test_noise_can_be_modified_in_place_with_a_gradient(law: noise.uniform) -> None:
    factor, draws = torch.tensor(2.0, requires_grad=True), law((4, 6))
    expected = draws.sum().item()
    draws.mul_(factor)
    assert torch.autograd.grad(draws.sum(), factor)[0].item() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("end", [0.0, 1 - 2.0**-53])
def test_few_uniform_numbers_are_strictly_between_zero_and_one(end: float, dtype: torch.dtype) -> None:
    with mock.patch.object(torch, "rand", return_value=torch.full((3,), end, dtype=torch.float64)):
        draws = noise.few_uniform((3,), dtype)
    assert draws.dtype == dtype
    assert ((draws > 0) & (draws < 1)).all()


def test_float32_noise_reaches_its_tails() -> None:
    edge = 33 * math.log(2)
    assert of_words(noise.logistic, WORDS).abs().max().item() == pytest.approx(edge, rel=1e-6)
    assert of_words(noise.gumbel, WORDS).max().item() == pytest.approx(edge, rel=1e-6)
    assert of_words(noise.gumbel, WORDS).min().item() == pytest.approx(-math.log(24 * math.log(2)), rel=1e-6)
    assert of_words(noise.normal, WORDS).abs().max().item() == pytest.approx(stats.norm.isf(2**-33), rel=1e-5)
    uniform = of_words(noise.uniform, WORDS)
    assert 0 < uniform.min() < uniform.max() < 1


def test_symmetric_noise_is_symmetric_word_by_word() -> None:
    mirrored = [2**32 - 1 - word for word in WORDS]
    for law in (noise.logistic, noise.normal):
        assert torch.equal(of_words(law, WORDS), -of_words(law, mirrored))


def test_odd_and_empty_shapes() -> None:
    for shape in ((), (0,), (1,), (3, 5), (2, 0, 4)):
        for law in LAWS:
            assert law(shape).shape == shape


def test_draws_beyond_the_keys_count_on_from_the_last() -> None:
    keys = torch.tensor([[7, 3], [7, 4], [7, 5]])
    known, further = noise.Keys(keys), noise.Keys(keys[:1], more=2)
    for _ in range(3):
        assert torch.equal(noise.uniform((5,), generator=further), noise.uniform((5,), generator=known))
    with pytest.raises(ValueError, match=r"^keys must have one row for each draw, got only 3$"):
        noise.uniform((5,), generator=further)
    known, further = noise.Keys(keys), noise.Keys(keys[:1], more=2)
    assert [further.next().tolist() for _ in range(3)] == [known.next().tolist() for _ in range(3)]
