"""Graphs and temperatures that cannot be run are refused in one sentence."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

import concretely as c
from tests.test_graph import diamond


def duplicate(draw: c.Draw, x: Tensor) -> Tensor:
    return draw("a", c.Bernoulli(logits=x)) + draw("a", c.Bernoulli(logits=x))


def shared(draw: c.Draw, x: Tensor) -> Tensor:
    return draw("a", c.Bernoulli(logits=torch.zeros(2)))


def wrong_data(draw: c.Draw, x: Tensor) -> Tensor:
    return draw("a", c.Bernoulli(logits=x), observed=torch.zeros(3))


def broadcast_data(draw: c.Draw, x: Tensor) -> Tensor:
    return draw("a", Normal(x[:, :1], 1.0), observed=x[:, 0])


def repeated_data(draw: c.Draw, x: Tensor) -> Tensor:
    return draw("a", c.Bernoulli(logits=x), observed=x[:, :1])


def no_distribution(draw: c.Draw, x: Tensor) -> Tensor:
    return draw("a", x)


def no_data(draw: c.Draw, x: Tensor) -> Tensor:
    return draw("a", c.Bernoulli(logits=x), observed=1.0)


def torch_latent(draw: c.Draw, x: Tensor) -> Tensor:
    return draw("a", torch.distributions.Bernoulli(logits=x))


def normal_latent(draw: c.Draw, x: Tensor) -> Tensor:
    return draw("a", Normal(x, 1.0))


def many(draw: c.Draw, x: Tensor) -> Tensor:
    return draw("b", c.Bernoulli(logits=x)).sum(-1) + draw("a", c.Bernoulli(logits=torch.zeros(len(x), 20))).sum(-1)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("program", "mode", "options", "sentence"),
    [
        (duplicate, c.mode.Discrete(), {}, "node names must be unique, got 'a' twice"),
        (duplicate, c.mode.Enumerate(), {}, "node names must be unique, got 'a' twice"),
        (
            diamond,
            c.mode.Relaxed({"a": 1.0, "b": 1.0, "c": 1.0, "aa": 1.0}),
            {},
            "temperature must name nodes that the graph draws, got 'aa'; did you mean 'a'?",
        ),
        (diamond, c.mode.Relaxed({"b": 1.0}), {}, "temperature must name every node, got none for 'a'"),
        (
            shared,
            c.mode.Discrete(),
            {"samples": 2},
            "the batch shape of node 'a' must begin with (4,), that of the first input, got (2,): "
            "expand its logits, one set for each data point, or share one sample among all data points, and use "
            'torch.vmap with randomness="different" for several',
        ),
        (
            wrong_data,
            c.mode.Discrete(),
            {},
            "the shape of the observed value of node 'a' must begin with the batch shape (4,) of the first input, "
            "got (3,)",
        ),
        (
            broadcast_data,
            c.mode.Discrete(),
            {"samples": 4},
            "the batch shape of node 'a' must match the shape of its observed value, got (4, 1) and (4,)",
        ),
        (
            repeated_data,
            c.mode.Discrete(),
            {},
            "the batch shape of node 'a' must match the shape of its observed value, got (4, 3) and (4, 1)",
        ),
        (no_distribution, c.mode.Discrete(), {}, "draw must be given a name and a distribution, got str and Tensor"),
        (
            diamond,
            c.mode.Discrete,
            {},
            "mode must be a mode, such as concretely.mode.Discrete(), got the class Discrete: call it",
        ),
        (
            diamond,
            c.OneHotCategorical(logits=torch.zeros(2)),
            {},
            "mode must be a mode, such as concretely.mode.Discrete(), got OneHotCategorical",
        ),
        (no_data, c.mode.Discrete(), {}, "the observed value of node 'a' must be a tensor, got float"),
        (
            torch_latent,
            c.mode.Relaxed(0.5),
            {},
            "node 'a' must be a discrete distribution of concretely to have a relaxation, or have rsample, got "
            "Bernoulli of torch.distributions.bernoulli: use an estimator that needs only samples, such as RLOO()",
        ),
        (
            diamond,
            c.mode.Discrete(),
            {"generator": 0},
            "generator must be a torch.Generator, such as torch.Generator().manual_seed(0), got int",
        ),
        (diamond, c.mode.Discrete(), {"batch_dims": "1"}, "batch_dims must be a whole number of at least 0, got '1'"),
        (
            normal_latent,
            c.mode.Enumerate(),
            {},
            "node 'a' must be a discrete variable of concretely to be enumerated, got Normal of "
            "torch.distributions.normal: use an estimator that draws samples, such as RLOO()",
        ),
        (
            many,
            c.mode.Enumerate(),
            {},
            "a graph must have at most 2^20 states to be enumerated, got 2^23 up to node 'a'",
        ),
        (diamond, c.mode.Discrete(), {"samples": 0}, "samples must be a positive whole number, got 0"),
        (diamond, c.mode.Discrete(), {"samples": 2.0}, "samples must be a positive whole number, got 2.0"),
        (
            diamond,
            c.mode.Enumerate(),
            {"samples": 3},
            "samples must be omitted in a mode that sets it to 32, got 3",
        ),
        (
            diamond,
            c.mode.Replay({"a": torch.ones(4, 3), "bb": torch.ones(4)}),
            {},
            "a replayed run must have every node of the graph, got no 'b'; did you mean 'bb'?",
        ),
    ],
)
def test_bad_graphs_are_refused_with_one_sentence(
    program: Any, mode: c.mode.Mode, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        c.run(program, torch.zeros(4, 3), mode=mode, **options)
    assert str(error.value) == sentence


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("temperature", "sentence"),
    [
        (0.0, "temperature must be positive, got 0"),
        (-0.5, "temperature must be positive, got -0.5"),
        (math.nan, "temperature must be positive, got nan"),
        (math.inf, "temperature must be positive, got inf"),
        ({"h1": 1.0, "h2": -0.5}, "temperature must be positive, got -0.5 at node 'h2'"),
        (torch.tensor([1.0, 0.0]), "temperature must be positive, got [1.0, 0.0]"),
        ("warm", "temperature must be a number or a tensor, got str"),
        ({"h1": None}, "temperature must be a number or a tensor, got NoneType at node 'h1'"),
    ],
)
@pytest.mark.parametrize("mode", [c.mode.Relaxed, c.mode.Surrogate])
def test_bad_temperatures_are_refused_with_one_sentence(mode: Any, temperature: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        mode(temperature)
    assert str(error.value) == sentence


def test_an_error_of_torch_about_an_observed_value_names_the_node_first() -> None:
    def program(draw: c.Draw, x: Tensor) -> None:
        draw("x", Normal(torch.zeros(3), 1.0, validate_args=True), observed=x)

    trace = c.run(program, torch.full((3,), math.nan), mode=c.mode.Discrete())
    with pytest.raises(ValueError, match=r"^observed node 'x': Expected value argument .*\n"):
        trace["x"].log_prob  # noqa: B018 (computed on access)
