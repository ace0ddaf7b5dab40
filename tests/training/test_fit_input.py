"""Bad input gets one sentence before any work is lost, and folders are never overwritten unasked."""

import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset

import concretely as c
from concretely.training.callback import Callbacks
from concretely.training.feed import TensorPoints
from concretely.training.fit import TrainingWarning
from concretely.training.loop import DivergedError
from concretely.training.trial import _unchanged

from . import own
from .example import assert_same
from .own import bits, build, fitted, said, saved, stopping

LABELS = (bits().sum(-1) % 3).long()


def needs_width(width: int) -> c.Model:
    return build(width)


class Silent(nn.Module):
    """A program whose cost has nothing to do with its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        return draw("z", c.Bernoulli(logits=self.layer(x).detach())).sum(-1)


class Nothing:
    """Batches whose number nobody knows, of which there is none."""

    def __iter__(self) -> Any:
        return iter(())


SENTENCES: list[tuple[dict[str, Any], str]] = [
    ({"model": needs_width}, "tests.training.test_fit_input:needs_width must be given width, got no value "),
    ({"model": build, "arguments": {"wide": 3}}, "tests.training.own:build has no parameter 'wide'"),
    ({"model": 3}, "a model must be a Model, a program or a function that builds one, got int"),
    ({"model": lambda: 3}, "the builder must return a Model or a program, got int"),
    ({"model": build(), "seed": range(2)}, "several seeds or settings need a function that builds the model, got 2 of"),
    ({"model": build(), "arguments": {"width": 3}}, "several seeds or settings need a function that builds the model"),
    ({"seed": []}, "seed must have at least one value, got none"),
    ({"seed": 1.5}, "seed must be a whole number, or several, got 1.5"),
    ({"seed": "a"}, "seed must be a whole number, or several, got 'a'"),
    ({"seed": [0, 1.5]}, "seed must be a whole number, not negative, got 1.5"),
    ({"seed": [3, 4, 3]}, "seeds and settings must differ between runs, got 'seed=3' twice: leave one of them out"),
    ({"lr": [0.1, 0.1]}, "seeds and settings must differ between runs, got 'lr=0.1' twice: leave one of them out"),
    ({"arguments": {"width": [3, 3]}}, "seeds and settings must differ between runs, got 'width=3' twice: leave one"),
    ({"lr": torch.ones(2)}, "lr must be a number, or a list of numbers, got tensor([1., 1.])"),
    ({"schedule": lambda step: None}, "schedule at step 0 must be a finite number, got None"),
    ({"schedule": lambda step: 1.0 if step < 29 else torch.nan}, "schedule at step 29 must be a f"),
    ({"temperature": lambda step: 0.29 - 0.01 * step}, "temperature at step 29 must be positive, got "),
    ({"temperature": {"code": lambda step: 29 - step}}, "temperature/code at step 29 must be positive, got 0"),
    ({"beta": lambda step: None}, "beta at step 0 must be finite and not negative, got None"),
    ({"beta": lambda step: 1 - step}, "beta at step 29 must be finite and not negative, got -28"),
    ({"valid": bits(width=7)}, "the model must run on a batch of valid, of float32 (2, 7), but it raised RuntimeError"),
    ({"valid": (bits(), LABELS)}, "the model must run on a batch of valid, of float32 (2, 6) and int64 (2,), but it "),
    (
        {"valid": [bits(width=7)]},
        "the model must run on a batch of valid, of float32 (60, 7), but it raised RuntimeError",
    ),
    (
        {"valid": bits() / 2},
        "the model must run on a batch of valid, of float32 (2, 6), but it raised ValueError: observed node 'x': ",
    ),
    ({"valid": Nothing()}, "valid must have at least one data point, got none"),
    ({"data": 3}, "data must be tensors, a data set, a DataLoader or batches, got int"),
    ({"data": bits().to_sparse()}, "data must consist of dense tensors, got one of layout sparse_coo: pass to_dense()"),
    ({"data": Dataset()}, "data must have a length, got a Dataset without __len__: define it, or pass"),
    ({"model": build().to("meta")}, "a model must have tensors with values, got 'p.logits' on the device meta: "),
    ({"data": bits()[:0]}, "data must have at least one data point, got a tensor of shape (0, 6)"),
    ({"data": (bits(), bits()[:3])}, "data must have as many data points in every tensor, got 60 and 3"),
    ({"data": (bits(), LABELS)}, "a model of (x) must be given as many inputs, got 2 inputs: pass inputs=, a function"),
    ({"model": own.Gate, "data": bits()}, "a program of (x, y) must be given as many inputs, got 1 input: put them in"),
    (
        {"model": own.Gate, "data": [bits(), LABELS]},
        "a program of (x, y) must be given as many inputs, got 1 input: put them in a tuple, as each entry of a list "
        "is a batch, or pass inputs=, a function from a batch to the inputs",
    ),
    ({"estimator": 3}, "estimator must be an estimator, such as Pathwise() or RLOO(), got int"),
    ({"estimator": c.RLOO(), "temperature": 0.5}, "temperature must be left out, as RLOO has none, got 0.5"),
    ({"estimator": c.RLOO(), "samples": 1}, "samples must be at least 2 for RLOO, got 1"),
    ({"temperature": {"cod": 0.5}}, "temperature must name"),
    ({"model": own.Gate, "data": (bits(), LABELS), "beta": 0.5}, "beta must be left out, as only a model with q has a"),
    ({"optimizer": "adan"}, "unknown optimizer 'adan'; did you mean 'adam'?"),
    ({"optimizer": torch.optim.LBFGS}, "optimizer must take a step from one gradient, got LBFGS"),
    ({"schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'?"),
    ({"precision": "half"}, "unknown precision 'half'"),
    ({"precision": 16}, "unknown precision 16"),
    ({"optimizer": 3}, "optimizer must be a name, a class of torch.optim or a function, got int"),
    ({"optimizer": None}, "optimizer must be a name, a class of torch.optim or a function, got None"),
    ({"schedule": StepLR}, "schedule must be a name or a function of the step that returns a factor of the learning r"),
    ({"arguments": [{"width": 4}]}, "arguments must be a dictionary, whose lists are several settings, got [{'w"),
    ({"beta": c.Warmup}, "beta must be a number, or a schedule such as Warmup(1000), got <class 'concretely."),
    ({"beta": "0.5"}, "beta must be a number, or a schedule such as Warmup(1000), got '0.5'"),
    ({"beta": -1}, "beta must be finite and not negative, got -1"),
    ({"inputs": 0}, "inputs must be a function from a batch to the inputs, got 0"),
    ({"checkpoint_seconds": -1.0}, "checkpoint_seconds must be a number that is not negative, got -1.0"),
    ({"lr": "0.1"}, "lr must be a number, or a list of numbers, got '0.1'"),
    ({"lr": [0.1, "0.2"]}, "lr must be a number, or a list of numbers, got [0.1, '0.2']"),
    ({"clip": "1"}, "clip must be positive, got '1'"),
    ({"ema": "0.9"}, "ema must be at least 0 and below 1, such as 0.999, got '0.9'"),
    ({"device": "gpu"}, "device must be available to torch, such as 'cpu', got 'gpu'"),
    ({"device": "cuda:99"}, "device must be available to torch, such as 'cpu', got 'cuda:99'"),
    ({"model": nn.Linear(6, 2)}, "a program must take draw before its inputs, as in forward(draw, x), got (input)"),
    ({"valid": []}, "valid must have at least one batch, got none"),
    ({"data": []}, "data must have at least one batch, got none"),
    ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
    ({"valid": bits(), "every": -1}, "every must be a whole number, not negative, got -1"),
    ({"batch": 2.5}, "batch must be a whole number of at least 1, got 2.5"),
    ({"lr": -1.0}, "lr must be positive, got -1.0"),
    ({"ema": 1.0}, "ema must be at least 0 and below 1, such as 0.999, got 1.0"),
    ({"patience": 2}, "patience must be 0 unless valid is given, got 2"),
    ({"valid": iter([bits()])}, "valid must be data that can be read again, got an iterator: pass a DataLoader or"),
    ({"seed": range(2), "data": iter([bits()])}, "data must be readable once for each seed, got an iterator: pass a"),
    ({"callbacks": [3]}, "callbacks must be functions of a row, or loggers such as ProgressBar(), got int"),
    ({"callbacks": c.ProgressBar}, "callbacks must be functions of a row, or loggers such as ProgressBar(), got the"),
    ({"model": Silent}, "the loss must depend on the parameters of the model, got"),
    ({"model": lambda: lambda draw, x: draw("z", c.Bernoulli(logits=x)).sum(-1)}, "a model must have parameters to"),
]


@pytest.mark.filterwarnings("ignore::concretely.training.fit.TrainingWarning")
@pytest.mark.parametrize(("given", "sentence"), SENTENCES)
def test_bad_input_gets_a_sentence_and_leaves_nothing(given: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{re.escape(sentence)}") as error:
        fitted(**given, out=tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"data": [bits()[:6], bits()[:0]]}, r"^every batch of data must have a data point, got none in batch 2$"),
        ({"valid": lambda model: None, "every": 1}, r"^valid must return a number, got NoneType$"),
    ],
)
def test_bad_input_that_only_a_step_shows_gets_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        fitted(build, **given)


def test_seeds_may_be_numbers_of_numpy() -> None:
    assert fitted(build, seed=np.int64(4), steps=2).seed == 4
    assert [run.seed for run in fitted(build, seed=np.arange(2), steps=2)] == [0, 1]


def test_a_file_is_not_taken_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("precious")
    with pytest.raises(ValueError, match=r"^out must be the path of a folder, got '.*notes'$"):
        fitted(build, out=tmp_path / "notes", overwrite=True)
    assert (tmp_path / "notes").read_text() == "precious"


def test_a_class_as_an_instance_of_an_optimizer_is_refused() -> None:
    model = build()
    with pytest.raises(TypeError, match=r"^optimizer must be made by fit, got an instance: pass torch.optim.SGD or"):
        fitted(model, optimizer=torch.optim.SGD(model.parameters(), 0.1), lr=None)


class Spare(own.Posterior):
    """An encoder with a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 3)


