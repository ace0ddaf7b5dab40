"""One branch runs, chosen with its probability, and the gradient is that of its relaxed weight."""

import torch
from torch import Tensor, nn

from concretely.functional import gumbel_softmax
from concretely.functional.noise import Keys
from concretely.layer import Choice
from tests.budget import assert_frequency


class Scale(nn.Module):
    """A branch that multiplies by a constant and counts its runs."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.runs = factor, 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.factor * x


def made() -> Choice:
    choice = Choice([Scale(1.0), Scale(2.0), Scale(3.0)], temperature=0.5, cost=[0.0, 1.0, 5.0])
    choice.logits.data = torch.tensor([0.5, 0.0, -1.0])
    return choice


def test_one_branch_runs_and_is_chosen_with_its_probability() -> None:
    choice, generator, number = made(), torch.Generator().manual_seed(0), 4000
    choice.penalty()
    for _ in range(number):
        choice(torch.ones(1), generator=generator)
    runs = [branch.runs for branch in choice.branches]
    assert sum(runs) == number
    for hits, probability in zip(runs, choice.logits.softmax(0).tolist(), strict=True):
        assert_frequency(hits, of=number, probability=probability)


def test_the_output_is_that_of_the_branch_and_its_gradient_that_of_the_relaxed_weight() -> None:
    choice, keys = made(), torch.tensor([[1, 2]])
    for seed in range(10):
        keys[0, 0] = seed
        output = choice(torch.ones(3), generator=Keys(keys))
        factor = output[0].item()
        assert factor in (1.0, 2.0, 3.0)
        index = int(factor) - 1
        soft = gumbel_softmax.draw(choice.logits, 0.5, generator=Keys(keys))
        assert soft.argmax() == index
        found, expected = (
            torch.autograd.grad(head, choice.logits)[0] for head in (output.sum(), 3 * factor * soft[index])
        )
        torch.testing.assert_close(found, expected)
    assert choice.eval()(torch.ones(1)).item() == 1.0
    assert choice.decide() is choice.branches[0]


def test_the_penalty_is_the_expected_cost() -> None:
    choice = made()
    expected = choice.logits.softmax(0) @ torch.tensor([0.0, 1.0, 5.0])
    torch.testing.assert_close(choice.penalty(), expected)
    torch.testing.assert_close(choice.report().cost, expected.detach())
