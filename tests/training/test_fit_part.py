"""`fit` trains estimators with parameters of their own, and knows choices that do not depend on data."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import concretely as c
from concretely import layer
from concretely.training.fit import TrainingWarning

from .own import Gate, bits, fitted

LABELS = (bits().sum(-1) % 3).long()


class LearnedTemperature(nn.Module):
    """Pathwise gradients at a temperature that is learned."""

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(start).log())

    def forward(self, target: Any, *inputs: Any, **how: Any) -> c.Estimate:
        return c.Pathwise(self.log_temperature.exp())(target, *inputs, **how)


class Policy(nn.Module):
    """A choice between costs that is the same for all data points."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2, 3))

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        choice = draw("choice", c.OneHotCategorical(logits=self.logits.expand(len(x), -1, -1)))
        return (choice * torch.tensor([[0.0, 2.0, 4.0], [4.0, 2.0, 0.0]])).sum((-1, -2))


@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_parameter_of_an_estimator_without_axes_is_trained(clip: float | None) -> None:
    estimator = LearnedTemperature()
    run = fitted(Gate(), (bits(), LABELS), estimator=estimator, clip=clip)
    assert estimator.log_temperature.item() != 0
    assert all(row.metrics["gradient_norm"] > 0 for row in run.rows)


def test_several_seeds_do_not_share_the_parameters_of_an_estimator() -> None:
    class OfModel(LearnedTemperature):
        def __init__(self, target: Any, *inputs: Any) -> None:
            super().__init__()

    how: dict[str, Any] = {"estimator": OfModel, "lr": 0.1}
    together = fitted(Gate, (bits(), LABELS), seed=range(2, 4), **how)
    alone = fitted(Gate, (bits(), LABELS), seed=3, **how)
    assert [row.objective for row in together[1].rows] == [row.objective for row in alone.rows]
    with pytest.raises(ValueError, match="estimator must be a class of modules for several seeds"):
        fitted(Gate, (bits(), LABELS), seed=range(2, 4), estimator=LearnedTemperature())


def test_a_choice_that_does_not_depend_on_data_may_become_certain() -> None:
    run = fitted(Policy(), bits(), estimator=c.RLOO(), samples=4, steps=300, lr=0.3)
    assert run.model.logits.argmax(-1).tolist() == [0, 2]
    assert run.model.logits.softmax(-1).amax(-1).min() > 0.999
    assert run.rows[-1].metrics["constant/choice"] == 0


def test_a_choice_that_depends_on_data_but_is_one_for_all_is_reported() -> None:
    class Certain(Policy):
        def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
            logits = self.logits.expand(len(x), -1, -1) + 0.01 * x[:, :3].unsqueeze(1)
            choice = draw("choice", c.OneHotCategorical(logits=logits + torch.tensor([0.0, 0.0, 30.0])))
            return choice[..., 0].sum(-1)

    with pytest.warns(TrainingWarning, match="node 'choice' has one category for all data"):
        fitted(Certain(), bits(), estimator=c.RLOO(), samples=2, steps=150)


class Gated(nn.Module):
    """A program whose inputs pass gates at a temperature that falls."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.layer = layer.Gate(6, temperature=c.Annealing(1.0, 0.5, steps=40)), nn.Linear(6, 2)

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=self.layer(self.gate(x))))
        return (z - 0.3).square().sum(-1) + layer.penalty(self)


def test_layers_advance_with_the_steps() -> None:
    whole = fitted(Gated(), steps=30)
    assert whole.model.gate.step == 30
    assert whole.model.gate.temperature == pytest.approx(0.5 ** (30 / 40))
    assert layer.report(whole.model)["gate"].expected_sparsity > 0.1


class Coded(nn.Module):
    """A program without draws, whose layers have penalties of data and of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.codebook = layer.Gate(6), layer.Codebook(6, 8)

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        return (self.codebook(self.gate(x)).value - x).square().sum(-1) + layer.penalty(self)


def test_a_program_of_layers_without_draws_is_trained_and_validated() -> None:
    run = fitted(Coded(), steps=20, valid=bits(20), every=10, samples=2)
    assert [row.valid is not None for row in run.rows] == [True, True]
    assert run.model.codebook.counts.sum() > 0


class Strided(nn.Module):
    """A program with a convolution, a transposed matrix and a matrix with gaps in memory, or copies without them."""

    def __init__(self, *, strided: bool) -> None:
        super().__init__()
        draws: Any = {"generator": torch.Generator().manual_seed(0), "dtype": torch.float64}
        weight, matrix, wide = (torch.randn(shape, **draws) for shape in ((4, 2, 3, 3), (3, 8), (8, 9)))
        others = matrix.T, wide[:, ::3]
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last) if strided else weight)
        self.matrix, self.gaps = (nn.Parameter(each if strided else each.contiguous()) for each in others)

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        h = nn.functional.conv2d(x.view(-1, 2, 2, 2), self.weight, padding=1).flatten(1)
        z = draw("z", c.Bernoulli(logits=h[:, :8] @ self.matrix))
        return (z @ self.gaps.T - c.tile(x, z)).square().sum(-1)


@pytest.mark.parametrize("optimizer", ["adam", "muon", torch.optim.AdamW])
def test_the_memory_format_of_parameters_changes_no_step(optimizer: Any) -> None:
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    models = [Strided(strided=strided) for strided in (True, False)]
    assert not any(each.is_contiguous() for each in models[0].parameters())
    for model in models:
        c.fit(model, x, estimator=c.RLOO(), samples=2, steps=8, batch=20, lr=1e-2, optimizer=optimizer)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
