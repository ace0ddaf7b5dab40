"""The log probability of a node is that of its units, summed: where kernels sum it, and where they do not."""

from contextlib import AbstractContextManager
from importlib import import_module
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.testing import assert_close

import concretely as c
from concretely import mode
from concretely.functional import bernoulli, logistic
from concretely.functional.noise import Keys
from concretely.graph.program import Draw
from concretely.graph.run import run
from concretely.graph.trace import Trace
from tests.kernel import DEVICE, MARKS, PATHS, key, on, precise

FAST = pytest.mark.parametrize("path", [pytest.param("fast", marks=MARKS)])
MODES = {
    "discrete": mode.Discrete(),
    "density": mode.Relaxed(0.7),
    "normal": mode.Relaxed(0.7, noise="normal"),
    "mass": mode.Relaxed(0.7, scored_by="mass"),
    "straight-through": mode.Surrogate(0.7),
}
PRIORS = MODES | {"density": mode.Relaxed(0.5), "normal": mode.Relaxed(0.5, noise="normal")}
NAMES = pytest.mark.parametrize("name", MODES)
UNITS = (2, 3)


def taken(path: str) -> AbstractContextManager[None]:
    """Draw and score by definitions, or by kernels."""
    return on(path, "bernoulli", "categorical", "exp_concrete", "logistic")


def program(draw: Draw, x: Tensor, bits: Tensor, states: Tensor) -> None:
    """Units of all kinds: with two axes of them, with logits that samples share or that a draw has made."""
    first = draw("first", c.Bernoulli(logits=(x + bits).unflatten(-1, UNITS)))
    rest(draw, x, first.flatten(-2), states)


def rest(draw: Draw, x: Tensor, bits: Tensor, states: Tensor) -> None:
    """The same without a unit on zero and one, which has no control."""
    second = draw("second", c.Hypercube(logits=(bits + (c.tile(x, bits) if bits.dim() > 1 else x)).unsqueeze(-1)))
    third = draw("third", c.Hypercube(logits=second * states))
    draw("fourth", c.OneHotCategorical(logits=(third.sum(-1, keepdim=True) + states)[..., :3]))


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(2, 6, device=DEVICE)
    return x, torch.randn(6, device=DEVICE, requires_grad=True), torch.randn(6, 4, device=DEVICE, requires_grad=True)


def traces(name: str, given: tuple[Tensor, ...], keys: Tensor) -> tuple[Trace, Trace]:
    """A run, and its values scored in a run of another program."""
    x, bits, states = given
    units = rest if name == "normal" else program
    q = run(units, x, bits, states, mode=MODES[name], samples=2, generator=Keys(keys))
    return q, run(units, x, 2 * bits, states.flip(0), mode=mode.Replay(q, PRIORS[name]))


@PATHS
@NAMES
def test_the_log_probability_of_a_node_is_that_of_its_units(name: str, path: str) -> None:
    given, keys = inputs(), key(4)
    with taken(path):
        pair, other = traces(name, given, keys), traces(name, given, keys)
        for trace, same in zip(pair, other, strict=True):
            for node in trace:
                assert torch.equal(trace[node].value, same[node].value)
                total, units = trace[node].log_prob, same[node].unit_log_prob
                assert units.shape == trace[node].value.shape[: units.dim()]
                assert_close(total, units.flatten(2).sum(-1), rtol=1e-5, atol=1e-4)
                assert_close(same[node].log_prob, total, rtol=1e-5, atol=1e-4)
        log_w = [sum(p[node].log_prob - q[node].log_prob for node in p) for q, p in (pair, other)]
        found = [torch.autograd.grad(each.square().mean(), given[1:]) for each in log_w]
    assert_close(*found, rtol=1e-4, atol=1e-3)


@FAST
@pytest.mark.parametrize("name", ["discrete", "density"])
def test_units_are_scored_only_where_they_are_asked_for(name: str, path: str) -> None:
    law = logistic if name == "density" else bernoulli
    module = import_module(f"concretely.kernel.{law.draw.kernel}")
    draw, score = (mock.Mock(side_effect=getattr(module, each)) for each in ("draw", "score"))

    def lengths() -> set[int]:
        return {call.args[-1] for kernel in (draw, score) for call in kernel.call_args_list}

    with taken(path), mock.patch.multiple(module, draw=draw, score=score):
        q, p = traces(name, inputs(), key(4))
        for trace in (q, p):
            for node in trace:
                trace[node].log_prob  # noqa: B018
        assert lengths() == {6}
        assert q["first"].unit_log_prob.shape == (2, 2, *UNITS)
        assert lengths() == {6, 1}


@PATHS
@pytest.mark.parametrize("name", ["discrete", "density", "normal"])
def test_a_batch_of_programs_is_a_loop_over_them(name: str, path: str) -> None:
    x, _, states = inputs()
    several, keys = torch.randn(2, 6, device=DEVICE, requires_grad=True), key(8).view(2, 4, 2)

    def loss(bits: Tensor, keys: Tensor) -> Tensor:
        q, p = traces(name, (x, bits, states), keys)
        return sum(p[node].log_prob - q[node].log_prob for node in p).square().mean()

    with taken(path):
        together = vmap(loss)(several, keys)
        alone = torch.stack([loss(*each) for each in zip(several, keys, strict=True)])
        by = [torch.autograd.grad(each.sum(), (several, states)) for each in (together, alone)]
    assert_close(together, alone)
    assert_close(*by, rtol=1e-4, atol=1e-3)


@PATHS
def test_parents_are_found_through_kernels(path: str) -> None:
    model, x = c.density("3H-2H~4V").to(DEVICE), torch.zeros(300, 4, device=DEVICE)
    with precise(path), torch.no_grad():
        p, q = model.trace(x, mode=mode.Discrete(), samples=2, generator=Keys(key(4)))
        assert q.parents == {"h1": (), "h2": ("h1",)}
        assert p.parents == {"h2": (), "h1": ("h2",), "x": ("h1",)}
