"""No ratio without the laws; a contender that fails is left out; a record grows with its results."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from benchmarks import page
from benchmarks.chip import __main__ as chip
from benchmarks.chip import ablation, kernel, law, node, own, recipe, step, switch, turn, work
from benchmarks.chip.law import Law
from benchmarks.chip.peer.case import Case
from benchmarks.chip.turn import Contender
from benchmarks.task import Kind, Task
from benchmarks.timing import Timing
from concretely.data import Bits, Dataset
from concretely.kernel import operator
from concretely.training.recipe import resolve

from ..kernel import DEVICE
from ..kernel import kernel as runs_kernels

CPU = torch.device("cpu")
SPREAD = {"median": 2.0, "quartiles": [1.5, 2.5]}
SMALL = recipe.Size("4H~12V", 2, 10, 5, 7, 5, {"steps": 60, "batch": 8})


def run(monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr(sys, "argv", ["chip", "--quick", "--device", "cpu", *flags])
    before = torch.get_float32_matmul_precision()
    try:
        return chip.main()
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.fixture
def dots(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Few points of few bits in the place of MNIST, and no laws, which are looked at elsewhere."""
    parts = (Bits.pack(torch.rand(points, 12) < 0.3) for points in (50, 20, 20))
    data = Dataset("mnist", *parts, source="made up.")
    monkeypatch.setattr(recipe, "load_data", lambda name: data)
    monkeypatch.setattr(recipe, "QUICK", SMALL)
    monkeypatch.setattr(law, "laws", lambda **given: iter([Law("one", found=0.0, limit=1.0)]))
    return data


def test_nothing_is_timed_when_a_law_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**given: Any) -> Iterator[Law]:
        yield Law("kernel against definition, logistic", found=float("nan"), limit=1.0)

    monkeypatch.setattr(law, "laws", broken)
    assert run(monkeypatch, "--out", str(tmp_path)) == 1
    said = capsys.readouterr().out
    assert (
        "nothing is timed, as a law is broken: kernel against definition, logistic: must be within 1, got nan" in said
    )
    assert "÷" not in said
    assert not list(tmp_path.iterdir())


def test_a_record_has_all_results_so_far(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def results(**given: Any) -> Iterator[dict[str, Any]]:
        yield {"kind": "binary"}
        yield {"kind": "n-ary"}
        raise KeyboardInterrupt

    monkeypatch.setattr(law, "laws", lambda **given: iter([Law("one", found=0.0, limit=1.0)]))
    monkeypatch.setattr(node, "results", results)
    monkeypatch.setenv("CONCRETELY_COMMIT", "abc+")
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, "--out", str(tmp_path), "--only", "nodes")
    found = json.loads((tmp_path / "chip-nodes.json").read_text())
    assert [result["kind"] for result in found["results"]] == ["binary", "n-ary"]
    assert found["commit"] == {"hash": "abc", "dirty": True}
    assert found["recipe"]["laws"] == [{"name": "one", "found": 0.0, "limit": 1.0, "holds": True}]


def test_a_contender_that_fails_is_left_out_with_the_reason() -> None:
    def missing() -> Contender:
        raise ImportError("No module named 'jax'")

    said: list[str] = []
    ready = turn.made({"ours": lambda: Contender("ours", int), "jax": missing}, said.append)
    assert [timing.contender.name for timing in ready] == ["ours"]
    assert said == ["jax is left out, as it fails: ImportError: No module named 'jax'"]


@pytest.mark.parametrize("kind", node.QUICK)
def test_our_nodes_run_as_they_are_timed(kind: Kind) -> None:
    task = Task("node", kind=kind, shape=node.QUICK[kind], temperatures=(node.TEMPERATURE,), seed=0)
    entrants, said = node.entrants(task, CPU), []
    ready = turn.made({name: entrants[name] for name in (node.OURS, node.OURS + node.CAPTURED)}, said.append)
    assert len(ready) == 2, said


