"""Settings that would train something else than what was asked for are refused or named."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import concretely as c
from concretely.training.collapse import CollapseWatch
from concretely.training.train_state import Row

from .example import assert_same
from .own import Gate, Posterior, Prior, bits, build, fitted, said, saved, stopping

LABELS = (bits().sum(-1) % 3).long()


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    other = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"^optimizer must have parameters of the model, got one that has none of"):
        fitted(build, optimizer=lambda parameters: torch.optim.SGD(other.parameters(), 0.1), lr=None)


def test_parameters_that_an_optimizer_leaves_out_are_named() -> None:
    given: dict[str, Any] = {"data": (bits(), LABELS), "lr": None}
    (sentence,) = said(Gate(), optimizer=lambda parameters: torch.optim.SGD(parameters[:3], 0.1), **given)
    assert sentence == "the optimizer leaves out 3 of 6 parameters: maps.0.bias, maps.1.weight, maps.1.bias"
    assert said(Gate(), optimizer=torch.optim.SGD, **given | {"lr": 0.1}) == []


class Counting(torch.optim.Optimizer):
    """An optimizer that counts its steps in the options of its groups, as schedule-free ones do."""

    state_of_first: Any = 1.0

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "count": 0, "total": 0.0, "started": False})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["started"], group["count"], group["total"] = True, group["count"] + 1, group["total"] + group["lr"]
            for parameter in group["params"]:
                self.state[parameter].setdefault("first", self.state_of_first)
                parameter.sub_(parameter.grad, alpha=group["lr"] / group["count"] / (1 + group["total"]))


class Listing(Counting):
    """The same with a list in its state."""

    state_of_first: Any = ()


def test_an_optimizer_that_counts_in_its_groups_goes_on_from_its_counts(tmp_path: Path) -> None:
    whole = fitted(optimizer=Counting, out=tmp_path / "whole")
    fitted(optimizer=Counting, out=tmp_path / "parts", callbacks=stopping(13))
    assert fitted(optimizer=Counting, out=tmp_path / "parts").rows[-1].objective == whole.rows[-1].objective
    assert_same(saved(tmp_path / "parts"), saved(tmp_path / "whole"))


def test_an_optimizer_that_cannot_be_saved_is_refused_in_a_folder_only(tmp_path: Path) -> None:
    must = "optimizer must have a state of tensors and numbers to be saved, got tuple 'first': train without out, or "
    with pytest.raises(TypeError, match=f"^{must}"):
        fitted(optimizer=Listing, out=tmp_path)
    assert fitted(optimizer=Listing).finished


@pytest.mark.parametrize("several", [{"seed": range(2)}, {"arguments": {"drop": [0.0, 0.1]}}], ids=["seed", "argument"])
def test_runs_that_would_share_a_parameter_are_refused(several: dict[str, Any], tmp_path: Path) -> None:
    posterior = Posterior()
    sentence = (
        r"^a builder must make new parameters for each seed and setting, got the same 'q.encoder.0.weight' twice: "
    )
    with pytest.raises(ValueError, match=sentence):
        fitted(lambda drop=0.0: c.Model(Prior(), posterior), **several, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    posterior.requires_grad_(False)
    assert len(fitted(lambda drop=0.0: c.Model(Prior(), posterior), **several, steps=2)) == 2


class Tempered(Gate):
    """A program with a parameter for the temperature of its estimator."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.5))


@pytest.mark.parametrize("by_node", [False, True])
def test_a_temperature_that_is_a_parameter_of_the_model_is_learned(by_node: bool) -> None:
    model = Tempered()
    temperature = {"gate": model.temperature} if by_node else model.temperature
    assert said(model, (bits(), LABELS), estimator=c.Pathwise(temperature)) == []
    assert model.temperature.item() != 0.5


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"estimator": c.Pathwise(nn.Parameter(torch.tensor(0.5)))},
            "a temperature that is learned must be a parameter ",
        ),
        (
            {"estimator": c.Pathwise({"gate": nn.Parameter(torch.tensor(0.5))})},
            "a temperature that is learned must be a ",
        ),
        ({"estimator": c.Pathwise(nn.Parameter(torch.zeros(())).exp())}, "a temperature that is learned must be a par"),
        (
            {"temperature": nn.Parameter(torch.tensor(0.5))},
            "temperature must be numbers or schedules, got a tensor that ",
        ),
        (
            {"temperature": {"gate": nn.Parameter(torch.ones(()))}},
            "temperature must be numbers or schedules, got a tens",
        ),
    ],
)
def test_a_temperature_that_would_not_be_learned_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        fitted(Gate(), (bits(), LABELS), **given)


@dataclass
class Unhashable:
    """A schedule as a data class, which is not hashable."""

    value: float

    def __call__(self, step: int) -> float:
        return self.value


@pytest.mark.parametrize(
    "given",
    [
        {"schedule": lambda step: (1 - step / 10) ** 0.9},
        {"schedule": lambda step: torch.linspace(1, 0, 10)[step]},
        {"temperature": {"code": lambda step: np.linspace(1, 0.5, 10)[step]}},
        {"beta": lambda step: np.linspace(0, 1, 10, dtype=np.float32)[step]},
        {"temperature": torch.tensor(0.5)},
        {"temperature": np.float32(0.5), "beta": np.float32(0.5)},
        {"temperature": Unhashable(0.5), "beta": Unhashable(0.5), "schedule": Unhashable(0.5)},
    ],
)
def test_schedules_may_end_with_the_run_and_return_numbers_of_any_kind(given: dict[str, Any], tmp_path: Path) -> None:
    run = fitted(steps=10, out=tmp_path, **given)
    last = {name: value for name, value in run.rows[-1].values.items() if name in ("lr", "beta", "temperature/code")}
    again = fitted(steps=10, out=tmp_path, **given)
    assert again.rows == run.rows
    assert all(type(value) is float for value in last.values())


