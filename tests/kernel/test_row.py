"""Log probabilities summed over rows by a kernel are those of units, summed; in value and gradient, on either path."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.testing import assert_close

from concretely.functional import bernoulli, categorical, exp_concrete, exp_logistic_normal, logistic
from concretely.kernel.layout import row_sums
from tests.kernel import DEVICE, MARKS, fast, kernel, key, launched, on, opcheck

N = 4


class Case(NamedTuple):
    """An operation: its module, its kernels, the shape of a unit, and what it is squashed to."""

    operation: ModuleType
    kernels: str
    categories: tuple[int, ...]
    squash: str

    @property
    def is_relaxed(self) -> bool:
        """Whether it has a temperature."""
        return hasattr(self.operation, "log_density")

    def draw(self, logits: Tensor, temperature: Tensor, key: Tensor, samples: int, length: int) -> tuple[Tensor, ...]:
        """Draws, of which the last is the log probability."""
        given = (logits, temperature) if self.is_relaxed else (logits,)
        return self.operation.draw(*given, key, samples, self.squash, length)

    def score(self, drawn: Sequence[Tensor], logits: Tensor, temperature: Tensor, length: int) -> Tensor:
        """The log probability of draws."""
        return self.operation.score(drawn[0], logits, temperature if self.is_relaxed else self.squash, length)


CASES = {
    "logistic": Case(logistic, "logistic", (), "corner"),
    "bernoulli": Case(bernoulli, "bernoulli", (), "bit"),
    "exp_concrete": Case(exp_concrete, "exp_concrete", (N,), "cube"),
    "exp_logistic_normal": Case(exp_logistic_normal, "exp_concrete", (N,), "cube"),
    "categorical": Case(categorical, "categorical", (N,), "corner"),
}
NAMES = pytest.mark.parametrize("name", CASES)
# members, samples, rows and their length: quarters of whole rows or not, more than a block, several rows in a program
SHAPES = [(1, 1, 1, 3), (2, 2, 4, 33), (1, 4, 1, 200), (2, 1, 8, 7), (1, 3, 3, 70), (1, 1, 4, 300)]
FAST = pytest.mark.parametrize(
    "path", [pytest.param("plain", marks=pytest.mark.exhaustive), pytest.param("fast", marks=MARKS)]
)


def combinations() -> Iterator[Any]:
    """All operations over all shapes; of those with categories, which take long to interpret, few in every suite."""
    for name, case in CASES.items():
        for shape, dtype in [*((shape, torch.float32) for shape in SHAPES), (SHAPES[1], torch.bfloat16)]:
            few = dtype == torch.float32 and shape in (SHAPES[1], SHAPES[4]) and "normal" not in name
            marks = [] if few or not case.categories else pytest.mark.exhaustive
            yield pytest.param(name, shape, dtype, marks=marks)


def given(case: Case, members: int, units: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    logits = (3 * torch.randn(members, units, *case.categories)).to(DEVICE, dtype)
    return logits, torch.linspace(0.5, 1.1, members, dtype=torch.float64, device=DEVICE), key(members)


def assert_same(name: str, found: Tensor, expected: Tensor) -> None:
    """Fail if draws by one key differ; sums over categories may be rounded otherwise by kernels compiled apart."""
    if name.startswith("exp_") and DEVICE == "cuda":
        rounding = 4 * torch.finfo(torch.float32).eps * expected.detach().abs().max()
        assert_close(found, expected, rtol=0, atol=float(rounding))
    else:
        assert torch.equal(found, expected)


@FAST
@pytest.mark.parametrize(("name", "shape", "dtype"), list(combinations()))
def test_sums_over_rows_are_those_of_units(
    name: str, shape: tuple[int, int, int, int], dtype: torch.dtype, path: str
) -> None:
    case, (members, samples, rows, length) = CASES[name], shape
    logits, temperature, keys = given(case, members, rows * length, dtype)
    prior = given(case, members, rows * length, dtype)[0]
    by = torch.randn(2, members, samples, rows, device=DEVICE)

    def run(length: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        leaves = [each.clone().requires_grad_() for each in (logits, prior)]
        *drawn, log_q = case.draw(leaves[0], temperature, keys, samples, length)
        log_p = case.score(drawn, leaves[1], temperature, length)
        found = [each.view(*by.shape[1:], -1).sum(-1) for each in (log_q, log_p)]
        return drawn, found, list(torch.autograd.grad((by * torch.stack(found)).sum(), leaves, allow_unused=True))

    with on(path, case.kernels):
        (drawn, summed, slopes), (same, truth, true_slopes) = run(length), run(1)
    for one, other in zip(drawn, same, strict=True):
        assert_same(name, one, other)
    assert_close(summed, truth, rtol=1e-6, atol=3e-7 * length * (1 + max(each.abs().max() for each in truth).item()))
    loose = 1e-5 if dtype == torch.float32 else 2e-2
    for one, other in zip(slopes, true_slopes, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(one, other, rtol=loose, atol=loose)


@contextmanager
def many() -> Iterator[None]:
    """Have kernels take few programs for many."""
    row = fast("row")
    launches = row.draws, row.scores, row.tiling
    with mock.patch.object(row, "BUSY", 1):
        for launch in launches:
            launch.cache_clear()
        yield
    for launch in launches:
        launch.cache_clear()


@kernel
@pytest.mark.parametrize(("length", "samples"), [(40, 6), (70, 4), (200, 2)])
@pytest.mark.parametrize("name", ["logistic", "bernoulli"])
def test_rows_are_cut_into_pieces_where_they_are_many(name: str, length: int, samples: int) -> None:
    case, (logits, temperature, keys) = CASES[name], given(CASES[name], 1, 2 * length)
    with launched(case.kernels), many():
        found, truth = (case.draw(logits, temperature, keys, samples, each) for each in (length, 1))
        scores = [case.score(truth, -logits, temperature, each) for each in (length, 1)]
    for one, other in zip(found[:-1], truth[:-1], strict=True):
        assert_same(name, one, other)
    for one, other in (found[-1], truth[-1]), scores:
        assert_close(one, row_sums(other, length), rtol=3e-6, atol=1e-5)


@FAST
@NAMES
def test_a_batch_of_programs_is_a_loop_over_them(name: str, path: str) -> None:
    case = CASES[name]
    logits, temperature, keys = (each.unsqueeze(1) for each in given(case, 2, 12))
    prior = given(case, 1, 12)[0].requires_grad_()
    logits.requires_grad_()

    def loss(logits: Tensor, temperature: Tensor, key: Tensor) -> Tensor:
        *drawn, log_q = case.draw(logits, temperature, key, 2, 6)
        return (case.score(drawn, prior, temperature, 6) - log_q).square().sum()

    with on(path, case.kernels):
        together = vmap(loss)(logits, temperature, keys)
        alone = torch.stack([loss(*each) for each in zip(logits, temperature, keys, strict=True)])
        assert_close(together, alone)
        by = [torch.autograd.grad(each.sum(), (logits, prior)) for each in (together, alone)]
    assert_close(*by, rtol=1e-5, atol=1e-4)


@FAST
@NAMES
def test_gradients_of_sums_have_gradients(name: str, path: str) -> None:
    case = CASES[name]
    logits, temperature, keys = given(case, 2, 6)
    logits.requires_grad_()

    def curvature(length: int) -> Tensor:
        drawn = case.draw(logits.detach(), temperature, keys, 5, length)
        log_p = case.score(drawn, logits, temperature, length).view(2, 5, 2, -1).sum(-1)
        (slope,) = torch.autograd.grad(log_p.square().sum(), logits, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), logits)[0]

    with on(path, case.kernels):
        assert_close(curvature(3), curvature(1), rtol=1e-3, atol=1e-3)


@kernel
@pytest.mark.parametrize("name", ["logistic", "exp_concrete"])
def test_the_log_density_of_an_own_draw_is_exact_at_any_size_of_the_logits(name: str) -> None:
    case = CASES[name]
    logits, temperature, keys = given(case, 1, 40)
    with launched(case.kernels):
        small, large = (case.draw(each, temperature, keys, 4, 10)[2] for each in (logits, 1e5 * logits))
    assert torch.equal(small, large)


@kernel
@pytest.mark.exhaustive
@NAMES
def test_sums_are_operators(name: str) -> None:
    case = CASES[name]
    logits, temperature, keys = given(case, 2, 6)
    logits.requires_grad_()
    with launched(case.kernels):
        drawn = case.draw(logits.detach(), temperature, keys, 5, 3)[0]
        if case.is_relaxed:
            opcheck(case.operation.draw, (logits, temperature, keys, 5, case.squash, 3))
            opcheck(case.operation.score, (drawn.requires_grad_(), logits, temperature, 3))
        else:
            opcheck(case.operation.draw, (logits, keys, 5, case.squash, 3))
            opcheck(case.operation.score, (drawn, logits, case.squash, 3))
