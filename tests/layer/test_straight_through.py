"""The backward passes of one-hot draws: exact means by enumeration, and the identities between them."""

import math

import pytest
import torch
from torch import Tensor

import concretely as c
from concretely.functional.weight import Weight, conditional_noise, surrogate
from tests.budget import assert_mean

LOGITS = torch.tensor([0.3, -1.2, 1.7, 0.1], dtype=torch.float64)
STATES = torch.eye(4, dtype=torch.float64)


def weights(weight: Weight, *, temperature: float = 1.0, samples: int = 1) -> Tensor:
    """The matrix W of every state, from the Jacobian of the surrogate: rows by state, gradient by logits."""
    found = []
    for state in STATES:
        generator = torch.Generator().manual_seed(0)

        def value(logits: Tensor, state: Tensor = state, generator: torch.Generator = generator) -> Tensor:
            return surrogate(logits, state, weight, temperature=temperature, samples=samples, generator=generator)

        found.append(torch.autograd.functional.jacobian(value, LOGITS).T)
    return torch.stack(found)


PROBS = LOGITS.softmax(-1)
J = torch.diag(PROBS) - torch.outer(PROBS, PROBS)


def test_softmax_and_reinmax_are_unbiased_for_linear_losses() -> None:
    for weight in ("softmax", "reinmax"):
        torch.testing.assert_close(torch.einsum("i,ijk->jk", PROBS, weights(weight)), J, rtol=1e-12, atol=1e-12)


def test_reinmax_is_unbiased_for_quadratic_losses_at_temperature_one() -> None:
    matrix = torch.randn(4, 4, dtype=torch.float64)

    def loss(state: Tensor) -> Tensor:
        return state @ matrix @ state

    def expected(logits: Tensor) -> Tensor:
        return sum(p * loss(state) for p, state in zip(logits.softmax(-1), STATES, strict=True))

    exact = torch.autograd.functional.jacobian(expected, LOGITS)
    slopes = torch.stack([torch.autograd.functional.jacobian(loss, state) for state in STATES])
    mean = torch.einsum("i,ijk,ik->j", PROBS, weights("reinmax"), slopes)
    torch.testing.assert_close(mean, exact, rtol=1e-12, atol=1e-12)
    biased = torch.einsum("i,ijk,ik->j", PROBS, weights("reinmax", temperature=1.4), slopes)
    assert (biased - exact).abs().max() > 1e-3


def test_reinmax_is_the_limit_of_gumbel_rao_at_temperature_zero() -> None:
    outer = torch.einsum("ij,ik->ijk", STATES - PROBS, STATES - PROBS)
    torch.testing.assert_close(weights("reinmax"), (J + outer) / 2, rtol=1e-12, atol=1e-12)


def test_conditional_noise_keeps_the_state() -> None:
    logits = torch.tensor([0.0, 40.0, -40.0, 1e4], dtype=torch.float64)
    for state in STATES:
        noise = conditional_noise(logits, state, 10_000, generator=None)
        assert noise.isfinite().all()
        assert ((logits + noise).argmax(-1) == state.argmax()).all()


def test_conditional_noise_over_all_states_is_gumbel_noise() -> None:
    generator, number = torch.Generator().manual_seed(0), 200_000
    category = torch.multinomial(PROBS, number, replacement=True, generator=generator)
    noise = conditional_noise(LOGITS.expand(number, 4), STATES[category], 1, generator=generator)[0]
    for k in range(4):
        assert_mean(noise[:, k], 0.5772156649015329, f"in category {k}")
        assert_mean((-noise[:, k]).exp(), 1.0, f"of the exponential in category {k}")


def test_gumbel_rao_has_the_mean_of_gumbel_softmax() -> None:
    generator, number, tau = torch.Generator().manual_seed(0), 100_000, 0.5
    by, logits = torch.randn(4, dtype=torch.float64), LOGITS.expand(number, 4).clone().requires_grad_()
    slopes = []
    for backward in ("gumbel-softmax", "gumbel-rao"):
        value = c.straight_through(logits, backward, temperature=tau, samples=8, generator=generator)
        slopes.append(torch.autograd.grad(value, logits, by.expand(number, 4))[0])
    for k in range(4):
        assert_mean(slopes[0][:, k] - slopes[1][:, k], 0.0, f"in category {k}")
    assert (slopes[1].var(0) < slopes[0].var(0)).all()


