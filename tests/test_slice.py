"""The slices of ranks make up the noise of the whole batch, whoever draws it."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Beta, Independent, Normal
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import concretely as c
from concretely.functional import codebook
from concretely.functional.noise import Keys, logistic, seeded
from concretely.functional.slice import Slice
from concretely.functional.torch_draw import SlicedDraws
from concretely.graph.run import run
from concretely.layer import Choice, Choose, Codebook, ConcreteDropout, Gate, Levels, Permute, Router, Selector

ROWS, RANKS = 12, 4
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: functional.dropout(x, 0.4),
    "normal": lambda x: Normal(x, x.abs() + 1).rsample(),
    "samples": lambda x: Normal(x, 1.0).rsample((2,)).flatten(0, 1),
    "after a draw": lambda x: torch.rand_like(x.repeat(2, 1)),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "integers": lambda x: torch.randint(0, 100, x.shape),
    "sizes": lambda x: torch.randn(len(x), 3) + torch.rand(len(x), 1),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 1),
    "layer": lambda x: c.gumbel_softmax(x, tau=0.5),
    "shared": lambda x: x + torch.randn(5) + c.gumbel_sigmoid(torch.zeros(5)),
}


def sources(generator: Callable[[], Any]) -> list[Slice]:
    return [Slice(generator(), rank=rank, ranks=RANKS) for rank in range(RANKS)]


def whole_of(parts: list[Tensor], blocks: int) -> Tensor:
    """The rows of all ranks, in the order of the whole batch."""
    return torch.cat([part.unflatten(0, (blocks, -1)) for part in parts], 1).flatten(0, 1)


@pytest.mark.parametrize("name", DRAWS)
def test_random_operations_of_torch_draw_as_for_the_whole_batch(name: str) -> None:
    x, blocks = torch.randn(ROWS, 5), 2 if name in ("samples", "after a draw") else 1
    torch.manual_seed(1)
    expected, parts = DRAWS[name](x), []
    for source, own in zip(sources(lambda: None), x.chunk(RANKS), strict=True):
        torch.manual_seed(1)
        with SlicedDraws(source, rows=ROWS // RANKS, samples=2) as mode:
            parts.append(DRAWS[name](own))
        assert mode.is_needed
    torch.testing.assert_close(whole_of(parts, blocks), expected)


def layer_of(name: str, width: int) -> tuple[nn.Module, Tensor]:
    """A layer, and a batch for it: of data points with few units, or with tokens of many."""
    layer, shape = {
        "gate": (Gate(width), (width,)),
        "shared gate": (Gate(width, each="batch"), (width,)),
        "annealed gate": (Gate(width, temperature=c.Annealing(1.0, 0.5, steps=10)), (2, width)),
        "dropout": (ConcreteDropout(nn.Linear(width, 2), points=ROWS), (width,)),
        "selector": (Selector(width, 2), (width,)),
        "shared selector": (Selector(width, 2, each="batch"), (width,)),
        "choose": (Choose(2), (width,)),
        "mean choose": (Choose(2, gradient="mean"), (2, width)),
        "router": (Router(width, 4, 2), (3, width)),
        "learned router": (Router(width, 4, 2, noise="learned"), (width,)),
        "codebook": (Codebook(width, 5, size=6, groups=2), (width,)),
        "relaxed codebook": (Codebook(width, 40, gradient="relaxed"), (3, width)),
        "levels": (Levels((4, 3), features=width), (2, width)),
        "permute": (Permute(3), (3, 3)),
        "choice": (Choice([nn.Linear(width, 2) for _ in range(ROWS // RANKS)]), (width,)),
    }[name]
    return layer.double(), torch.randn(ROWS, *shape, dtype=torch.float64)


LAYERS = ("gate", "shared gate", "annealed gate", "dropout", "selector", "shared selector", "choose", "mean choose")
LAYERS += ("router", "learned router", "codebook", "relaxed codebook", "levels", "permute", "choice")


@pytest.mark.parametrize("width", [ROWS // RANKS, 100])
@pytest.mark.parametrize("kind", ["keys", "torch"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_draw_on_ranks_as_for_the_whole_batch(name: str, kind: str, width: int) -> None:
    if width == ROWS // RANKS:  # as many units as a rank has rows, with draws in several chunks
        chunks = mock.patch.dict(codebook.CHUNK, cpu=50)
    else:  # few numbers on a rank, many in the whole batch
        chunks = mock.patch.dict(codebook.CHUNK, cpu=2_000)
    layer, x = layer_of(name, width)
    keys = torch.stack([torch.full((8,), 5), torch.arange(8)], -1)

    def drawn(own: Tensor, source: Slice | None) -> list[Tensor]:
        torch.manual_seed(1)
        given: Any = Keys(keys) if source is None else replace(source, source=Keys(keys))
        sliced = nullcontext() if source is None else SlicedDraws(source, rows=len(own))
        with sliced if kind == "torch" else nullcontext():
            named = {"generator": given} if kind == "keys" else {}
            found = layer(own, **named)
            again = layer.sample(own, **named)
        return [each for each in tree_leaves((found, again)) if isinstance(each, Tensor) and len(each) == len(own)]

    with chunks:
        expected = drawn(x, None)
        parts = [drawn(own, source) for own, source in zip(x.chunk(RANKS), sources(lambda: None), strict=True)]
    assert len(expected) > 1
    for place, whole in enumerate(expected):
        torch.testing.assert_close(torch.cat([part[place] for part in parts]), whole)


@pytest.mark.parametrize("width", [3, 100])
@pytest.mark.parametrize("hard", [False, True])
def test_small_slices_of_large_batches_are_drawn_like_large_batches(width: int, hard: bool) -> None:
    x = torch.randn(ROWS, width)
    torch.manual_seed(1)
    expected, parts = c.gumbel_softmax(x, hard=hard), []
    for source, own in zip(sources(lambda: None), x.chunk(RANKS), strict=True):
        torch.manual_seed(1)
        with SlicedDraws(source, rows=ROWS // RANKS):
            parts.append(c.gumbel_softmax(own, hard=hard))
    torch.testing.assert_close(torch.cat(parts), expected)


def test_a_draw_whose_law_depends_on_parameters_differs_between_ranks() -> None:
    parts = []
    for source in sources(lambda: None):
        torch.manual_seed(1)
        with SlicedDraws(source, rows=3):
            parts.append(Beta(torch.ones(3), 2.0).sample())
    assert len({tuple(part.tolist()) for part in parts}) == RANKS


@pytest.mark.parametrize("samples", [None, 1, 3])
@pytest.mark.parametrize("kind", ["keys", "generator"])
def test_nodes_of_a_graph_get_the_noise_of_their_rows(kind: str, samples: int | None) -> None:
    def program(draw: c.Draw, x: Tensor) -> Tensor:
        first = draw("first", c.Bernoulli(logits=x))
        z = draw("z", Independent(Normal(first, 1.0), 1))
        shared = draw("shared", c.Bernoulli(logits=torch.zeros(7))) if samples in (None, 1) else torch.zeros(7)
        return (draw("code", c.OneHotCategorical(logits=z)) * z).sum(-1) + shared.sum()

    def generator() -> Any:
        torch.manual_seed(0)
        keys = torch.stack([torch.full((8,), 5), torch.arange(8)], -1)
        return Keys(keys) if kind == "keys" else torch.Generator().manual_seed(5)

    x = torch.randn(ROWS, 5)
    expected = run(program, x, mode=c.mode.Discrete(), samples=samples, generator=generator()).output
    parts = [
        run(program, own, mode=c.mode.Discrete(), samples=samples, generator=source).output
        for own, source in zip(x.chunk(RANKS), sources(generator), strict=True)
    ]
    torch.testing.assert_close(whole_of(parts, samples or 1), expected)


def test_slices_of_different_sizes_make_up_the_whole() -> None:
    edges = [0, 3, 4, 7]
    expected = logistic((2, 7, 3), generator=torch.Generator().manual_seed(2))
    parts = []
    for first, last in pairwise(edges):
        source = Slice(torch.Generator().manual_seed(2), rank=0, ranks=3).at(first, 7).of_rows(2, last - first)
        parts.append(logistic((2, last - first, 3), generator=source))
    assert torch.equal(torch.cat(parts, 1), expected)


def test_torch_is_seeded_alike_for_what_all_data_points_share() -> None:
    def draw(source: Slice) -> Tensor:
        with seeded(source):
            return torch.randn(4)

    first, *others = (draw(source) for source in sources(lambda: torch.Generator().manual_seed(3)))
    assert all(torch.equal(first, other) for other in others)


def test_noise_that_rows_do_not_divide_is_refused() -> None:
    source = Slice(torch.Generator(), rank=0, ranks=2).of_rows(1, 3)
    with pytest.raises(ValueError, match="the noise of 3 rows must have as many numbers in each, got 4"):
        logistic((4,), generator=source)
