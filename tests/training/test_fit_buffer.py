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

from .example import assert_same
from .own import Posterior, Prior, fitted, stopping


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
