"""Steps of `fit` on a CPU: both sides of a pair train the same model."""

import pytest
import torch

from benchmarks import own

PAIRS = {pair.title: pair for pair in own.pairs(torch.device("cpu"), quick=True)}


@pytest.mark.parametrize("title", PAIRS)
def test_both_sides_of_a_pair_find_the_same_bound(title: str) -> None:
    pair = PAIRS[title]
    assert pair.ours() == pytest.approx(pair.peer(), rel=0.05)
