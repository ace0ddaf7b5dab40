"""Masks have mean one and the learned probability, and the penalty is that of the paper."""

import math

import pytest
import torch
from torch import nn

from concretely.functional.dropout import defined, drop
from concretely.functional.integral import mean_sigmoid
from concretely.layer import ConcreteDropout
from tests.budget import assert_frequency, assert_mean


@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.67, 1.0, 3.0])
def test_the_mean_of_a_sigmoid_is_its_integral(temperature: float) -> None:
    odds = torch.tensor([-3.0, 0.2, 2.0], dtype=torch.float64, requires_grad=True)
    stretch = torch.tensor(1 / temperature, dtype=torch.float64)
    # P(sigmoid > t), integrated over t; sampled finely where it changes, in log-odds of t
    node = torch.linspace(-60 - 60 / temperature, 60 + 60 / temperature, 400_001, dtype=torch.float64)
    width = torch.sigmoid(node) * torch.sigmoid(-node) * (node[1] - node[0])
    expected = (torch.sigmoid(odds.unsqueeze(-1) - temperature * node) * width).sum(-1)
    torch.testing.assert_close(mean_sigmoid(stretch, odds / temperature), expected, rtol=1e-9, atol=1e-12)
    assert torch.autograd.gradcheck(lambda odds: mean_sigmoid(stretch, odds / temperature), odds)


@pytest.mark.parametrize("temperature", [0.1, 0.67])
def test_the_mean_of_masked_inputs_is_the_input(temperature: float) -> None:
    layer = ConcreteDropout(nn.Linear(4, 4, bias=False), points=10, probability=0.3, temperature=temperature)
    layer.layer.weight.data = torch.eye(4)
    generator = torch.Generator().manual_seed(0)
    drawn = layer(torch.ones(50_000, 4), generator=generator).detach()
    assert_mean(drawn, 1.0)
    sampled = layer.eval().sample(torch.ones(50_000, 4), generator=generator)
    assert_mean(sampled, 1.0)
    assert_frequency(int((sampled == 0).sum()), of=sampled.numel(), probability=0.3)
    assert torch.equal(layer(torch.ones(3, 4)), torch.ones(3, 4))


def test_the_penalty_is_that_of_the_weights_and_of_the_entropy_of_the_inputs() -> None:
    for module, inputs in ((nn.Linear(6, 3), 6), (nn.Conv2d(4, 3, 5), 4)):
        layer = ConcreteDropout(module, points=50, probability=0.2, length_scale=0.3, precision=2.0)
        squares = module.weight.square().sum() / 0.8
        entropy = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8))
        expected = 0.09 / (2 * 50) * squares - 2 / (2 * 50) * inputs * entropy
        torch.testing.assert_close(layer.penalty(), expected)


def test_a_convolution_drops_whole_channels() -> None:
    layer = ConcreteDropout(nn.Conv2d(8, 8, 1, bias=False), points=10, probability=0.5)
    layer.layer.weight.data = torch.eye(8).view(8, 8, 1, 1)
    found = layer.sample(torch.ones(5, 8, 6, 6))
    assert (found == found[:, :, :1, :1]).all()
    assert found.unique().numel() == 2
    with pytest.raises(ValueError, match=r"x must have axis -3 of length 8, got shape \(5, 6, 6, 6\)"):
        layer(torch.ones(5, 6, 6, 6))


def test_the_decision_is_an_ordinary_dropout() -> None:
    decided = ConcreteDropout(nn.Conv2d(8, 8, 1), points=10, probability=0.25).decide()
    assert isinstance(decided[0], nn.Dropout2d)
    assert decided[0].p == pytest.approx(0.25)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("logit", [-20.0, -2.0, 0.5, 20.0])
def test_dropout_as_one_node_is_its_definition(temperature: float, logit: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, noise, by = (torch.randn(5, 7, dtype=torch.float64, generator=generator) for _ in range(3))
    x.requires_grad_()
    odds = torch.tensor(logit, dtype=torch.float64, requires_grad=True)
    found, expected = drop(x, odds, temperature, noise), defined(x, odds, noise, temperature)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    wanted = torch.autograd.grad(expected, [x, odds], by)
    for twice in (False, True):
        gradients = torch.autograd.grad(drop(x, odds, temperature, noise), [x, odds], by, create_graph=twice)
        torch.testing.assert_close(gradients, wanted, rtol=1e-10, atol=1e-12)
