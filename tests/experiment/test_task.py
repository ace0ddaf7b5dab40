"""Every task can be trained by every estimator that it names, and is scored by its discrete graph."""

import itertools

import pytest
import torch

import concretely as c
from concretely.data import load_data
from concretely.data.dataset import SPLITS
from concretely.data.grey import digit_labels
from concretely.experiment.task import PRICE, TASKS, Gates, labelled
from concretely.experiment.task_study import CONTENDERS

PAIRS = [(name, estimator) for name, task in TASKS.items() for estimator in task.estimators]


@pytest.mark.parametrize(("name", "estimator"), PAIRS)
def test_every_estimator_reaches_every_parameter(name: str, estimator: str) -> None:
    torch.manual_seed(0)
    task = TASKS[name]
    inputs = tuple(each[:8] for each in task.inputs("train"))
    target = task.build()
    method = CONTENDERS[estimator].make(target, *inputs)
    c.estimate(target, *inputs, estimator=method, samples=1 if estimator == "exact" else 4).loss.backward()
    for key, parameter in target.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


def test_estimators_that_suit_no_task_are_not_named() -> None:
    assert {estimator for _, estimator in PAIRS} == set(CONTENDERS)


@pytest.mark.parametrize("name", TASKS)
def test_a_score_is_a_finite_number_for_every_data_point(name: str) -> None:
    torch.manual_seed(0)
    task = TASKS[name]
    inputs = tuple(each[:3] for each in task.inputs("valid"))
    found = task.score(task.build(), *inputs, generator=torch.Generator(), share=0.01)
    assert found.shape == (3,)
    assert found.dtype == torch.float64
    assert (found.isfinite() & (found > 0)).all()


def test_the_score_of_gates_is_the_cost_over_all_states() -> None:
    torch.manual_seed(0)
    gates = Gates(blocks=3, width=2)
    x, label = (each[:5] for each in labelled("valid"))
    expected = torch.zeros(5)
    for state in itertools.product((0.0, 1.0), repeat=3):
        gate = torch.tensor(state)
        prob = torch.distributions.Bernoulli(logits=gates.gate(2 * x - 1)).log_prob(gate).sum(-1).exp()
        hidden = gates.hidden(2 * x - 1).relu() * gate.repeat_interleave(2)
        cost = torch.nn.functional.cross_entropy(gates.last(hidden), label, reduction="none")
        expected = expected + prob * (cost + PRICE * gate.sum())
    found = TASKS["gate"].score(gates, x, label, generator=torch.Generator())
    torch.testing.assert_close(found, expected.double().detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("split", SPLITS)
def test_labels_are_those_of_the_digits(split: str) -> None:
    data, label = load_data("digits"), {name: torch.from_numpy(each) for name, each in digit_labels().items()}
    train = data.train[:].float()
    means = torch.stack([train[label["train"] == digit].mean(0) for digit in range(10)])
    nearest = torch.cdist(data.split(split)[:].float(), means).argmin(-1)
    assert (nearest == label[split]).float().mean() > 0.75  # by chance 0.1