def test_times_are_those_of_one_piece_of_work() -> None:
    quick, slow = Contender("quick", int, times=10, ours=True), Contender("slow", int)
    timings = [Timing(quick, 0.1, np.array([1.0, 2.0, 3.0])), Timing(slow, 0.1, np.array([4.0, 8.0, 12.0]))]
    described = turn.described(timings, models=2)
    assert described[0]["us"] == {"median": 1e6, "quartiles": [0.75e6, 1.25e6]}
    assert described[1]["ratio"] == {"quick": {"median": 4.0, "quartiles": [4.0, 4.0]}}
    counted = turn.timed_once([Timing(quick, 0.1, np.empty(0))], rounds=2, seed=0)
    assert counted[0].rounds.shape == (2,)


@pytest.mark.usefixtures("dots")
def test_every_recipe_has_a_curve_and_an_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, "--out", str(tmp_path), "--only", "recipes") == 0
    found = json.loads((tmp_path / "chip-recipes-high.json").read_text())["results"]
    assert [result["name"] for result in found] == [
        "paper",
        "fast",
        "fast, by Adam",
        "fast, Adam and batch 512",
        "fast, at a rate that stays",
        "fast, at a rate that stays, averaged",
        "fast, products of bfloat16",
        "fast, products of float32",
    ]
    assert [result["matmul_precision"] for result in found] == ["high"] * 6 + ["medium", "highest"]
    for result in found:
        first, last = result["valid"]["curve"]
        assert recipe.FIRST < first["step"] < last["step"] == result["step"] == 60
        assert 0 < first["seconds"] < last["seconds"] == result["seconds"]
        assert result["test"]["points"] == 7
        assert result["test"]["standard_error"] > 0
        assert result["asked"] == []
    last, average = found[4:6]
    assert last["test"]["nll"] != average["test"]["nll"]
    assert page.page(page.read(tmp_path)).count("<svg") == 1


def test_without_data_no_recipe_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Dataset:
        raise OSError("no connection")

    said: list[str] = []
    monkeypatch.setattr(recipe, "load_data", load)
    assert not list(recipe.results(device=CPU, seconds=1.0, points=None, quick=True, say=said.append))
    assert said == ["recipes are left out, as there is no MNIST: no connection"]


@pytest.mark.usefixtures("dots")
def test_a_recipe_that_fails_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, right = recipe.Case("wrong", {"lr": -1.0}), recipe.Case("right", {})
    monkeypatch.setattr(recipe, "cases", lambda seconds: (wrong, right))
    said: list[str] = []
    found = recipe.results(device=CPU, seconds=1.0, points=None, quick=True, say=said.append)
    assert [result["name"] for result in found] == ["right"]
    assert said[0] == "wrong is left out, as it fails: ValueError: lr must be positive, got -1.0"


def test_a_recipe_ends_when_its_seconds_are_over(dots: Dataset) -> None:
    settings = resolve(notation="4H~12V", steps=10**6, batch=8)
    ended = recipe.Run(recipe.Case("paper", {}, seconds=0.1), settings, dots)
    ended.begin()
    assert (ended.engine.step, ended.seconds) == (recipe.FIRST, 0.0)
    validations = 0
    while ended.goes_on:
        ended.advance(2)
        validations += 1
    assert 1 <= validations <= 3
    assert recipe.FIRST < ended.engine.step < 10**6
    assert ended.seconds > 0.09


def test_averaged_weights_forget_at_a_steady_rate() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    average = recipe.Average(model, share=0.25)
    for value in (8.0, 0.0, 4.0, 4.0, 8.0):
        torch.nn.init.constant_(model.weight, value)
        average.take(model)
    # four that weigh the same, and from then on a quarter for the newest
    assert average.model.weight.item() == pytest.approx(0.75 * 4.0 + 0.25 * 8.0)


def test_some_points_are_spread_over_all() -> None:
    assert recipe.chosen(5, 10_000).tolist() == [0, 2_000, 4_000, 6_000, 8_000]
    assert torch.equal(recipe.chosen(10_000, 10_000), torch.arange(10_000))