def test_parameters_without_a_gradient_are_named() -> None:
    (sentence,) = said(c.Model(own.Prior(), Spare()))
    assert sentence == "no gradient reaches 2 of 11 parameters: q.spare.weight, q.spare.bias"
    with pytest.warns(TrainingWarning, match="no gradient reaches 2 of 11 parameters"):
        fitted(c.Model(own.Prior(), Spare()))


class Decisive(nn.Module):
    """A program whose choices have a gradient in training only."""

    def __init__(self, choice: nn.Module, spare: bool = False) -> None:
        super().__init__()
        self.score, self.choice, self.norm = nn.Linear(6, 4), choice, nn.BatchNorm1d(4)
        self.spare = nn.Linear(2, 2) if spare else nn.Identity()

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        chosen = self.choice(self.norm(self.score(x)))
        return (chosen.flatten(1)[:, 0] - x[:, 0]).square()


class Drop(nn.Module):
    """The drop-in function, without noise in evaluation."""

    def forward(self, logits: Tensor) -> Tensor:
        if self.training:
            return c.gumbel_softmax(logits, tau=0.5, hard=True)
        return nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)


@pytest.mark.parametrize(
    "choice",
    [Drop, lambda: c.layer.Choose(2), lambda: c.layer.Choice([nn.Linear(4, 1) for _ in range(3)])],
    ids=["gumbel_softmax", "Choose", "Choice"],
)
def test_parameters_with_a_gradient_in_training_only_are_trained_and_not_named(choice: Any) -> None:
    assert said(Decisive(choice())) == []
    (sentence,) = said(Decisive(choice(), spare=True))
    assert sentence.startswith("no gradient reaches 2 of ")
    assert sentence.endswith(" parameters: spare.weight, spare.bias")


