"""Layers and the code that they replace do the same work: both sides of a pair have gradients of the same shapes."""

from collections import Counter

import pytest
import torch

from benchmarks import layer

PAIRS = {pair.title: pair for pair in layer.pairs(torch.device("cpu"), quick=True)}


@pytest.mark.parametrize("title", [title for title in PAIRS if "784" not in title])
def test_both_sides_of_a_pair_have_gradients_of_the_same_sizes(title: str) -> None:
    pair = PAIRS[title]
    ours, theirs = (Counter(slope.numel() for slope in work()) for work in (pair.ours, pair.peer))
    assert ours == theirs
