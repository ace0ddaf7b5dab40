"""The slices of ranks make up the noise of the whole batch, whoever draws it."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Beta, Independent, Normal
from torch.nn import functional

import concretely as c
from concretely.functional.noise import Keys, Slice, logistic, seeded
from concretely.functional.torch_draw import SlicedDraws
from concretely.graph.run import run

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


def test_layers_that_draw_from_one_key_differ_between_ranks() -> None:
    codebook, parts = c.layer.Codebook(6, 5), []
    for source in sources(lambda: None):
        torch.manual_seed(1)
        with SlicedDraws(source, rows=40) as mode:
            parts.append(codebook(torch.zeros(40, 6))[0].detach())
        assert mode.is_needed
    assert len({tuple(part.flatten().tolist()) for part in parts}) == RANKS


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
