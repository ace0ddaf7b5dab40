"""Buffers of a user's model, which only training steps change, come back with the parameters."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import concretely as c
from concretely.training.callback import Callbacks

from .example import assert_same
from .own import Posterior, Prior, bits, fitted, stopping


class Centred(Posterior):
    """An encoder that subtracts a running mean, which is no part of its state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        if self.training:
            self.mean = torch.lerp(self.mean, x.mean(0), 0.1)
        super().forward(draw, x - self.mean)


def whole(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers of a model."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def build() -> c.Model:
    return c.Model(Prior(), Centred())


@pytest.mark.parametrize("given", [{}, {"valid": True}, {"ema": 0.9}])
def test_a_buffer_outside_of_the_state_dict_comes_back(given: dict[str, Any], tmp_path: Path) -> None:
    seen, scores = dict[int, dict[str, Tensor]](), iter([3.0, 1.0, 2.0])

    def score(model: nn.Module) -> float:
        seen[len(seen)] = {name: own.clone() for name, own in whole(model).items()}
        return next(scores)

    given = given | {"out": tmp_path} | ({"valid": score, "every": 10} if "valid" in given else {})
    fitted(build, **given, callbacks=stopping(23))
    run = fitted(build, **given)
    assert run.model.q.mean.any()
    assert_same(whole(c.load(tmp_path)), whole(run.model))
    if seen:
        assert_same(whole(run.model), seen[1])
    exported = load_file(tmp_path / "model.safetensors")
    model = build()
    model.load_state_dict(exported)
    assert_same(dict(model.state_dict()), exported)


class Counting(Posterior):
    """An encoder that replaces a buffer in each step."""

    def __init__(self, start: Tensor, change: Callable[[Tensor, Tensor], Tensor | None]) -> None:
        super().__init__()
        self.register_buffer("seen", start)
        self.change = change

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        if self.training:
            self.seen = self.change(self.seen, x)
        super().forward(draw, x)


@pytest.mark.parametrize(
    ("start", "change", "sentence"),
    [
        (
            torch.zeros(0, 6),
            lambda seen, x: torch.cat([seen, x[:1]]),
            "float32 of shape (0, 6), got float32 of shape (1,",
        ),
        (
            torch.zeros(1, 6),
            lambda seen, x: torch.cat([seen, x[:1]]),
            "float32 of shape (1, 6), got float32 of shape (2,",
        ),
        (torch.zeros(6), lambda seen, x: seen.mean(), "float32 of shape (6,), got float32 of shape () in"),
        (
            torch.tensor(1),
            lambda seen, x: seen + 0.5,
            "int64 of shape (), got float32 of shape () in a training step: cr",
        ),
        (torch.zeros(6), lambda seen, x: None, "float32 of shape (6,), got None in a training step"),
    ],
    ids=["empty", "growing", "shrinking", "truncated", "none"],
)
def test_a_buffer_that_cannot_be_kept_is_refused(start: Tensor, change: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"buffer 'seen' of Counting must stay {sentence}")):
        fitted(c.Model(Prior(), Counting(start, change)))


def test_a_buffer_of_a_wider_dtype_takes_what_a_step_computes() -> None:
    model = c.Model(Prior(), Counting(torch.zeros(6), lambda seen, x: x.mean(0).bfloat16()))
    fitted(model)
    assert model.q.seen.dtype == torch.float32
    assert model.q.seen.any()


class Limited(Posterior):
    """An encoder that limits the norm of its weights: in place, or by new data."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        weight = self.encoder[0].weight
        limited = torch.renorm(weight.data, p=2, dim=0, maxnorm=0.3)
        if self.in_place:
            weight.data.copy_(limited)
        else:
            weight.data = limited
        super().forward(draw, x)


@pytest.mark.parametrize(
    "given",
    [{}, {"optimizer": torch.optim.SGD}, {"ema": 0.9, "valid": bits(), "every": 7}, {"seed": range(2)}],
    ids=["adam", "sgd", "ema", "seeds"],
)
def test_a_parameter_whose_data_the_model_replaces_is_trained_and_comes_back(
    given: dict[str, Any], tmp_path: Path
) -> None:
    def trained(in_place: bool, folder: str, callbacks: Any = ()) -> list[Any]:
        run = fitted(lambda: c.Model(Prior(), Limited(in_place)), **given, out=tmp_path / folder, callbacks=callbacks)
        return run if isinstance(run, list) else [run]

    expected = trained(True, "in place")
    whole_run, _ = trained(False, "whole"), trained(False, "parts", stopping(13))
    for run, other in zip(whole_run + trained(False, "parts"), expected * 2, strict=True):
        assert [row.objective for row in run.rows] == [row.objective for row in other.rows]
        assert_same(dict(run.model.state_dict()), dict(other.model.state_dict()))
        assert_same(dict(run.model.state_dict()), load_file(run.folder / "model.safetensors"))


def test_a_callback_may_replace_the_data_of_a_parameter(tmp_path: Path) -> None:
    def halve(in_place: bool) -> Any:
        torch.manual_seed(5)
        model = build()

        def change(row: Any) -> None:
            data = model.p.logits.data
            model.p.logits.data = data.div_(2) if in_place else data / 2

        return fitted(model, out=tmp_path / str(in_place), callbacks=change)

    one, other = halve(False), halve(True)
    assert [row.objective for row in one.rows] == [row.objective for row in other.rows]
    assert_same(dict(one.model.state_dict()), dict(other.model.state_dict()))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda model: model.q.requires_grad_(False), "got another 'q.encoder.0.weight'"),
        (lambda model: setattr(model.p, "logits", nn.Parameter(torch.zeros(2, 4))), "got another 'p.logits'"),
        (lambda model: model.double(), "a parameter must stay float32 of shape (2, 4) in training, got float64 of"),
    ],
    ids=["freeze", "replace", "dtype"],
)
def test_a_change_of_a_callback_that_cannot_be_kept_is_refused(change: Any, sentence: str) -> None:
    model = build()
    with pytest.raises(ValueError, match=re.escape(sentence)):
        fitted(model, callbacks=lambda row: change(model))


@pytest.mark.parametrize("stop", [9, 10, 11, 30])
def test_a_run_that_a_callback_changes_is_saved_as_changed(stop: int, tmp_path: Path) -> None:
    def run(*callbacks: Any, **given: Any) -> Any:
        torch.manual_seed(0)
        model = c.Model(Prior(), Posterior())

        def shrink(row: Any) -> None:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.9)

        return fitted(model, **given, callbacks=[shrink, *callbacks])

    whole = run().model.state_dict()
    assert run(stopping(stop), out=tmp_path).step == stop
    assert_same(dict(run(out=tmp_path).model.state_dict()), dict(whole))
    assert_same(dict(c.load(tmp_path, model=c.Model(Prior(), Posterior())).state_dict()), dict(whole))
    assert_same(load_file(tmp_path / "model.safetensors"), dict(whole))


def test_a_run_whose_callback_raises_is_saved_first(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fitted(build, out=tmp_path, callbacks=lambda row: 1 / (30 - row.step))
    steps = list[int]()
    assert fitted(build, out=tmp_path, callbacks=Callbacks(step=steps.append)).finished
    assert not steps
