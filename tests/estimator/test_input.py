"""Bad input to estimators gets one sentence with the value and the place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import concretely as c

pytestmark = pytest.mark.unchecked

X = torch.zeros(2, 3)
MODEL = c.density("2H-3V")
WIDE = c.density("21H-3V")
TWO = c.density("2H-2H-3V")


def gates(draw: c.Draw, x: Tensor) -> Tensor:
    """A program with a sound cost."""
    return draw("gate", c.Bernoulli(logits=x)).sum(-1)


def unsummed(draw: c.Draw, x: Tensor) -> Tensor:
    """A program whose cost has an axis too many."""
    return draw("gate", c.Bernoulli(logits=x))


def averaged(draw: c.Draw, x: Tensor) -> Tensor:
    """A program whose cost has lost its axes."""
    return draw("gate", c.Bernoulli(logits=x)).mean()


def number(draw: c.Draw, x: Tensor) -> float:
    """A program whose cost is no tensor."""
    return draw("gate", c.Bernoulli(logits=x)).mean().item()


def twice(draw: c.Draw, x: Tensor) -> Tensor:
    """A program that draws a node twice."""
    return draw("gate", c.Bernoulli(logits=x)).sum(-1) + draw("gate", c.Bernoulli(logits=x)).sum(-1)


def foreign(draw: c.Draw, x: Tensor) -> Tensor:
    """A program with a mass of torch."""
    return draw("gate", torch.distributions.Bernoulli(logits=x)).sum(-1)


def unexpanded(draw: c.Draw, x: Tensor) -> Tensor:
    """A program with a root that has one set of logits for all data."""
    return draw("gate", c.Bernoulli(logits=torch.zeros(3))).sum(-1)


def generative(draw: c.Draw, x: Tensor) -> None:
    """A generative program of one latent."""
    z = draw("z", c.Bernoulli(logits=torch.zeros(3)))
    draw("x", c.Bernoulli(logits=z), observed=x)


def unobserved(draw: c.Draw, x: Tensor) -> None:
    """A generative program that observes nothing."""
    draw("z", c.Bernoulli(logits=torch.zeros(3)))


def inference(draw: c.Draw, x: Tensor) -> None:
    """The inference program of one latent."""
    draw("z", c.Bernoulli(logits=x))


def two_latents(draw: c.Draw, x: Tensor) -> None:
    """An inference program with a latent too many."""
    draw("z", c.Bernoulli(logits=x))
    draw("extra", c.Bernoulli(logits=x))


def misnamed(draw: c.Draw, x: Tensor) -> None:
    """An inference program with another name for the latent."""
    draw("zz", c.Bernoulli(logits=x))


def estimate(target: Any, estimator: Any, **options: Any) -> Callable[[], object]:
    """An estimate to be made later."""
    return lambda: c.estimate(target, X, estimator=estimator, **options)


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "vimco of one sample": (
        estimate(MODEL, c.VIMCO()),
        ValueError,
        "samples must be at least 2 for VIMCO, got 1: use NVIL or Reinforce for one sample",
    ),
    "rloo of one sample": (
        estimate(MODEL, c.RLOO()),
        ValueError,
        "samples must be at least 2 for RLOO, got 1: the baseline is the mean of the others",
    ),
    "vimco of a cost": (
        estimate(gates, c.VIMCO(), samples=2),
        ValueError,
        "objective must be `bound` for VIMCO: pass objective=bound if the cost is minus a log-weight",
    ),
    "cost with an axis too many": (
        estimate(unsummed, c.Reinforce(), samples=4),
        ValueError,
        "a program must return a cost of shape (8,), a number for each sample and data point, got shape (8, 3)",
    ),
    "cost with an axis too few": (
        estimate(averaged, c.Reinforce()),
        ValueError,
        "a program must return a cost of shape (2,), a number for each sample and data point, got shape (): "
        "use reduction='none', not an average over rows",
    ),
    "cost that is a number": (
        estimate(number, c.Reinforce()),
        TypeError,
        "a program must return a cost of shape (2,), a number for each sample and data point, "
        "or a tuple whose first entry is one, got float",
    ),
    "no samples": (
        estimate(MODEL, c.Reinforce(), samples=0),
        ValueError,
        "samples must be a positive whole number, got 0",
    ),
    "half a sample": (
        estimate(MODEL, c.Reinforce(), samples=2.5),
        ValueError,
        "samples must be a positive whole number, got 2.5",
    ),
    "samples that are a truth": (
        estimate(MODEL, c.Reinforce(), samples=True),
        ValueError,
        "samples must be a positive whole number, got True",
    ),
    "class of an estimator": (
        estimate(MODEL, c.RLOO, samples=2),
        TypeError,
        "estimator must be an estimator, such as Pathwise() or RLOO(), got the class RLOO: write RLOO(...)",
    ),
    "name of an estimator": (
        estimate(MODEL, "rloo", samples=2),
        TypeError,
        "estimator must be an estimator, such as Pathwise() or RLOO(), got str",
    ),
    "divergence of pathwise": (
        lambda: c.Pathwise(0.5, kl="masses"),
        ValueError,
        "kl must be one of 'density', 'mass', 'analytic', got 'masses'",
    ),
    "divergence of gumbel-softmax": (
        lambda: c.GumbelSoftmax(0.5, kl="density"),
        ValueError,
        "kl must be one of 'mass', 'analytic', got 'density'",
    ),
    "divergence of straight-through": (
        lambda: c.StraightThrough(kl="density"),
        ValueError,
        "kl must be one of 'mass', 'analytic', got 'density'",
    ),
    "divergence of straight-through gumbel-softmax": (
        lambda: c.StraightThroughGumbelSoftmax(0.5, kl="density"),
        ValueError,
        "kl must be one of 'mass', 'analytic', got 'density'",
    ),
    "mean of vimco": (
        lambda: c.VIMCO("harmonic"),
        ValueError,
        "mean must be one of 'geometric', 'arithmetic', got 'harmonic'",
    ),
    "too many states": (
        estimate(WIDE, c.Exact()),
        ValueError,
        "a graph must have at most 2^20 states to be enumerated, got 2^21 up to node 'h1'",
    ),
    "too many states of all samples": (
        estimate(MODEL, c.Exact(), samples=11),
        ValueError,
        "at most 2^20 joint states of all samples can be enumerated, got 4 states for 11 samples",
    ),
    "negative temperature": (lambda: c.Pathwise(-0.5), ValueError, "temperature must be positive, got -0.5"),
    "zero temperature": (lambda: c.GumbelSoftmax(0), ValueError, "temperature must be positive, got 0"),
    "infinite temperature": (
        lambda: c.StraightThroughGumbelSoftmax(float("inf")),
        ValueError,
        "temperature must be positive, got inf",
    ),
    "negative temperature of a node": (
        lambda: c.Pathwise({"h1": 0.5, "h2": -0.5}),
        ValueError,
        "temperature must be positive, got -0.5 at node 'h2'",
    ),
    "negative temperature of the prior": (
        lambda: c.Pathwise(0.5, prior_temperature=-1),
        ValueError,
        "temperature must be positive, got -1",
    ),
    "negative temperature in a tensor": (
        lambda: c.Pathwise(torch.tensor([0.5, -1.0])),
        ValueError,
        "temperature must be positive, got [0.5, -1.0]",
    ),
    "temperature that is a word": (
        lambda: c.Pathwise({"h1": "cold"}),
        TypeError,
        "temperature must be a number or a tensor, got str at node 'h1'",
    ),
    "temperature that is missing": (
        lambda: c.Pathwise({"h1": None}),
        TypeError,
        "temperature must be a number or a tensor, got NoneType at node 'h1'",
    ),
    "unknown noise": (
        lambda: c.Pathwise(0.5, noise="gauss"),
        ValueError,
        "noise must be one of 'gumbel', 'normal', got 'gauss'",
    ),
    "unknown score": (
        lambda: c.mode.Relaxed(0.5, scored_by="masses"),
        ValueError,
        "scored_by must be one of 'density', 'mass', got 'masses'",
    ),
    "temperature of an unknown node": (
        estimate(TWO, c.Pathwise({"h1": 0.5, "h2": 0.5, "h3": 0.5})),
        ValueError,
        "temperature must name nodes that the graph draws, got 'h3'; choose from 'h1', 'h2'",
    ),
    "temperature that lacks a node": (
        estimate(TWO, c.Pathwise({"h1": 0.5})),
        ValueError,
        "temperature must name every node, got none for 'h2'",
    ),
    "prior temperature of an unknown node": (
        estimate(TWO, c.Pathwise(0.5, prior_temperature={"h1": 0.5, "h2": 0.5, "h22": 0.5})),
        ValueError,
        "temperature must name nodes that the graph draws, got 'h22'; did you mean 'h2'?",
    ),
    "node drawn twice": (
        estimate(twice, c.Reinforce()),
        ValueError,
        "node names must be unique, got 'gate' twice",
    ),
    "relaxed mass of torch": (
        estimate(foreign, c.Pathwise(0.5)),
        TypeError,
        "node 'gate' must be a discrete distribution of concretely to have a relaxation, or have rsample, got "
        "Bernoulli of torch.distributions.bernoulli: use an estimator that needs only samples, such as RLOO()",
    ),
    "enumerated mass of torch": (
        estimate(foreign, c.Exact()),
        ValueError,
        "node 'gate' must be a discrete variable of concretely to be enumerated, got Bernoulli of "
        "torch.distributions.bernoulli: use an estimator that draws samples, such as RLOO()",
    ),
    "root without an axis of data": (
        estimate(unexpanded, c.Reinforce(), samples=2),
        ValueError,
        "the batch shape of node 'gate' must begin with (2,), that of the first input, got (3,): "
        "expand its logits, one set for each data point, or share one sample among all data points, and use "
        'torch.vmap with randomness="different" for several',
    ),
    "latent that p lacks": (
        estimate(c.Model(generative, two_latents), c.Reinforce()),
        ValueError,
        "p must draw every node that q draws, got no 'extra'",
    ),
    "latent that q lacks": (
        estimate(c.Model(generative, misnamed), c.Reinforce()),
        ValueError,
        "q must draw every node that p draws without observed=, got no 'z'; did you mean 'zz'?",
    ),
    "nothing observed": (
        estimate(c.Model(unobserved, inference), c.Reinforce()),
        ValueError,
        "p must have an observed node, got no call of draw with observed=: is an input missing?",
    ),
    "nothing observed without q": (
        estimate(c.Model(inference), c.Reinforce()),
        ValueError,
        "p must have an observed node, got no call of draw with observed=: is an input missing?",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), list(BAD.values()), ids=list(BAD))
def test_bad_input_is_refused_in_one_sentence(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == message


def test_as_many_states_as_are_allowed_are_enumerated() -> None:
    with torch.no_grad():
        assert c.estimate(MODEL, X[:1], estimator=c.Exact(), samples=10).loss.isfinite()  # 2^20 of all samples
