"""The expected cost of a program: `evaluate` of a program averages its cost over discrete draws."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import concretely as c
from tests.budget import assert_likely

from .example import seeded

X, Y = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), torch.arange(7.0)


def program(draw: c.Draw, x: Tensor, y: Tensor) -> Tensor:
    bit = draw("b", c.Bernoulli(logits=x))
    return (bit.sum(-1) - c.tile(y, bit)).square()


def nested(draw: c.Draw, batch: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
    return program(draw, *batch["pair"])


def test_it_is_the_mean_cost_of_every_data_point() -> None:
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)
    probs = c.Bernoulli(logits=X.double().unsqueeze(1)).log_prob(states).sum(-1).exp()
    costs = (states.sum(-1) - Y.unsqueeze(1)).square()
    expected = (probs * costs).sum(-1)
    variance = (probs * (costs - expected.unsqueeze(1)).square()).sum(-1)
    cost = c.evaluate(program, X, Y, samples=20_000, generator=seeded())
    squares = (cost.values - expected).square() / (variance / 20_000)
    assert_likely(stats.chi2.sf(squares.sum().item(), len(squares)), "of the squares")
    assert cost.samples == 20_000
    assert cost.mean == pytest.approx(cost.values.mean().item())


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_without_noise_it_is_exact_for_every_chunk_and_structure(chunk: int) -> None:
    sure = torch.where(X > 0, torch.inf, -torch.inf)
    exact = ((X > 0).sum(-1) - Y).square().double()
    torch.testing.assert_close(c.evaluate(program, sure, Y, samples=3, chunk=chunk).values, exact, rtol=0, atol=0)
    batch = {"pair": (sure, Y)}
    torch.testing.assert_close(c.evaluate(nested, batch, samples=3, chunk=chunk).values, exact, rtol=0, atol=0)


@pytest.mark.parametrize("chunk", [1, 7, 10, 1000])
def test_no_run_has_more_pairs_than_the_chunk_and_all_have_all_samples(chunk: int) -> None:
    drawn = list[Tensor]()

    def counted(draw: c.Draw, x: Tensor) -> Tensor:
        drawn.append(draw("b", c.Bernoulli(logits=x)).sum(-1))
        return drawn[-1]

    cost = c.evaluate(counted, X, samples=17, chunk=chunk)
    assert max(map(len, drawn)) <= chunk
    assert sum(map(len, drawn)) == 17 * len(X)
    assert cost.mean == pytest.approx(torch.cat(drawn).mean().item())


def test_modules_are_evaluated_in_evaluation_mode_and_left_as_they_were() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.9)

        def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
            return self.drop(torch.ones_like(x)).sum(-1) + 0 * draw("b", c.Bernoulli(logits=x)).sum(-1)

    gate = Gate().train()
    assert c.evaluate(gate, X, samples=1).mean == 3.0
    assert gate.drop.training


@pytest.mark.parametrize("chunk", [1, 6, 1000])
def test_inputs_without_a_row_for_each_data_point_are_passed_whole(chunk: int) -> None:
    def weighted(draw: c.Draw, x: Tensor, scale: Tensor, k: Tensor, row: Tensor) -> Tensor:
        bit = draw("b", c.Bernoulli(logits=torch.where(x @ k > 0, torch.inf, -torch.inf)))
        return (scale * bit * row).sum(-1)

    x, k = (X > 0).float(), torch.eye(3)
    inputs = (torch.tensor(2.0), k, torch.tensor([[1.0, 2.0, 3.0]]))
    exact = (2 * x * inputs[2]).sum(-1).double()
    assert torch.equal(c.evaluate(weighted, x, *inputs, samples=3, chunk=chunk).values, exact)


@pytest.mark.parametrize("chunk", [1, 5, 10, 13, 20, 1000])
def test_labels_of_too_few_points_fit_no_part_of_the_data(chunk: int) -> None:
    with pytest.raises(ValueError, match="the rows of x must divide those of like, got 5 and"):
        c.evaluate(program, X.repeat(3, 1)[:20], Y[:5], samples=1, chunk=chunk)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: c.evaluate(program), ValueError, "data must have at least one tensor, the first input of the program"),
        (lambda: c.evaluate(program, Y[0], Y), ValueError, "data must have a first axis that counts data points, got "),
        (lambda: c.evaluate(program, X[:0], Y[:0]), ValueError, "data must have at least one data point, got none"),
        (lambda: c.evaluate(program, X, Y, full_points=3), ValueError, "as a program has no likelihood, got 3"),
        (lambda: c.evaluate(program, X, Y, samples=0), ValueError, "samples must be a positive whole number, got 0"),
        (lambda: c.evaluate(program, X, Y, chunk=-1), ValueError, "chunk must be a positive whole number, got -1"),
        (lambda: c.evaluate(program, X), TypeError, "a program must be callable with draw and 1 input"),
        (lambda: c.evaluate(3, X), TypeError, "model must be a Model, a program or a module, got int"),
        (
            lambda: c.evaluate(c.Model, X),
            TypeError,
            "model must be a Model, a program or a module, got the class Model",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call: Callable[[], Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert sentence in str(caught.value)
