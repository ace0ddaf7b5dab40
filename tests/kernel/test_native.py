"""Functions of single instructions are as precise as they say; in an interpreter, those that stand for them are."""

import math
from unittest import mock

import pytest
import torch
from torch import Tensor

from concretely.functional import philox as definition
from concretely.functional.edge import near_one, near_zero
from tests.cases import LOGITS, TEMPERATURES
from tests.kernel import DEVICE, fast, kernel, key

EPS = torch.finfo(torch.float32).eps
triton = pytest.importorskip("triton")
tl, native, philox = triton.language, fast("native"), fast("philox")


@triton.jit
def _run(x, y, scale, out, rest, count, NAME: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    one, two = tl.load(x + at, mask=at < count, other=1), tl.load(y + at, mask=at < count, other=1)
    if NAME == "exp":
        found = native.exp(one)
    if NAME == "log":
        found = native.log(one)
    if NAME == "precise_log":
        found = native.precise_log(one)
    if NAME == "reciprocal":
        found = native.reciprocal(one)
    if NAME == "rough_log1p":
        found = native.rough_log1p(one)
    if NAME == "signed_as":
        found = native.signed_as(one, two)
    if NAME == "normal":
        found = philox.normal(one.to(tl.uint32))
    if NAME == "difference":
        found = native.difference(tl.load(scale), one, two)
    if NAME == "whole_difference":
        found, left = native.whole_difference(tl.load(scale), one, two)
        tl.store(rest + at, left, mask=at < count)
    if NAME == "product":
        found, left = native.product(one.to(tl.uint32), 0xD2511F53)
        found, left = found.to(tl.int64), left.to(tl.int64)
        tl.store(rest + at, left, mask=at < count)
    tl.store(out + at, found, mask=at < count)


def run(name: str, x: Tensor, y: Tensor | None = None, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """What a function makes of numbers, and what more it gives."""
    out, rest = torch.zeros_like(x), torch.zeros_like(x)
    lam = torch.tensor([scale], dtype=torch.float64, device=DEVICE)
    y = x if y is None else y
    _run[1,](x, y, lam, out, rest, len(x), NAME=name, BLOCK=triton.next_power_of_2(len(x)))
    return out, rest


@kernel
@pytest.mark.parametrize(
    ("name", "lowest", "highest", "relative", "absolute"),
    [
        ("exp", -20.0, 20.0, 20 * EPS, 0.0),
        ("exp", -1.0, 1.0, 4 * EPS, 0.0),
        ("log", 2.0**-100, 2.0**-90, 4 * EPS, 0.0),
        ("log", 0.5, 2.0, 0.0, 2 * EPS),
        ("precise_log", 2.0**-100, 2.0**-90, EPS, 0.0),
        ("precise_log", 0.5, 2.0, EPS, 0.0),
        ("reciprocal", 2.0**-60, 2.0**60, 2 * EPS, 0.0),
        ("reciprocal", 1.0, 2.0, 2 * EPS, 0.0),
        ("rough_log1p", 2.0**-60, 2.0**-30, 4 * EPS, 0.0),
        ("rough_log1p", 0.0, 15.0, 2.0**-18, 0.0),
    ],
)
def test_functions_are_precise(name: str, lowest: float, highest: float, relative: float, absolute: float) -> None:
    x = torch.linspace(lowest, highest, 1000, device=DEVICE)
    truth = getattr(torch, name.removeprefix("rough_").removeprefix("precise_"))(x.double())
    assert ((run(name, x)[0] - truth).abs() <= relative * truth.abs() + absolute).all()


@kernel
def test_products_of_words_are_whole() -> None:
    x = torch.cat([torch.tensor([0, 1, 2**31 - 1, 2**31, 2**32 - 1]), torch.randint(2**32, (100,))]).to(DEVICE)
    upper, lower = run("product", x)
    for word, high, low in zip(x.tolist(), upper.tolist(), lower.tolist(), strict=True):
        assert (high << 32) + low == word * 0xD2511F53


@kernel
def test_normal_noise_is_precise_for_words_of_all_sizes() -> None:
    size = (2.0 ** torch.linspace(0, 31, 5_000, dtype=torch.float64)).long()
    words = torch.cat([torch.tensor([0, 2**31 - 1, 2**31, 2**32 - 1]), size - 1, 2**32 - size])
    with mock.patch.object(definition, "words", return_value=words):
        tail = definition.fractions.definition(key(1), len(words), torch.float32, True).double()
    truth = torch.special.ndtri(tail.abs()).copysign(tail).to(DEVICE)
    found, _ = run("normal", words.to(DEVICE).double())
    assert found.abs().max() > 6.3
    assert ((found - truth).abs() <= 4 * EPS * truth.abs()).all()


@kernel
def test_signs_are_those_of_others() -> None:
    size, number = torch.rand(100, device=DEVICE), torch.randn(100, device=DEVICE)
    assert torch.equal(run("signed_as", size, number)[0], size.copysign(number))


@kernel
@pytest.mark.parametrize("name", ["difference", "whole_difference"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_differences_are_exact_at_any_size_of_their_terms(name: str, temperature: float) -> None:
    y = torch.tensor(LOGITS, device=DEVICE).repeat(20)
    x = (y + 5 * torch.randn(len(y), device=DEVICE)) / temperature
    truth = temperature * x.double() - y.double()
    if name == "difference":
        assert ((run(name, x, y, temperature)[0] - truth).abs() <= EPS * truth.abs() + 1e-10).all()
    elif not native.NATIVE.value:
        pytest.skip("an interpreter rounds products")
    else:
        found, rest = run(name, x, y, temperature)
        assert ((found.double() + rest.double() - truth).abs() <= 1e-11 * (1 + y.abs())).all()


@kernel
@pytest.mark.parametrize("temperature", [0.5, 2 / 3])
def test_a_difference_from_what_is_infinite_is_infinite(temperature: float) -> None:
    x = torch.tensor([float("inf"), -float("inf")], device=DEVICE)
    assert torch.equal(run("difference", x, torch.ones_like(x), temperature)[0], x)


def test_constants_are_those_of_the_definitions() -> None:
    assert native.SMALLEST.value == near_zero(torch.float32).last
    assert torch.tensor(native.LARGEST_BELOW_ONE.value).item() == 1 - near_one(torch.float32).last
    assert native.LOG_2_BY_EXPONENT.value == pytest.approx(math.log(2) / 2**23, rel=1e-9)
