"""Runs of graphs to draw, small and large, with edges that join and edges that pass layers."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from concretely import Bernoulli, Draw, Hypercube, OneHotCategorical, Trace, mode, run, tile

LOGITS = torch.tensor([0.3, -0.2, 0.1, 0.0], requires_grad=True)
MASSES = {
    "Bernoulli": lambda: Bernoulli(logits=LOGITS[:1].squeeze()),
    "OneHotCategorical": lambda: OneHotCategorical(logits=LOGITS[:3]),
    "Hypercube": lambda: Hypercube(logits=LOGITS),
    "binary Hypercube": lambda: Hypercube(logits=LOGITS[:1]),
}
ODD = ['say "x"', "back\\slash", "\\", "a & b &lt; <b>", "new\nline", "{brace}", "$m$", "\ud800", "\x00", "汉😀", ""]


def variable(law: Callable[[], Distribution], **options: object) -> Trace:
    """A graph of one node."""
    return run(lambda draw: draw("X", law(), **options), mode=mode.Discrete())


def diamond(draw: Draw) -> None:
    """Two independent nodes and one that depends on both."""
    a = draw("a", OneHotCategorical(logits=LOGITS[:3]))
    b = draw("b", Bernoulli(logits=LOGITS[3]))
    draw("c", Bernoulli(logits=torch.stack([a[..., 0] * b, a[..., 1] - b], -1)))


def detour(draw: Draw, x: Tensor) -> None:
    """A large graph in which edges pass one and two layers, and a node is continuous in every mode."""
    a = draw("a", Bernoulli(logits=x.repeat(1, 10)))
    b = draw("b", Bernoulli(logits=tile(x, a)[..., :7] + a[..., :7]))
    c = draw("c", Normal(torch.cat([b, b], -1), 1.0))
    d = draw("d", Hypercube(logits=(c[..., :12] + b[..., :1]).unflatten(-1, (3, 4))))
    draw("x", Bernoulli(logits=a[..., :6] + d.flatten(-2) + c[..., :6] + b[..., :6]), observed=x[..., :6].sign().relu())


def chain(draw: Draw) -> None:
    """A small graph with an edge that passes a layer."""
    a = draw("a", Bernoulli(logits=LOGITS[0]))
    b = draw("b", Bernoulli(logits=a + LOGITS[1]))
    draw("a name that is too long for its node", Normal(a + b, 1.0))


def diverged(units: int) -> Trace:
    """A graph of one node whose value is not a number."""
    law = Normal(torch.full((units,), torch.nan), 1.0, validate_args=False)
    return run(lambda draw: draw("X", law), mode=mode.Discrete())


TRACES = {
    "variable": lambda: variable(MASSES["OneHotCategorical"]),
    "diamond": lambda: run(diamond, mode=mode.Surrogate(0.5)),
    "chain": lambda: run(chain, mode=mode.Relaxed(0.5)),
    "detour": lambda: run(detour, torch.randn(4, 8), mode=mode.Relaxed(0.5), samples=3),
}