def test_settings_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    given = {"clip": np.float32(0.5), "ema": np.float16(0.5), "lr": np.float32(0.5), "steps": np.int64(3)}
    run = fitted(build, **given, out=tmp_path)
    assert fitted(build, **given, out=tmp_path).rows == run.rows
    assert (run.recipe.clip, run.recipe.ema, run.recipe.lr, run.step) == (0.5, 0.5, 0.5, 3)


def test_nodes_that_collapse_are_named_in_one_sentence_and_not_again_after_a_resume(tmp_path: Path) -> None:
    def build_row() -> c.Model:
        logits, layer = nn.Parameter(torch.zeros(6, 2)), nn.Linear(2, 6)

        def p(draw: c.Draw, x: Tensor | None = None) -> Tensor:
            steps = [draw(f"z{step}", c.Bernoulli(logits=torch.zeros(2))) for step in range(6)]
            return draw("x", c.Bernoulli(logits=layer(sum(steps))), observed=x)

        def q(draw: c.Draw, x: Tensor) -> None:
            for step, own in enumerate(logits):
                draw(f"z{step}", c.Bernoulli(logits=own.expand(len(x), -1)))

        return c.Model(p, q)

    given: dict[str, Any] = {"estimator": c.RLOO(), "samples": 2, "lr": 1e-4, "out": tmp_path}
    first, again = (said(build_row, steps=steps, **given) for steps in (110, 130))
    nodes = "6 nodes ('z0', 'z1', 'z2', 'z3', 'z4', …)"
    must = f"the KL of {nodes} is below 0.01 nats per unit at step 110: the model ignores them; try a warm-up of the KL"
    assert first == [f"{must} (see beta)"]
    assert again == []


def test_nodes_of_one_category_are_named_in_one_sentence() -> None:
    found = list[str]()
    watch = CollapseWatch(200, dict.fromkeys("abc", 1), found.append)
    watch(Row(110, 0.0, 0.1, None, -1.0, -1.0, metrics={"constant/a": 1.0, "constant/b": 0.5, "constant/c": 1.0}))
    todo = "if they should depend on the data, try a higher temperature or another estimator"
    assert found == [f"2 nodes ('a', 'c') have one category for all data at step 110: {todo}"]


class Extra(Gate):
    """A program with state that is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"count": 1}

    def set_extra_state(self, state: dict[str, int]) -> None: ...


def test_a_model_with_extra_state_is_trained_and_the_state_named(tmp_path: Path) -> None:
    given: dict[str, Any] = {"data": (bits(), LABELS), "valid": (bits(), LABELS), "every": 10, "out": tmp_path}
    sentence = "the extra state of Extra is neither saved nor kept with the best parameters: keep it in buffers"
    assert said(Extra, **given) == [sentence]
    assert said(Extra, **given, steps=40) == [sentence]
    assert isinstance(c.load(tmp_path), Extra)


class Widened(Gate):
    """A program with one more layer or parameter."""

    def __init__(self, more: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.more = more


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            lambda: nn.LazyLinear(2),
            "a model must have tensors of known shapes, got the lazy 'more.weight': give its layer",
        ),
        (
            lambda: nn.LazyBatchNorm1d(affine=False),
            "a model must have tensors of known shapes, got the lazy 'more.runn",
        ),
        (
            lambda: nn.Parameter(torch.zeros(2, dtype=torch.complex64)),
            "a model must have parameters of real numbers, got 'more' of complex64: train its view_as_real instead",
        ),
    ],
    ids=["lazy", "lazy buffer", "complex"],
)
def test_parameters_that_cannot_be_trained_are_named(more: Any, sentence: str, tmp_path: Path) -> None:
    for model in (Widened(more()), lambda: Widened(more())):
        with pytest.raises(ValueError, match=f"^{sentence}"):
            fitted(model, (bits(), LABELS), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_sparse_gradients_are_refused(tmp_path: Path) -> None:
    class Embedded(Gate):
        def __init__(self) -> None:
            super().__init__()
            self.label = nn.Embedding(3, 1, sparse=True)

        def forward(self, draw: c.Draw, x: Tensor, y: Tensor) -> Tensor:
            return super().forward(draw, x, y) + self.label(y).squeeze(-1)

    sentence = "gradients must be dense, got a sparse one of 'label.weight': leave out sparse=True"
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        fitted(Embedded, (bits(), LABELS), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", [np.float32, Fraction, torch.tensor])
def test_a_run_with_numbers_of_other_kinds_is_saved_and_read(kind: Any, tmp_path: Path) -> None:
    given: dict[str, Any] = {name: lambda step: kind(0.5) for name in ("temperature", "beta", "schedule")}
    given |= {} if kind is torch.tensor else {"clip": kind(0.5), "ema": kind(0.5)}
    fitted(**given, steps=2, out=tmp_path)
    assert fitted(**given, steps=2, out=tmp_path).rows[0].temperature == 0.5