def test_the_search_for_gradients_changes_no_buffer_and_counts_nothing() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), c.layer.Codebook(4, 5)).train()
    model(bits())
    codebook = model[2]
    counted, before = codebook._counted, {name: own.clone() for name, own in model.state_dict().items()}
    counts = counted.clone()
    with _unchanged(model.eval()):
        model(bits())
        assert model.training
        assert not model[1].running_mean.equal(before["1.running_mean"])
    assert all(own.equal(before[name]) for name, own in model.state_dict().items())
    assert codebook._counted is counted
    assert counted.equal(counts)


def test_a_frozen_parameter_stays_and_is_not_named() -> None:
    model = build()
    model.p.decoder[0].weight.requires_grad_(False)
    before = model.p.decoder[0].weight.clone()
    assert said(model, ema=0.5) == []
    assert model.p.decoder[0].weight.equal(before)


class Dice(own.Posterior):
    """An encoder that depends on numbers from outside of torch."""

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        super().forward(draw, x * random.choice([0.1, 9.0]))


def test_numbers_from_outside_of_torch_are_noticed() -> None:
    random.seed(1)
    (sentence,) = said(c.Model(own.Prior(), Dice()))
    assert sentence.startswith(
        "the loss differs between two runs on the same batch with the same noise: it uses numbers"
    )