@pytest.mark.parametrize("found", [-90.0, float("nan")])
def test_a_contender_with_another_bound_does_other_work(found: float) -> None:
    refuse = step.same_bound()
    refuse(Contender("ours", int, bound=lambda: -100.0))
    with pytest.raises(ValueError, match=r"must be within 3% of -100, which that of ours is, got"):
        refuse(Contender("theirs", int, bound=lambda: found))


@pytest.mark.unchecked
@pytest.mark.parametrize("case", [Case(2, 1, "concrete"), Case(2, 2, "vimco"), Case(2, 1, "nvil")], ids=str)
def test_torch_by_hand_takes_the_same_step(case: Case) -> None:
    small = Case(case.members, case.samples, case.estimator, notation="6H~20V", batch=32)
    entrants = step._entrants(small, CPU, "highest", 32)
    said: list[str] = []
    chosen = {name: make for name, make in entrants.items() if "compiled" not in name and "jax" not in name}
    assert len(turn.made(chosen, said.append, suits=step.same_bound())) == 2, said


def test_the_distance_of_what_is_not_a_number_is_infinite() -> None:
    assert kernel.distance(torch.tensor([float("nan")]), torch.tensor([1.0])) == float("inf")
    assert kernel.distance(torch.zeros(2), torch.zeros(3)) == float("inf")


def test_random_bits_are_the_same_every_time() -> None:
    assert work.bits(20, points=10).digest == work.bits(20, points=10).digest


def test_the_page_shows_what_was_asked_beside_what_was_measured(tmp_path: Path) -> None:
    contenders = [
        {"name": "concretely", "ours": True, "us": SPREAD, "passes": SPREAD, "ratio": {"concretely": SPREAD}},
        {"name": "<peer>", "ours": False, "us": SPREAD, "passes": SPREAD, "ratio": {"concretely": SPREAD}},
    ]
    asked = {"what": "passes", "sense": "at most", "limit": 1.0, "unit": "passes", "measured": SPREAD, "holds": False}
    points = [{"value": value, "us": SPREAD, "us_per_model": SPREAD} for value in (1, 10)]
    limit = {"what": "test NLL", "sense": "at most", "limit": 92.1, "unit": "nats", "holds": True}
    limit |= {"measured": {"median": 91.97, "quartiles": [91.97, 91.97]}, "standard_error": 0.23}
    curve = {"points": 10, "samples": 5, "curve": [{"seconds": 1.0, "nll": 95.0}, {"seconds": 2.0, "nll": 93.0}]}
    test = {"points": 10, "samples": 5, "nll": 99.0, "standard_error": 0.5}
    ended = {"name": "paper", "settings": {"notation": "2H~6V", "steps": 1_000}, "step": 50, "seconds": 2.0}
    parts = {
        "nodes": [{"kind": "binary", "shape": [8], "contenders": contenders, "asked": [asked]}],
        "costs": [
            {"against": "m", "fixed": {"n": 2}, "points": points},
            {"against": "n", "fixed": {"m": 2}, "points": points[:1]},
        ],
        "programs": [{"against": "programs", "fixed": {"n": 2}, "points": points}],
        "recipes": [{**ended, "valid": curve, "test": test, "asked": [limit]}],
    }
    for part, results in parts.items():
        recipe = {"benchmark": f"chip {part}", "matmul_precision": "high", "quick": False}
        recipe["laws"] = [{"name": "a law", "found": 0.1, "limit": 1.0, "holds": True}]
        made = {"commit": None, "versions": {"torch": "2.11"}, "device": {"cpu": "CPU", "cores": 1, "gpu": "H200"}}
        written = {"recipe": recipe, **made, "seed": 0, "results": results}
        (tmp_path / f"chip-{part}.json").write_text(json.dumps(written))
    text = page.page(page.read(tmp_path))
    assert text == page.page(page.read(tmp_path))
    assert text.count("<svg") == 4
    assert '<td>≤ 1 passes</td><td>2 (1.5 – 2.5)</td><td class="no">no</td>' in text
    assert "<td>≤ 92.1 nats</td><td>91.97 ± 0.23</td><td>yes</td>" in text
    assert "<td>99.00 ± 0.50</td><td>50 of 1,000 in 2 s</td>" in text
    assert "<peer>" not in text
    assert "H200 beside CPU, 1 core" in text
    assert "a law" in text


