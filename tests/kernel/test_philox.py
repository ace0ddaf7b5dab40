"""Random fractions are those of the published generator, on every path, and uniform."""

from typing import Any
from unittest import mock

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import vmap

from concretely.functional import noise, philox
from concretely.functional.noise import Keys
from concretely.functional.philox import fractions, window_fractions, words
from tests.budget import assert_likely
from tests.kernel import DEVICE, MARKS, fast, kernel, on, opcheck

KEYS = torch.tensor([[0, 0], [123456789012345, 2**40 + 5], [-7, 3], [2**63 - 1, -(2**63)]])
EDGES = torch.tensor([[0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1]])
"""The words next to which anything could go wrong."""


def philox4x32(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    """The generator as it was published."""
    (a, b, c, d), (low, high) = counter, key
    for _ in range(10):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (right >> 32) ^ b ^ low, right % 2**32, (left >> 32) ^ d ^ high, left % 2**32
        low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
    return [a, b, c, d]


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_reference_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    halves = [tuple(int(word, 16) for word in text.split()) for text in (counter, key)]
    assert " ".join(f"{word:08x}" for word in philox4x32(*halves)) == answer


@pytest.mark.parametrize("count", [1, 4, 5, 23])
def test_words_are_those_of_the_reference(count: int) -> None:
    found = words(KEYS, count)
    for (seed, nonce), row in zip(KEYS.tolist(), found.tolist(), strict=True):
        halves = [(number % 2**32, number // 2**32 % 2**32) for number in (seed, nonce)]
        places = range(-(-count // 4))
        fours = zip(*(philox4x32((place, 0, *halves[1]), halves[0]) for place in places), strict=True)
        assert row == [word for piece in fours for word in piece][:count]


@kernel
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 1027])
def test_kernel_is_its_definition_bit_for_bit(count: int, signed: bool) -> None:
    keys = KEYS.to(DEVICE)
    assert torch.equal(
        fast("philox").fractions(keys, count, torch.float32, signed),
        fractions.definition(keys, count, torch.float32, signed),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("path", [fractions, noise._numpy_fractions], ids=["definition", "numpy"])
def test_fractions_are_uniform(path: Any, signed: bool, dtype: torch.dtype) -> None:
    found = path(KEYS, 25_001, dtype, signed)
    assert found.dtype == dtype
    assert found.shape == (4, 25_001)
    assert_likely(stats.kstest((found.flatten() + signed / 2).numpy(), "uniform").pvalue)
    assert_likely(stats.kstest(found.abs().log().flatten().numpy(), lambda x: (1 + signed) * stats.expon.sf(-x)).pvalue)


@pytest.mark.parametrize("path", [fractions, noise._numpy_fractions], ids=["definition", "numpy"])
def test_neighbouring_keys_have_nothing_in_common(path: Any) -> None:
    keys = torch.cartesian_prod(torch.arange(100), torch.arange(100))
    found = path(keys, 2, torch.float32, False).double()
    for k in range(2):
        assert_likely(stats.kstest(found[:, k].numpy(), "uniform").pvalue)
    grid = found[:, 0].view(100, 100)
    for one, other in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1]), (found[:, 0], found[:, 1])):
        assert_likely(stats.pearsonr(one.flatten().numpy(), other.flatten().numpy()).pvalue)


def test_fractions_of_all_words_lie_inside() -> None:
    with mock.patch.object(philox, "words", return_value=EDGES):
        unsigned, signed = (fractions(KEYS[:1], 7, torch.float32, each) for each in (False, True))
    assert unsigned.min() > 0
    assert unsigned.max() <= 1  # the middle of the last cells is rounded to their edge
    assert signed.abs().min() > 0
    assert signed.abs().max() <= 0.5


@pytest.mark.parametrize("path", ["generator", pytest.param("kernel", marks=MARKS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_key_gives_the_same_fractions_alone_and_among_others(dtype: torch.dtype, path: str) -> None:
    keys = KEYS.to(DEVICE)

    def drawn(key: Tensor) -> Tensor:
        if path == "kernel":
            return fractions(key, 9, dtype, True)
        return noise.uniform((1, 9), dtype, device=keys.device, generator=Keys(key))

    with on("fast" if path == "kernel" else "plain", "philox"):
        together = torch.cat([drawn(key) for key in keys.split(1)])
        if path == "kernel":
            assert torch.equal(together, drawn(keys))
        assert torch.equal(together, vmap(drawn)(keys.unsqueeze(1)).squeeze(1))
        assert torch.equal(together, vmap(drawn, in_dims=2)(keys.T.unsqueeze(0)).squeeze(1))


@kernel
@pytest.mark.parametrize("path", ["definition", "kernel"])
def test_fractions_are_an_operator(path: str) -> None:
    with on("fast" if path == "kernel" else "plain", "philox"):
        opcheck(fractions, (KEYS.to(DEVICE), 9, torch.float32, True))


def test_fractions_of_numpy_are_an_operator() -> None:
    torch.library.opcheck(noise._cpu_fractions, (KEYS, 9, torch.float32, True))
    torch.library.opcheck(noise._cpu_fractions, (KEYS, 9, torch.float64, False))


WINDOWS = [(1, 0, 5, 5), (3, 4, 2, 10), (2, 7, 3, 11), (1, 30, 12, 48)]


def chosen(whole: Tensor, window: tuple[int, int, int, int]) -> Tensor:
    """The places of a window among all numbers."""
    blocks, first, size, stride = window
    return whole.unflatten(-1, (blocks, stride))[..., first : first + size].flatten(1)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_has_the_fractions_of_its_places(
    window: tuple[int, int, int, int], dtype: torch.dtype, signed: bool
) -> None:
    blocks, _, size, stride = window
    whole, count = blocks * stride, blocks * size
    for all_of, some_of in ((fractions, window_fractions), (noise._numpy_fractions, noise._numpy_fractions)):
        expected = chosen(all_of(KEYS, whole, dtype, signed), window)
        assert torch.equal(some_of(KEYS, count, dtype, signed, *window), expected)


@kernel
@pytest.mark.parametrize("window", WINDOWS)
def test_the_kernel_of_a_window_is_its_definition_bit_for_bit(window: tuple[int, int, int, int]) -> None:
    keys, given = KEYS.to(DEVICE), (window[0] * window[2], torch.float32, True, *window)
    assert torch.equal(fast("philox").window_fractions(keys, *given), window_fractions.definition(keys, *given))