def test_a_run_that_diverges_is_an_error_with_a_way_back(tmp_path: Path) -> None:
    with pytest.raises(
        DivergedError,
        match=r"; the last good checkpoint is that of step 1\d: start a new run with a smaller lr in another folder$",
    ):
        fitted(build, out=tmp_path, schedule=lambda step: 1.0 if step < 15 else 1e38, checkpoint_seconds=0.0)
    runs = fitted(build, lr=[0.01, 1e38], callbacks=Callbacks(note=lambda sentence: None))
    assert [run.error is None for run in runs] == [True, False]
    assert "try a smaller lr" in str(runs[1].error)


def test_another_setting_in_the_same_folder_is_refused_and_the_run_stays(tmp_path: Path) -> None:
    fitted(build, out=tmp_path, callbacks=stopping(7))
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    must = "a resumed run must keep its recipe except for steps"
    sentence = f"^{must}, got other values of lr: restore them, or start a new run in another folder or with overwrite$"
    with pytest.raises(ValueError, match=sentence):
        fitted(build, out=tmp_path, lr=0.02)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert fitted(build, out=tmp_path, lr=0.02, overwrite=True).finished
    assert fitted(build, out=tmp_path, lr=0.02, steps=40).step == 40  # and it may go on for longer


def test_several_settings_are_trained_each_in_its_folder(tmp_path: Path) -> None:
    runs = fitted(build, arguments={"width": [4, 8], "drop": 0.1}, lr=[0.01, 0.02], steps=5, out=tmp_path)
    names = [f"width={width},lr={lr}" for width in (4, 8) for lr in (0.01, 0.02)]
    assert [run.folder.name for run in runs] == names
    assert [dict(run.recipe.arguments) for run in runs] == [{"width": w, "drop": 0.1} for w in (4, 4, 8, 8)]
    alone = fitted(partial(build, drop=0.1), arguments={"width": 8}, lr=0.02, steps=5, out=tmp_path / "alone")
    assert_same(dict(runs[3].model.state_dict()), dict(alone.model.state_dict()))


def test_rates_that_are_equal_when_rounded_have_folders_of_their_own(tmp_path: Path) -> None:
    runs = fitted(build, lr=[0.01, 0.01 + 1e-9], steps=2, out=tmp_path)
    assert [run.folder.name for run in runs] == ["lr=0.01", "lr=0.010000001"]


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    found = list[str]()
    given = stopping(7)
    fitted(build, out=tmp_path, callbacks=[Callbacks(step=given.step), Callbacks(note=found.append)])
    assert found == ["stopped after step 7 and saved; the same call goes on from there"]
    assert saved(tmp_path)


