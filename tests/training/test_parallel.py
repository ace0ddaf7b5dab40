"""The number of ranks changes nothing but the order of summation, and a rank that fails stops all with one sentence."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from concretely.training import checkpoint

from . import ranks

pytestmark = pytest.mark.slow


def differences(found: Any, expected: Any, path: str = "") -> dict[str, float]:
    """The largest difference of every tensor and number of two results."""
    if isinstance(expected, Tensor):
        assert found.shape == expected.shape, path
        return {path: (found.double() - expected.double()).abs().max().item() if found.numel() else 0.0}
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        parts = [differences(found[name], expected[name], f"{path}/{name}") for name in expected]
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), path
        parts = [differences(one, other, path) for one, other in zip(found, expected, strict=True)]
    else:
        return {path: 0.0 if found == expected else abs(found - expected)}
    worst = dict[str, float]()
    for part in parts:
        worst |= {name: max(value, worst.get(name, 0.0)) for name, value in part.items()}
    return worst


def assert_lawful(found: dict[str, Any], reference: dict[str, Any]) -> None:
    """Fail unless results are those of one process, to 1e-6 in float64, and to rounding in float32."""
    for name, difference in differences(found, reference).items():
        assert difference <= (2e-5 if name.startswith("/paper") else 1e-6), (name, difference)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process finds, which is no rank."""
    return ranks.law(tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def two(folder: Path) -> list[dict[str, Any]]:
    """What two ranks find."""
    return [value for _, value, _ in ranks.launch(ranks.on_two_ranks, 2, folder / "two", folder)]


@pytest.fixture(scope="module")
def four(folder: Path, two: object) -> list[dict[str, Any]]:
    """What four ranks find; before, one process has gone on with the run of two."""
    ranks.leg(folder / "legs", 8)
    return [value for _, value, _ in ranks.launch(ranks.on_four_ranks, 4, folder / "four", folder)]


def test_two_ranks_take_the_steps_of_one_process(two: list[dict[str, Any]], reference: dict[str, Any]) -> None:
    for found in two:
        assert_lawful(found["law"], reference)


def test_four_ranks_take_the_steps_of_one_process(four: list[dict[str, Any]], reference: dict[str, Any]) -> None:
    for found in four:
        assert_lawful(found["law"], reference)


def test_all_ranks_have_the_same_bits(two: list[dict[str, Any]]) -> None:
    first, second = two
    assert max(differences(second["law"], first["law"]).values()) == 0
    assert max(differences(second["normed"], first["normed"]).values()) == 0


def test_a_checkpoint_of_two_ranks_goes_on_on_one_and_then_on_four(
    four: list[dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    straight = ranks.leg(tmp_path, 12)
    for found in four:
        different = differences(found["leg"]["parameters"], straight["parameters"])
        assert max(different.values()) <= 1e-6
    last = checkpoint.latest(folder / "legs")
    assert last is not None
    assert last.step == 12


def test_a_signal_to_one_rank_stops_all_after_the_same_step_with_a_checkpoint(
    two: list[dict[str, Any]], folder: Path
) -> None:
    assert [found["stopped"] for found in two] == [(6, False), (6, False)]
    last = checkpoint.latest(folder / "stopped")
    assert last is not None
    assert last.step == 6


def test_all_ranks_take_the_score_of_the_first(two: list[dict[str, Any]]) -> None:
    assert [found["whimsical"] for found in two] == [(15, (5, 0))] * 2


def test_wrappers_of_torch_train_as_one_process_does(two: list[dict[str, Any]]) -> None:
    expected = ranks.wrapped()
    for found in two:
        assert found["wrapped"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("batch", "batch must be a multiple of the number of ranks, 2, got 13: choose 12"),
        ("loader", "batch must be a multiple of the number of ranks, 2, got 9: choose 8"),
        ("rows", "data must have data points to be split among 2 ranks, got a batch without any"),
        ("recipe", "ranks must have the same recipe, got lr 0.05 on rank 1 and 0.1 on rank 0: start all with the same"),
        ("data", "ranks must have the same recipe, got digest of the data"),
        (
            "members",
            "ranks must have the same call, got number of runs 3 on rank 1 and 2 on rank 0: start all with the",
        ),
        (
            "arguments",
            "ranks must have the same recipe, got arguments {'width': 5} on rank 1 and {'width': 4} on rank 0",
        ),
        (
            "model",
            "ranks must have the same model, got p.decoder.0.weight '(5, 8) of torch.float32' on rank 1 and '(4, 8)",
        ),
        ("shards", "of torch.float32' on rank 0: start all with the same arguments"),
        ("some out", "ranks must have the same call, got out None on rank 1 and 'a folder' on rank 0: start all with"),
        ("other out", "ranks must have the same call, got out 'a folder' on rank 1 and None on rank 0: start all with"),
        ("compile", "ranks must have the same call, got compile True on rank 1 and False on rank 0: start all with"),
        (
            "sampler",
            "ranks must read the same batches, got others on rank 1 than on rank 0: leave out samplers such as",
        ),
        ("diverged", "is not finite, first in layer"),
        ("settings", "several seeds or settings need a function that builds the model, got 2 of them for a model"),
        ("precision", "unknown precision 'float31'; did you mean 'float32'?"),
        ("folder", "must be a folder that all ranks see, got none on rank 1: choose one on a shared file system"),
        (
            "overwrite",
            "overwrite must be left out on several ranks, as a restart would delete the run, got it on 2 ranks",
        ),
    ],
)
def test_bad_input_is_refused_by_one_rank_in_one_sentence(name: str, sentence: str, two: list[dict[str, Any]]) -> None:
    said = [found["bad"][name] for found in two]
    assert sentence in said[0]
    assert said[1] == ""


@pytest.mark.parametrize("kind", ["raises", "dies"])
def test_a_rank_that_fails_stops_the_others_and_the_run_goes_on_from_its_last_checkpoint(
    kind: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first, second = ranks.launch(ranks.doomed, 2, tmp_path / "ranks", out, kind, ends=False)
    texts = first[2] + second[2]
    if kind == "raises":
        assert [first[0], second[0]] == [1, 1]
        assert texts.count("ValueError: this rank has had enough") == 1
        assert "another rank" not in texts
    else:
        assert [first[0], second[0]] == [1, -signal.SIGKILL]
        assert texts.count("another rank has ended or does not answer: start all again") == 1
    last = checkpoint.latest(out)
    assert last is not None
    assert 1 <= last.step <= 4
    if kind == "raises":
        again = ranks.doomed(out, "survives")
    else:  # as torchrun does, start both again
        (_, again, _), (_, other, _) = ranks.launch(ranks.doomed, 2, tmp_path / "again", out, "survives")
        assert max(differences(other, again).values()) == 0
    straight = ranks.doomed(tmp_path / "straight", "survives")
    assert max(differences(again, straight).values()) <= 1e-6


def test_results_that_differ_are_found() -> None:
    assert differences({"a": [1.0, torch.zeros(2)]}, {"a": [1.5, torch.tensor([0.0, 2.0])]}) == {"/a": 2.0}
