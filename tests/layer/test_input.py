"""Bad input is refused with one sentence."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from concretely.layer import (
    Choice,
    Choose,
    Codebook,
    ConcreteDropout,
    Gate,
    Levels,
    Permute,
    Router,
    Selector,
    Target,
    advance,
    gumbel_top_k,
    penalty,
    sinkhorn,
)
from concretely.schedule import Annealing

LINEAR = nn.Linear(3, 3)
X = torch.zeros(4, 3)
NO_SETTING = "temperature must be a number, a floating tensor or a schedule, got NoneType"


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Router(3, 4, 5), "k must be between 1 and 4, the number of experts, for Router(3, 4), got 5"),
        (lambda: Router(3, 4, 0), "k must be between 1 and 4, the number of experts, for Router(3, 4), got 0"),
        (lambda: Router(3, 4, 2.0), "k must be a whole number, got float"),
        (lambda: Router(3, 4, True), "k must be a whole number, got bool"),
        (lambda: Router(3, 1, 1), "experts must be at least 2, got 1"),
        (lambda: Router(3, 4, 2, noise="gauss"), "noise must be one of 'gumbel', 'learned', got 'gauss'"),
        (lambda: Router(3, 4, 2, balance=-1), "balance must not be negative, got -1"),
        (lambda: Router(4, 4, 2)(X), "x must have a last axis of length 4, got shape (4, 3)"),
        (lambda: Router(3, 4, 2)(X.long()), "x must be a floating tensor, got torch.int64"),
        (
            lambda: Router(3, 4, 2)(X, mask=torch.ones(3, dtype=torch.bool)),
            "mask must be torch.bool of shape (4,), got torch.bool of shape (3,)",
        ),
        (lambda: Router(3, 4, 2, bias_rate=-1), "bias_rate must not be negative, got -1"),
        (lambda: Router(3, 4, 2).penalty(5), "penalty of Router must be of a Routing, got int"),
        (lambda: Codebook(3, 8).penalty(X), "penalty of Codebook must be of a Coded, got Tensor"),
        (lambda: Codebook(3, 1), "codes must be at least 2, got 1"),
        (lambda: Codebook(3, 8, groups=2), "size must be a multiple of groups, got size 3 and 2 groups"),
        (lambda: Codebook(3, 8, temperature=0.0), "temperature must be positive, got 0"),
        (lambda: Codebook(3, 8, temperature=lambda step: -1.0), "temperature must be positive, got -1"),
        (lambda: Codebook(3, 8, temperature=torch.ones(3)), "temperature must be one number, got shape (3,)"),
        (lambda: Codebook(3, 8, temperature=torch.tensor(-0.5)), "temperature must be positive, got -0.5"),
        (
            lambda: Codebook(3, 8, temperature="cold"),
            "temperature must be a number, a floating tensor or a schedule, got str",
        ),
        (
            lambda: Codebook(3, 8, temperature=torch.tensor(1)),
            "temperature must be a number, a floating tensor or a schedule, got torch.int64",
        ),
        (
            lambda: Codebook(3, 8, gradient="soft"),
            "gradient must be one of 'straight-through', 'relaxed', got 'soft'",
        ),
        (lambda: Codebook(4, 8)(X), "x must have a last axis of length 4, got shape (4, 3)"),
        (
            lambda: Codebook(3, 8)(X, mask=torch.ones(4)),
            "mask must be torch.bool of shape (4,), got torch.float32 of shape (4,)",
        ),
        (lambda: Levels((3, 1)), "levels must be at least 2, got 1"),
        (
            lambda: Levels((3, 3, 3))(X.index_fill(0, torch.tensor(2), math.nan)),
            "x must be numbers, got nan at index (2, 0)",
        ),
        (lambda: Levels(()), "levels must have a number for each dimension, got none"),
        (lambda: Levels((8, 8))(X), "x must have a last axis of length 2, got shape (4, 3)"),
        (lambda: Levels((2,) * 64), "levels must give fewer than 2**63 codes, got 18446744073709551616"),
        (lambda: Levels(5), "levels must have a number for each dimension, got int"),
        (lambda: Levels((8, 5)).values(X), "indices must be a tensor of whole numbers, got torch.float32"),
        (lambda: Choice([1, "a"]), "branches must be modules, got int, str"),
        (lambda: Choice({"a": LINEAR, "b": LINEAR}), "branches must be modules, got str"),
        (lambda: Choice([LINEAR, LINEAR], cost="ab"), "cost must have one number for each of 2 branches, got 'ab'"),
        (lambda: Choice([LINEAR, LINEAR], cost=[1.0, math.nan]), "cost must be finite, got [1.0, nan]"),
        (lambda: Choice([LINEAR, LINEAR], temperature=torch.ones(2)), "temperature must be one number, got shape (2,)"),
        (lambda: Choose(2, temperature=torch.ones(4, 1)), "temperature must be one number, got shape (4, 1)"),
        (lambda: Permute(3, temperature=torch.ones(0)), "temperature must be one number, got shape (0,)"),
        (
            lambda: ConcreteDropout(LINEAR, points=3, temperature=torch.ones(2)),
            "temperature must be one number, got shape (2,)",
        ),
        (lambda: Gate(3, temperature=torch.ones(2)), "temperature must broadcast to shape (3,), got shape (2,)"),
        (lambda: Gate(3, temperature=torch.ones(4, 1)), "temperature must broadcast to shape (3,), got shape (4, 1)"),
        (lambda: Gate(3, axis="last"), "axis must be negative, counted from the last axis of the inputs, got last"),
        (lambda: Gate(3).l0(torch.ones(2)), "cost must be one number or of shape (3,), got shape (2,)"),
        (
            lambda: Gate(3).keep(torch.ones(3)),
            "chosen must be torch.bool of shape (3,), got torch.float32 of shape (3,)",
        ),
        (lambda: Gate(3).advance("a"), "steps must be a whole number that is not negative, got 'a'"),
        (lambda: Gate(3).advance(-1), "steps must be a whole number that is not negative, got -1"),
        (lambda: Choice([LINEAR]), "branches must be at least 2 modules, got 1"),
        (
            lambda: Choice([LINEAR, LINEAR], cost=[1.0]),
            "cost must have one number for each of 2 branches, got shape (1,)",
        ),
        (lambda: Choice([LINEAR, LINEAR], temperature=-1), "temperature must be positive, got -1"),
        (
            lambda: ConcreteDropout(nn.ReLU(), points=3),
            "layer must be an nn.Linear or a convolution, got ReLU",
        ),
        (lambda: ConcreteDropout(LINEAR, points=0), "points must be at least 1, got 0"),
        (
            lambda: ConcreteDropout(LINEAR, points=3, probability=1.5),
            "probability must lie between 0 and 1, got 1.5",
        ),
        (
            lambda: ConcreteDropout(LINEAR, points=3, probability=0),
            "probability must lie strictly between 0 and 1 to be learned, got 0",
        ),
        (lambda: ConcreteDropout(LINEAR, points=3, precision=0), "precision must be positive, got 0"),
        (lambda: Gate(), "shape must have at least one axis, got none"),
        (lambda: Gate(0), "shape must be at least 1, got 0"),
        (lambda: Gate(3, temperature=0), "temperature must be positive, got 0"),
        (lambda: Gate(3, stretch=(0.0, 1.1)), "stretch must begin below 0 and end above 1, got (0.0, 1.1)"),
        (lambda: Gate(3, axis=1), "axis must be negative, counted from the last axis of the inputs, got 1"),
        (lambda: Gate(3, each="token"), "each must be one of 'point', 'batch', got 'token'"),
        (lambda: Gate(3, probability=1), "probability must lie strictly between 0 and 1 to be learned, got 1"),
        (lambda: Gate(4)(X), "x must have axes of lengths (4,) that end at axis -1, got shape (4, 3)"),
        (lambda: Gate(4, axis=-3)(X), "x must have axes of lengths (4,) that end at axis -3, got shape (4, 3)"),
        (lambda: Gate(3)(X.long()), "x must be a floating tensor, got torch.int64"),
        (lambda: Gate(3).decide(keep=4), "keep must be between 0 and 3, the number of gates, got 4"),
        (lambda: Gate(4).prune(LINEAR), "a layer to prune must have 4 units at the gate, got 3"),
        (lambda: Gate(3).prune(nn.ReLU()), "a layer to prune must be an nn.Linear or a convolution, got ReLU"),
        (lambda: Gate(3, 3).prune(LINEAR), "shape must have one axis to prune layers, got (3, 3)"),
        (lambda: Target([Gate(3)], sparsity=1.5), "sparsity must lie between 0 and 1, got 1.5"),
        (lambda: Target([Gate(3)], sparsity=-0.1), "sparsity must lie between 0 and 1, got -0.1"),
        (lambda: Target([Gate(3)], sparsity="half"), "sparsity must be a number, got str"),
        (lambda: Target([], sparsity=0.5), "gates must be one or more Gate layers, got none"),
        (lambda: Target(None, sparsity=0.5), "gates must be one or more Gate layers, got NoneType"),
        (lambda: Target(LINEAR, sparsity=0.5), "gates must be one or more Gate layers, got Linear"),
        (lambda: Target(Gate(3), sparsity=0.5, size=3), "size must be a function of the gates' values, got int"),
        (
            lambda: Target(Gate(3), sparsity=0.5, size=lambda gate: gate).penalty(),
            "size must return a tensor with one number, got shape (3,)",
        ),
        (
            lambda: Target(Gate(3), sparsity=0.5, size=lambda gate: 3.0).penalty(),
            "size must return a tensor with one number, got float",
        ),
        (
            lambda: Target([Gate(3), Gate(2)], sparsity=0.5, size=lambda gate: gate.sum()),
            "size must take the values of 2 gates, one tensor each, got (gate)",
        ),
        (
            lambda: Target(Gate(3), sparsity=0.5, size=lambda gate: 0 * gate.sum()).penalty(),
            "size must be positive with all gates open, got 0",
        ),
        (lambda: Target([LINEAR], sparsity=0.5), "gates must be one or more Gate layers, got Linear"),
        (lambda: Selector(3, 4), "k must be between 1 and 3, the number of features, got 4"),
        (lambda: Selector(3, "2"), "k must be a whole number, got str"),
        (lambda: Selector(4, 2)(X), "x must have a last axis of length 4, got shape (4, 3)"),
        (lambda: Selector(3, 2, temperature=torch.ones(3)), "temperature must be one number, got shape (3,)"),
        (lambda: Choose(2.0), "k must be a whole number, got float"),
        (lambda: Choose(4)(X), "scores must have at least k = 4 items, got shape (4, 3)"),
        (lambda: Choose(2)(X.long()), "scores must be a floating tensor, got torch.int64"),
        (lambda: Choose(2, gradient="soft"), "gradient must be one of 'relaxed', 'mean', got 'soft'"),
        (lambda: gumbel_top_k(X, 4), "k must be between 1 and 3, the number of items, got 4"),
        (lambda: gumbel_top_k(X, 2, dim=2), "dim must be an axis of the scores, got 2 for scores of shape (4, 3)"),
        (
            lambda: gumbel_top_k(X, 2, temperature=-1.0),
            "temperature must be positive, or 0 for the discrete limit, got -1",
        ),
        (lambda: gumbel_top_k(X, 2, dim="a"), "dim must be an axis of the scores, got 'a' for scores of shape (4, 3)"),
        (lambda: sinkhorn(X[:3] * math.nan), "scores must be numbers below infinity, got inf or nan"),
        (lambda: sinkhorn(X[:3] + math.inf), "scores must be numbers below infinity, got inf or nan"),
        (lambda: Permute(0), "n must be at least 1, got 0"),
        (lambda: Permute(3, temperature=-1.0), "temperature must be positive, got -1"),
        (lambda: Permute(3)(X), "scores must end in shape (3, 3), got shape (4, 3)"),
        (lambda: Permute(3)(X.long()), "scores must be a floating tensor, got torch.int64"),
        (lambda: sinkhorn(X), "scores must have two last axes of the same length, got shape (4, 3)"),
        (
            lambda: sinkhorn(X[:3], temperature=0.0),
            "temperature must be positive, got 0: use Permute in evaluation mode for the limit",
        ),
        (lambda: sinkhorn(X[:3].long()), "scores must be a floating tensor, got torch.int64"),
        (
            lambda: sinkhorn(X[:3] - math.inf),
            "scores must be finite, got -inf: use a large negative number for what must not be matched",
        ),
        (
            lambda: sinkhorn(X[:3], temperature=torch.tensor(0.0)),
            "temperature must be positive, got 0: use Permute in evaluation mode for the limit",
        ),
        (
            lambda: sinkhorn(torch.zeros(4, 3, 3), temperature=torch.ones(3)),
            "temperature must have one number for each matrix, (4,), got shape (3,)",
        ),
        (lambda: sinkhorn(X[:3], steps=10**30), f"steps must be below 2**63, got {10**30}"),
        (lambda: gumbel_top_k(X + math.inf, 2), "scores must be numbers below infinity, got inf or nan"),
        (lambda: gumbel_top_k(X * math.nan, 2), "scores must be numbers below infinity, got inf or nan"),
        (
            lambda: gumbel_top_k(X, 2, temperature=torch.ones(2)),
            "temperature must broadcast to the scores' shape (4, 3), got shape (2,)",
        ),
        (lambda: Choose(2, gradient=np.ones(3)), "gradient must be one of 'relaxed', 'mean', got array([1., 1., 1.])"),
        (lambda: Choose(2, gradient=torch.ones(9, 9)), "gradient must be one of 'relaxed', 'mean', got Tensor"),
        (lambda: Choose(2, temperature=1e-40), "temperature must be at least 1.2e-30, got 1e-40"),
        (lambda: Choose(2, temperature=1e40), "temperature must be at most 1e+30, got 1e+40"),
        (lambda: Choose(2, temperature=torch.tensor(math.inf)), "temperature must be positive, got inf"),
        (lambda: Codebook(3, 8, temperature=None), NO_SETTING),
        (lambda: Gate(3, temperature=None), NO_SETTING),
        (lambda: Choice([LINEAR, LINEAR], temperature=None), NO_SETTING),
        (lambda: Codebook(3, 8).values(X), "indices must be a tensor of torch.int64, got torch.float32"),
        (lambda: Codebook(3, 8).values(5), "indices must be a tensor of torch.int64, got int"),
        (
            lambda: Codebook(4, 8, groups=2).values(torch.zeros(4, 1, dtype=torch.int64)),
            "indices must have a last axis of length 2, got shape (4, 1)",
        ),
        (
            lambda: Codebook(4, 8, groups=2).values(torch.tensor([8, 0])),
            "indices must lie between 0 and 7, got 0 to 8",
        ),
        (
            lambda: Codebook(4, 8, groups=2).values(torch.tensor([0, -1])),
            "indices must lie between 0 and 7, got -1 to 0",
        ),
        (lambda: Gate(3).l0("a"), "cost must be a number or a tensor, got str"),
        (lambda: Gate(10**30), f"shape must be below 2**63, got {10**30}"),
        (lambda: Levels(torch.tensor(3)), "levels must have a number for each dimension, got Tensor"),
        (lambda: Target(torch.tensor(3.0), sparsity=0.5), "gates must be one or more Gate layers, got Tensor"),
        (lambda: Choice(torch.tensor(3.0)), "branches must be modules, got Tensor"),
        (lambda: Choice([LINEAR, LINEAR], cost=b"ab"), "cost must have one number for each of 2 branches, got b'ab'"),
        (lambda: penalty(None), "model must be an nn.Module, got NoneType"),
        (lambda: advance(LINEAR, -1), "steps must be a whole number that is not negative, got -1"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    assert str(error.value) == sentence


def test_a_tensor_of_temperatures_has_one_for_each_matrix() -> None:
    scores, temperature = torch.randn(4, 3, 3), torch.rand(4) + 0.1
    expected = torch.stack([sinkhorn(one, temperature=own) for one, own in zip(scores, temperature, strict=True)])
    for given in (temperature, temperature[:, None, None]):
        torch.testing.assert_close(sinkhorn(scores, temperature=given), expected)


def test_temperatures_follow_the_axis_of_the_items_and_may_be_zero_in_some_rows() -> None:
    scores, temperature = torch.randn(5, 4, requires_grad=True), torch.tensor([0.0, 0.5, 0.0, 2.0])
    by = torch.randn(5, 4)
    found = []
    for dim in (0, 1):
        rows = scores if dim == 0 else scores.mT
        own = temperature if dim == 0 else temperature[:, None]
        drawn = gumbel_top_k(rows, 2, temperature=own, dim=dim, generator=torch.Generator().manual_seed(0))
        assert (drawn.sum(dim) == 2).all()
        found.append(torch.autograd.grad((drawn * (by if dim == 0 else by.mT)).sum(), scores)[0])
    torch.testing.assert_close(*found)
    assert found[0][:, 1::2].abs().gt(0).any(0).all()
    assert not found[0][:, ::2].any()


def test_a_schedule_that_ends_below_zero_is_refused_where_it_does() -> None:
    layer = Codebook(3, 8, temperature=lambda step: 1.0 - step)
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        advance(layer)


def test_a_schedule_is_that_of_its_steps() -> None:
    layer = Codebook(3, 8, temperature=Annealing(1.0, 0.25, steps=4))
    advance(layer, 2)
    assert layer.temperature.item() == 0.5
    advance(layer)
    advance(layer)
    assert layer.temperature.item() == 0.25
