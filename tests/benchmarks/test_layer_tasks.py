"""Tasks of layers: every task trains, the record reaches the goals, and the page quotes it."""

import json
import math
import re
from pathlib import Path
from statistics import median

import pytest
import torch

from benchmarks import layer_tasks

PAGE = Path(__file__).parent.parent.parent / "docs" / "layers.md"
RESULTS = {row["task"]: row for row in json.loads(layer_tasks.RECORD.read_text())["results"]}


@pytest.mark.parametrize("name", layer_tasks.TASKS)
def test_a_task_trains(name: str) -> None:
    torch.manual_seed(0)
    reached = layer_tasks.TASKS[name].train(2)
    assert reached.keys() == RESULTS[name]["median"].keys()
    assert all(math.isfinite(number) for number in reached.values())


@pytest.mark.parametrize("name", layer_tasks.TASKS)
def test_the_record_is_of_the_settings_of_today(name: str) -> None:
    row, task = RESULTS[name], layer_tasks.TASKS[name]
    assert (row["steps"], row["goal"], len(row["seeds"])) == (task.steps, task.goal, layer_tasks.SEEDS)
    assert max(row["seconds"]) < 60
    for key, value in row["median"].items():
        assert value == median(each[key] for each in row["seeds"])


def test_the_record_reaches_the_goals() -> None:
    prune, select, explain, quantise, _, order, drop = (RESULTS[name]["median"] for name in layer_tasks.TASKS)
    assert prune["accuracy"] >= 0.97
    assert abs(prune["sparsity"] - 0.9) <= 0.01
    assert select["mse"] <= 0.0290
    assert select["distinct"] == 10
    assert explain["found"] >= 0.95
    assert quantise["usage"] >= 0.95
    assert quantise["mse"] <= quantise["pca"]
    assert order["wrong"] == 0
    assert abs(drop["noise"] - 1) <= 0.05
    assert drop["many"] < drop["few"]


def test_all_experts_are_used_with_every_seed() -> None:
    assert all(each["used"] == 4 for each in RESULTS["route"]["seeds"])


def test_the_page_quotes_the_record() -> None:
    rows = re.findall(r"^\| `.+` \| `(\w+)`: .+ \| ([\d., ]+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [
        (name, ", ".join(f"{number:.3g}" for number in row["median"].values()), f"{median(row['seconds']):.0f}")
        for name, row in RESULTS.items()
    ]
    found = [each["sparsity"] for each in RESULTS["prune"]["seeds"]]
    words = " ".join(PAGE.read_text().split())
    assert f"`prune` lies between {min(found):.3f} and {max(found):.3f}." in words
    assert "all four experts are used with all five seeds." in words