def test_a_page_needs_records(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="records must be files chip-"):
        page.read(tmp_path)


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Kernels wherever tensors are, with products of TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    with mock.patch.object(operator, "is_launchable", return_value=True):
        yield
    torch.set_float32_matmul_precision(before)


@runs_kernels
@pytest.mark.usefixtures("interpreted")
def test_a_kernel_that_is_switched_off_leaves_its_work_to_its_definition() -> None:
    pytest.importorskip("triton")
    row, device = ablation.Step(1, 2, "vimco", "3H:8-6V", batch=3), torch.device(DEVICE)
    on = row.run(None, device, True)
    used = {"adam", "affine", "bits", "bound", "categorical", "likelihood"}
    assert set(on.calls) == used
    for off in switch.switches(on.calls):
        without = row.run(off, device, True)
        # the kernel of the loss launches that of its signal, which is called without it
        expected = used - set(switch.switched_off(off)) | ({"vimco"} if off == "bound" else set())
        assert set(without.calls) == expected, off
        if "categorical" not in switch.switched_off(
            off
        ):  # without their kernel, n-ary units order their noise otherwise
            assert without.found == pytest.approx(on.found, rel=1e-2), off


class Slept(ablation.Score):
    """Work that calls two kernels, takes twice as long without one, and cannot do without the other."""

    def run(self, off: str | None, device: torch.device, quick: bool) -> ablation.Run:
        seconds = 0.002 if off is None else 0.004
        calls = Counter(affine=0 if off in ("affine", "layers", "all") else 1, bits=1)
        return ablation.Run(lambda times: time.sleep(times * seconds), 1, calls, found=0.0)


def test_a_kernel_is_timed_against_its_absence() -> None:
    said: list[str] = []
    base, *found = ablation.row_results(Slept("2H-6V"), device=CPU, quick=False, say=said.append)
    assert base["calls"] == {"affine": 1, "bits": 1}
    assert [result["off"] for result in found] == ["affine", "bits", "layers", "all"]
    assert 1.5 < found[0]["ratio"]["median"] < 2.5
    assert found[1]["error"] == "RuntimeError: kernels that are switched off must not run, got calls of bits"
    assert len(said) == 5


def test_an_ablation_that_fails_or_comes_too_late_is_recorded() -> None:
    said: list[str] = []
    wrong = ablation.Step(1, 0, notation="2H-6V")
    (result,) = ablation.row_results(wrong, device=CPU, quick=True, say=said.append)
    assert result["error"].startswith("ValueError: samples must be")
    late = list(ablation.results(device=CPU, quick=True, say=said.append, seconds=-1.0))
    assert {result["error"] for result in late} == {"TimeoutError: left out, as there is no time left"}


def test_the_ablation_has_a_record_without_kernels_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, "--out", str(tmp_path), "--only", "ablation", "--skip-laws") == 0
    found = json.loads((tmp_path / "chip-ablation-high.json").read_text())
    assert found["recipe"]["laws"] == []
    assert [result["notation"] for result in found["results"]] == [row.notation for row in ablation.QUICK]
    assert all(result["off"] is None and "error" not in result for result in found["results"])


@pytest.mark.parametrize("case", own.QUICK, ids=lambda case: case.kind)
def test_own_models_by_fit_and_by_hand_find_the_same_bound(case: Any) -> None:
    said = list[str]()
    entrants = own._entrants(case, own.images(case, 100, 0), CPU, "high", 16)
    chosen = {name: entrants[name] for name in (own.OURS, own.EAGER, own.SEVERAL)}
    ready = turn.made(chosen, said.append, suits=step.same_bound())
    assert [timing.contender.name for timing in ready] == list(chosen), said
    result = own._result(case, turn.timed_once(ready, rounds=1, seed=0), said.append, limits=True)
    assert [row["what"].rpartition(", ")[2] for row in result["asked"]] == [
        "faster than eager PyTorch",
        "8 seeds cheaper than one per model",
    ]
