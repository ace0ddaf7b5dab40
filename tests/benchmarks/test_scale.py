"""Scaling: the page quotes the record, and its table is that of its code."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import scale

ROOT = Path(__file__).parent.parent.parent
PAGE = scale.PAGE.read_text(encoding="utf-8")


def test_the_page_quotes_the_record() -> None:
    rows, sentences = scale.quoted(json.loads(scale.OUT.read_text(encoding="utf-8"))["results"])
    assert "\n".join(rows) in PAGE
    assert sentences in PAGE


def test_the_table_of_the_page_is_computed_by_its_code() -> None:
    (code,) = re.findall(r"^```python\n(from math.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, dict[tuple[str, int, int], float]] = {}
    exec(compile(code, "parallel.md", "exec"), names)
    rows = re.findall(r"^\| (`200H~784V`|100 M parameters) \| ([\d,]+) \| (.*) \|$", PAGE, re.MULTILINE)
    shown = {(name, points.replace(",", "")): cells for name, points, cells in rows}
    for (name, points, gpus), value in names["table"].items():
        title = "100 M parameters" if name == "100 M" else f"`{name}`"
        place = [8, 64, 1024].index(gpus)
        assert float(shown[title, str(points)].split(" | ")[place]) == pytest.approx(value, abs=0.005)


def test_a_world_of_one_rank_is_a_plain_process() -> None:
    found = json.loads(scale.OUT.read_text(encoding="utf-8"))["results"]["overhead_of_one_rank"]
    assert found["median"] <= 1.03
