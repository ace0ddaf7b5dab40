"""Buffers of a user's model, which only training steps change, come back with the parameters."""

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