def test_a_node_that_is_ignored_is_named_once() -> None:
    found = said(build, bits()[:1].expand(40, -1).clone(), steps=120, lr=0.05, estimator=c.RLOO(), samples=2)
    assert len(found) == 1
    assert re.match(
        r"the KL of node 'code' is \S+ nats per unit at step \d+: the model ignores it; try a warm-up of the KL",
        found[0],
    )


def test_of_several_runs_the_one_that_ignores_a_node_is_named(tmp_path: Path) -> None:
    given = {"steps": 120, "estimator": c.RLOO(), "samples": 2}
    same = bits()[:1].expand(40, -1).clone()
    found = said(build, same, **given, lr=[0.05, 0.06])
    assert {sentence.partition(":")[0] for sentence in found} == {"lr=0.05", "lr=0.06"}
    found = said(build, same, **given, lr=0.05, seed=range(2), out=tmp_path)
    assert {sentence.partition(":")[0] for sentence in found} == {"seed=0", "seed=1"}


def test_a_warning_has_the_line_of_the_caller() -> None:
    data = bits()[:1].expand(40, -1).clone()
    with pytest.warns(TrainingWarning) as caught:
        c.fit(build(), data, steps=120, lr=0.05, batch=8, estimator=c.RLOO(), samples=2)
    assert {warning.filename for warning in caught} == {__file__}


def test_one_category_for_all_data_is_named_once() -> None:
    gate = own.Gate()
    with torch.no_grad():
        gate.gate.bias[0] = 50.0
    found = said(gate, (bits(), LABELS), steps=120, estimator=c.RLOO(), samples=2)
    assert found == [
        "node 'gate' has one category for all data at step 110: if it should depend on the data, try another estimator"
    ]


class Halved(own.Prior):
    """A decoder that changes its input in place from the twelfth call on."""

    calls = 0

    def forward(self, draw: c.Draw, x: Tensor | None = None) -> Tensor:
        self.calls += 1
        return super().forward(draw, x.mul_(0.5) if x is not None and self.calls > 12 else x)


def test_data_of_bits_that_a_program_changes_are_checked_again() -> None:
    with pytest.raises(ValueError, match="value must lie in the support of Bernoulli"):
        fitted(c.Model(Halved(), own.Posterior()))


def test_points_are_bits_until_they_change() -> None:
    points = TensorPoints(own.bits())
    assert points.are_bits
    points._leaves[0][3, 1] = 0.5
    assert not points.are_bits
    assert not TensorPoints((own.bits(), own.bits())).are_bits


class Spoiled(own.Posterior):
    """An encoder that adds a number to one of its logits from the twelfth call on."""

    calls = 0

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        self.calls += 1
        added = torch.zeros(8)
        added[3] = self.number if self.calls > 12 else 0.0
        draw("code", c.OneHotCategorical(logits=(self.encoder(x) + added).unflatten(-1, (2, 4))))


@pytest.mark.parametrize(
    ("number", "estimator", "sentence"),
    [
        (torch.nan, c.RLOO(), r"logits must be numbers, got nan at index \(0, 0, 3\)"),
        (torch.nan, c.Pathwise(0.5), r"logits must be numbers, got nan at index \(0, 0, 3\)"),
        (-torch.inf, c.Pathwise(0.5), r"logits must be finite to be relaxed, got -inf at index \(0, 0, 3\)"),
    ],
)
def test_logits_that_stop_being_finite_are_named(number: float, estimator: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fitted(c.Model(own.Prior(), Spoiled(number)), estimator=estimator)


def test_a_category_that_becomes_impossible_does_not_end_a_run_of_discrete_draws() -> None:
    run = fitted(c.Model(own.Prior(), Spoiled(-torch.inf)), estimator=c.RLOO())
    assert run.finished
