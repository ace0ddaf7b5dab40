"""Eager calls: both sides of a pair do the same work, and the page quotes the record."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import eager

ROOT = Path(__file__).parent.parent.parent
ONE = ", one thread"
PAIRS = {pair.title: pair for pair in eager.pairs(torch.device("cpu"), quick=True)}


@pytest.mark.parametrize("title", PAIRS)
def test_both_sides_of_a_pair_have_gradients_of_the_same_shapes(title: str) -> None:
    pair = PAIRS[title]
    ours, theirs = ([slope.shape for slope in work()] for work in (pair.ours, pair.peer))
    assert ours == theirs


def test_pyro_is_a_peer_where_it_is_installed() -> None:
    names = [pair.peer_name for pair in PAIRS.values() if pair.peer_name.startswith("pyro")]
    assert len(names) == (3 if find_spec("pyro") else 0)


def test_the_page_quotes_the_records() -> None:
    page = (ROOT / "docs" / "performance.md").read_text().partition("**Eager calls.**")[2]
    quoted = re.findall(r"^\| `([^`]+)` \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    for column, name in ((1, "eager-cuda.json"), (2, "eager.json")):
        results = json.loads((ROOT / "benchmarks" / "records" / name).read_text())["results"]
        rows = [row for row in results if not of_pyro(row) and not in_one_thread(row)]
        expected = [(row["title"], f"{row['ratio']['median']:.2f}") for row in rows]
        assert [(row[0], row[column]) for row in quoted] == expected
    rows = [f"| {row['title']}, {row['peer']} | {row['ratio']['median']:.2f} |" for row in results if of_pyro(row)]
    assert rows
    assert "\n".join(rows) in page


def test_the_page_quotes_the_draws_in_one_thread() -> None:
    page = (ROOT / "docs" / "performance.md").read_text().partition("**The thread of the backward pass.**")[2]
    results = json.loads((ROOT / "benchmarks" / "records" / "eager-cuda.json").read_text())["results"]
    by_title = {row["title"]: row for row in results}
    pairs = [(by_title[row["title"].removesuffix(ONE)], row) for row in results if in_one_thread(row)]
    assert len(pairs) == 4
    for several, one in pairs:
        shares = [row[key]["median"] for key in ("ratio", "floor_ratio") for row in (several, one)]
        assert f"| `{several['title']}` | {' | '.join(f'{share:.2f}' for share in shares)} |" in page


def in_one_thread(row: dict[str, Any]) -> bool:
    """Whether the backward pass of a result ran in the thread that asked for it, which is timed on a GPU only."""
    return bool(row["title"].endswith(ONE))


def of_pyro(row: dict[str, Any]) -> bool:
    """Whether the peer of a result is pyro, which is timed on the CPU only."""
    return bool(row["peer"].startswith("pyro"))
