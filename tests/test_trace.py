"""The log probability of a node is that of its units, summed: where kernels sum it, and where they do not."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.testing import assert_close

import concretely as c
from concretely import mode
from concretely.distribution import fused
from concretely.graph import run
from concretely.kernel import bernoulli, discrete, exp_concrete, logistic
from concretely.noise import Keys
from concretely.program import Draw
from concretely.trace import Trace
from tests.kernel import DEVICE, MARKS, fast, key, running

PATHS = pytest.mark.parametrize("path", ["plain", "operators", pytest.param("fast", marks=MARKS)])
MODES = {
    "discrete": mode.Discrete(),
    "density": mode.Relaxed(0.7),
    "normal": mode.Relaxed(0.7, noise="normal"),
    "mass": mode.Relaxed(0.7, scored_by="mass"),
    "straight-through": mode.StraightThrough(0.7),
}
PRIORS = MODES | {"density": mode.Relaxed(0.5), "normal": mode.Relaxed(0.5, noise="normal")}
NAMES = pytest.mark.parametrize("name", MODES)
UNITS = (3, 5)


@contextmanager
def taken(path: str) -> Iterator[None]:
    """Let variables be what they are, draw and score by operators, or by operators that take their fast path."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(fused, "is_fast", return_value=path != "plain"))
        stack.enter_context(running("fast" if path == "fast" else "plain", "likelihood"))
        for operation in (bernoulli, discrete, exp_concrete, logistic):
            if path == "fast":
                fast(operation.__name__.rpartition(".")[2])
            stack.enter_context(mock.patch.object(operation, "is_fast", return_value=path == "fast"))
        yield


def program(draw: Draw, x: Tensor, bits: Tensor, states: Tensor) -> None:
    """Units of all kinds: with two axes of them, with logits that samples share or that a draw has made."""
    first = draw("first", c.Bernoulli((x + bits).unflatten(-1, UNITS)))
    rest(draw, x, first.flatten(-2), states)


def rest(draw: Draw, x: Tensor, bits: Tensor, states: Tensor) -> None:
    """The same without a unit on zero and one, which has no control."""
    second = draw("second", c.Hypercube((bits + x).unsqueeze(-1)))
    third = draw("third", c.Hypercube(second * states))
    draw("fourth", c.OneHotCategorical((third.sum(-1, keepdim=True) + states)[..., :3]))


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(4, 15, device=DEVICE)
    return x, torch.randn(15, device=DEVICE, requires_grad=True), torch.randn(15, 8, device=DEVICE, requires_grad=True)


def traces(name: str, given: tuple[Tensor, ...], keys: Tensor) -> tuple[Trace, Trace]:
    """A run, and its values scored in a run of another program."""
    x, bits, states = given
    units = rest if name == "normal" else program
    q = run(units, MODES[name], x, bits, states, samples=3, generator=Keys(keys))
    return q, run(units, mode.Replay(q, PRIORS[name]), x, 2 * bits, states.flip(0))


@PATHS
@NAMES
def test_the_log_probability_of_a_node_is_that_of_its_units(name: str, path: str) -> None:
    given, keys = inputs(), key(4)
    with taken(path):
        pair, other = traces(name, given, keys), traces(name, given, keys)
        for trace, same in zip(pair, other, strict=True):
            for node in trace:
                assert torch.equal(trace.values[node], same.values[node])
                total, units = trace.log_prob(node), same.log_probs[node]
                assert units.shape == trace.values[node].shape[: units.dim()]
                assert_close(total, units.flatten(2).sum(-1), rtol=1e-5, atol=1e-4)
                assert_close(same.log_prob(node), total, rtol=1e-5, atol=1e-4)
        log_w = [sum(p.log_prob(node) - q.log_prob(node) for node in p) for q, p in (pair, other)]
        found = [torch.autograd.grad(each.square().mean(), given[1:]) for each in log_w]
    assert_close(*found, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("path", ["operators", pytest.param("fast", marks=MARKS)])
@pytest.mark.parametrize("name", ["discrete", "density"])
def test_units_are_scored_only_where_they_are_asked_for(name: str, path: str) -> None:
    lengths = []

    def watched(operation: str, argument: int) -> mock.Mock:
        real = getattr(logistic if name == "density" else bernoulli, operation)
        return mock.Mock(side_effect=lambda *given: lengths.append(given[argument]) or real(*given))

    kernel, draw, score = (logistic, 5, 3) if name == "density" else (bernoulli, 4, 3)
    with taken(path), mock.patch.multiple(kernel, draw=watched("draw", draw), score=watched("score", score)):
        q, p = traces(name, inputs(), key(4))
        for trace in (q, p):
            for node in trace:
                trace.log_prob(node)
        assert set(lengths) == {15}
        assert q.log_probs["first"].shape == (3, 4, *UNITS)
        assert set(lengths) == {15, 1}


@pytest.mark.parametrize("path", ["operators", pytest.param("fast", marks=MARKS)])
@pytest.mark.parametrize("name", ["discrete", "density", "normal"])
def test_a_batch_of_programs_is_a_loop_over_them(name: str, path: str) -> None:
    x, _, states = inputs()
    several, keys = torch.randn(3, 15, device=DEVICE, requires_grad=True), key(12).view(3, 4, 2)

    def loss(bits: Tensor, keys: Tensor) -> Tensor:
        q, p = traces(name, (x, bits, states), keys)
        return sum(p.log_prob(node) - q.log_prob(node) for node in p).square().mean()

    with taken(path):
        together = vmap(loss)(several, keys)
        alone = torch.stack([loss(*each) for each in zip(several, keys, strict=True)])
        by = [torch.autograd.grad(each.sum(), (several, states)) for each in (together, alone)]
    assert_close(together, alone)
    assert_close(*by, rtol=1e-4, atol=1e-3)
