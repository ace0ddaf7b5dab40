"""Steps of `fit` on a CPU: both sides of a pair train the same model, and the page quotes the record."""

import json
import re
from pathlib import Path

import pytest
import torch

from benchmarks import own
from benchmarks.chip import own as chip_own

ROOT = Path(__file__).parents[2]

PAIRS = {pair.title: pair for pair in own.pairs(torch.device("cpu"), quick=True)}


@pytest.mark.parametrize("title", PAIRS)
def test_both_sides_of_a_pair_find_the_same_bound(title: str) -> None:
    pair = PAIRS[title]
    assert pair.ours() == pytest.approx(pair.peer(), rel=0.05)


def test_the_page_quotes_the_record() -> None:
    page = (ROOT / "docs" / "performance.md").read_text().partition("| | fit ÷ torch.distributions |")[2]
    quoted = re.findall(r"^\| (.+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    results = json.loads((ROOT / "benchmarks" / "records" / "own.json").read_text())["results"]
    ratios = [f"{row['ratio']['median']:.2f}" for row in results]
    assert [ratio for row in quoted[: len(chip_own.CASES)] for ratio in row[1:]] == ratios
    assert len(ratios) == len(own.SIDES) * len(chip_own.CASES)
