"""A run that diverges ends with a sentence, and leaves nothing that is not finite."""

import math
import re
from pathlib import Path

import pytest
import torch

import concretely as c
from concretely.training import checkpoint
from concretely.training.callback import Callbacks
from concretely.training.engine import _Program
from concretely.training.loop import DivergedError

from .example import assert_alike, assert_same, tensors, trained


def poisoned(monkeypatch: pytest.MonkeyPatch, step: int, name: str, value: float = math.nan) -> None:
    """Have a parameter become something that it must not be, right before a step."""
    take = _Program.take_steps

    def poisonous(program: _Program, index: int, steps: int, *, gap: bool) -> None:
        if index == step:
            with torch.no_grad():
                program._runs[0].model.get_parameter(name).view(-1)[0] = value
        take(program, index, steps, gap=gap)

    monkeypatch.setattr(_Program, "take_steps", poisonous)


@pytest.mark.parametrize(
    ("seconds", "way"),
    [(0.0, "the last good checkpoint is that of step 14"), (60.0, "there is no checkpoint yet")],
)
def test_a_gradient_that_is_not_finite_ends_the_run_with_the_step_the_layer_and_the_way_back(
    seconds: float, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        poisoned(patched, 14, "p.visible.network.0.weight")
        with pytest.raises(DivergedError) as caught:
            trained(tmp_path / "run", seconds=seconds)
    assert str(caught.value) == (
        f"the gradient of step 15 is not finite, first in layer p.visible.network.0; {way}: start a new run with a "
        "smaller lr in another folder"
    )
    if seconds == 0:
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors(tmp_path / "run").values())
    run = trained(tmp_path / "run")
    assert_alike(run, trained(tmp_path / "straight"))
    assert_same(tensors(tmp_path / "run"), tensors(tmp_path / "straight"))


def test_parameters_that_are_not_finite_are_never_saved_though_every_gradient_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, 4, "q.layers.1.network.0.bias", math.inf)  # which tanh hides
    with pytest.raises(DivergedError) as caught:
        trained(tmp_path, notation="4H~4H-12V", seconds=0.0)
    assert str(caught.value) == (
        "the parameters after step 5 are not finite, first in layer q.layers.1.network.0; "
        "the last good checkpoint is that of step 4: start a new run with a smaller lr in another folder"
    )
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors(tmp_path).values())


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_parameters_that_are_not_finite_are_not_validated(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, 4, "q.layers.1.network.0.weight", math.inf)
    with pytest.raises(DivergedError, match=r"(gradient of step|parameters after step) [5-8] "):
        trained(tmp_path, notation="4H~4H-12V", seconds=seconds, validate=7)


@pytest.mark.parametrize("lr", [1e3, 1e30, 1e38, 1e300])
@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_learning_rate_that_is_far_too_large_ends_the_run_and_leaves_nothing_that_is_not_finite(
    lr: float, seconds: float, tmp_path: Path
) -> None:
    with pytest.raises(DivergedError, match=r": start a new run with a smaller lr in another folder$"):
        trained(tmp_path, lr=lr, seconds=seconds)
    last = checkpoint.latest(tmp_path)
    assert last is None or all(bool(torch.isfinite(tensor).all()) for tensor in last.tensors.values())
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(("seconds", "by"), [(0.0, 8), (60.0, 10)])
def test_a_bound_beyond_hope_ends_the_run_before_it_is_saved(
    seconds: float, by: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, 7, "p.visible.network.0.bias", 1e6)
    with pytest.raises(DivergedError) as caught:
        trained(tmp_path, seconds=seconds)
    way = "the last good checkpoint is that of step 7" if seconds == 0 else "there is no checkpoint yet"
    assert re.fullmatch(
        rf"training has diverged by step {by}: its objective is -[\d.e+,]+, and was -\d\.\d+ at first; "
        rf"the largest gradient is that of layer \S+; {way}: start a new run with a smaller lr in another folder",
        str(caught.value),
    )


def test_bad_luck_is_not_divergence(tmp_path: Path) -> None:
    assert trained(tmp_path, lr=1.0).finished


class Bare(torch.nn.Module):
    """A program whose parameter is its own, and whose cost is NaN from the fifth step on."""

    def __init__(self) -> None:
        super().__init__()
        self.logits, self.calls = torch.nn.Parameter(torch.zeros(6)), 0

    def forward(self, draw: c.Draw, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        b = draw("b", c.Bernoulli(logits=self.logits.expand_as(x)))
        return (b * self.logits).sum(-1) * (math.nan if self.calls >= 5 else 1.0)


def test_a_parameter_without_a_layer_is_named_itself() -> None:
    with pytest.raises(DivergedError, match=r"of step \d+ is not finite, first in layer logits; try a smaller lr"):
        c.fit(Bare(), torch.zeros(20, 6), estimator=c.Reinforce(), steps=10, batch=10)


class Scaled(torch.nn.Module):
    """A program with a scale that rounds to zero or infinity when the parameters are large."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = torch.nn.Linear(6, 1)

    def forward(self, draw: c.Draw, x: torch.Tensor) -> torch.Tensor:
        scale = self.log_scale(x).exp()
        # `torch.compile` turns the checks of torch's distributions off for the rest of the process
        z = draw("z", torch.distributions.Normal(x.mean(-1, True), scale, validate_args=True))
        return (z - c.tile(x, z).mean(-1, True)).square().sum(-1)


def test_a_run_whose_distributions_are_refused_has_diverged_and_does_not_disturb_the_others() -> None:
    x = torch.linspace(-1, 1, 40).expand(6, 40).T.contiguous()
    how = {"steps": 20, "batch": 10, "callbacks": Callbacks(note=lambda sentence: None)}
    alone = c.fit(Scaled, x, lr=0.01, **how)
    first, second = c.fit(Scaled, x, lr=[0.01, 1e4], **how)
    assert_same(first.model.state_dict(), alone.model.state_dict())
    assert re.fullmatch(
        r"the gradient of step \d is not finite, first in layer log_scale; try a smaller lr", str(second.error)
    )


@pytest.mark.parametrize(("value", "what"), [(math.nan, "nan"), (math.inf, "infinity")])
def test_data_that_a_model_refuses_are_not_divergence(value: float, what: str) -> None:
    x = torch.zeros(40, 6)
    x[17, 3] = value  # not in the first batch
    named = rf"(?s)to satisfy the constraint.*, in step [123] on a batch of float32 \(10, 6\) with {what}$"
    with pytest.raises(ValueError, match=named):
        c.fit(Scaled, x, steps=20, batch=10, seed=1)
    named = rf"(?s)to satisfy the constraint.*, in a validation on a batch of float32 \(40, 6\) with {what}$"
    with pytest.raises(ValueError, match=named):
        c.fit(Scaled, torch.zeros(40, 6), valid=x, steps=20, batch=10, seed=1)