@pytest.mark.parametrize("backward", ["softmax", "gumbel-softmax", "gumbel-rao", "reinmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_draws_are_one_hot_and_gradients_finite(backward: Weight, dtype: torch.dtype) -> None:
    logits = torch.tensor([-1e4, 0.0, 3.0, 1e4]).to(dtype).repeat(20, 1).requires_grad_()
    value = c.straight_through(logits, backward, temperature=0.5)
    assert value.dtype == dtype
    assert ((value == 0) | (value == 1)).all()
    assert (value.sum(-1) == 1).all()
    assert torch.autograd.grad(value[:, 1].sum(), logits)[0].isfinite().all()


@pytest.mark.parametrize("backward", ["softmax", "gumbel-softmax", "gumbel-rao", "reinmax"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_impossible_categories_change_nothing_for_the_others(backward: Weight, dtype: torch.dtype) -> None:
    logits = torch.tensor([0.0, -math.inf, 1.0], dtype=dtype).repeat(1000, 1).requires_grad_()
    by = torch.tensor([1.0, 2.0, 3.0], dtype=dtype).expand(1000, 3)
    value = c.straight_through(logits, backward, temperature=0.5)
    assert (value[:, 1] == 0).all()
    assert (value.sum(-1) == 1).all()
    (slope,) = torch.autograd.grad(value, logits, by)
    assert slope.isfinite().all()
    assert (slope[:, 1] == 0).all()
    if backward in ("softmax", "reinmax"):  # the others draw more noise
        few, state = logits.detach()[:, [0, 2]].requires_grad_(), value.detach()[:, [0, 2]]
        wanted = surrogate(few, state, backward, temperature=0.5, samples=1)
        (expected,) = torch.autograd.grad(wanted, few, by[:, [0, 2]])
        torch.testing.assert_close(slope[:, [0, 2]], expected)


@pytest.mark.parametrize("backward", ["softmax", "gumbel-softmax", "gumbel-rao", "reinmax"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("temperature", [1e-29, 0.5, 1e29])
def test_logits_of_any_size_have_finite_values_and_gradients(
    backward: Weight, dtype: torch.dtype, temperature: float
) -> None:
    most = torch.finfo(dtype).max
    for row in ([most, 0.0, -most], [-most, -most, -math.inf], [most, most, 0.0]):
        logits = torch.tensor(row, dtype=dtype).repeat(50, 1).requires_grad_()
        value = c.straight_through(logits, backward, temperature=temperature)
        assert (value.sum(-1) == 1).all()
        assert torch.autograd.grad(value[:, 1].sum(), logits)[0].isfinite().all()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"backward": "reimax"}, "unknown backward 'reimax'; did you mean 'reinmax'?"),
        ({"temperature": 0.0}, "temperature must be a positive number, got 0.0"),
        ({"temperature": math.nan}, "temperature must be a positive number, got nan"),
        ({"temperature": 1e-40}, "temperature must be at least 1.2e-30, got 1e-40"),
        ({"samples": 0}, "samples must be a positive whole number, got 0"),
        (
            {"backward": 5},
            "unknown backward 5; choose from 'gumbel-rao', 'gumbel-softmax', 'reinmax', 'softmax'",
        ),
        ({"samples": torch.ones(9, 9)}, "samples must be a positive whole number, got Tensor"),
        ({"logits": torch.tensor(0.0)}, "logits must have a last axis of at least one category, got shape ()"),
        ({"logits": torch.zeros(3, 0)}, "logits must have a last axis of at least one category, got shape (3, 0)"),
        ({"logits": torch.tensor([0.0, math.nan])}, "logits must be numbers, got [0.0, nan] in row ()"),
        ({"logits": torch.zeros(3, dtype=torch.int32)}, "logits must be a floating tensor, got torch.int32"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        c.straight_through(**{"logits": torch.zeros(3), **change})
    assert str(error.value) == sentence
