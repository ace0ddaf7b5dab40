"""The command trains, resumes, scores, samples, studies, compares and sweeps a model of one's own."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import concretely as c
from concretely.experiment.scoring import relaxed_objective
from concretely.experiment.subject import relaxed_estimator
from concretely.report.image import CAPTIONS
from concretely.training.folder import load_recipe
from concretely.training.own_recipe import OwnRecipe, describe
from concretely.training.own_resolve import PICTURES
from concretely.training.recipe import read
from concretely.training.source import load_splits

from ..training import own
from ..training.example import assert_same
from .command import call

pytestmark = pytest.mark.usefixtures("unpictured")
BUILD = "tests.training.own:build"
GATE = "tests.training.own:Gate"


@pytest.fixture(scope="module")
def trained(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be read only."""
    folder = tmp_path_factory.mktemp("runs") / "own"
    given = ("--data", data, "--steps", "20", "--batch", "8", "--set", "width=5", "--validate", "10")
    code, stdout, stderr = call("train", BUILD, *given, "--out", str(folder), "--score-samples", "5")
    assert code == 0, stderr
    assert stdout.startswith("test NLL ")
    return folder


def test_a_trained_model_leaves_all_files_and_is_loaded(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {"recipe.toml", "curve.csv", "record.json", "report.html", "model.safetensors"} <= names
    recipe = load_recipe(trained)
    assert (recipe.settings["model"], recipe.settings["arguments"]) == (BUILD, {"width": 5})
    assert c.load(trained).p.decoder[0].weight.shape == (5, 8)
    record = json.loads((trained / "record.json").read_text())
    assert {"test_nll", "test_factorised_nll"} <= set(record["metrics"])
    page = (trained / "report.html").read_text()
    assert "own.build(width=5)" in page
    assert re.search(r"At step \d+ the training objective is −[\d.]+", page)
    assert re.search(r"Estimated from \d+ samples of the latents\. The mean effective sample size is [\d.]+\.", page)
    assert re.search(r"<th scope=\"row\">code</th><td>KL \S+ nats, active units: \d</td>", page)


def test_a_run_is_evaluated_sampled_studied_and_compared(trained: Path, tmp_path: Path) -> None:
    run = str(trained)
    code, stdout, _ = call("evaluate", run, "--samples", "7", "--json", "--relaxed")
    found = json.loads(stdout)
    assert (code, found["model"], found["samples"]) == (0, "own.build(width=5)", 7)
    assert found["test_relaxed"]["value"] > 0
    assert call("sample", run, "--rows", "2", "--columns", "3", "--out", str(tmp_path))[0] == 0
    code, stdout, stderr = call(
        "study", run, "--estimators", "concrete,rloo,nvil", "--repeats", "4", "--samples", "2", "--out", str(tmp_path)
    )
    assert code == 0, stderr
    assert all(name in stdout for name in ("concrete", "rloo", "nvil"))
    code, stdout, _ = call("compare", run, run)
    assert code == 0
    assert stdout.count("own.build(width=5)") == 3
    assert "independent pixels" in stdout


def test_lists_are_trained_together_each_in_its_folder(data: str, tmp_path: Path) -> None:
    given = ("--data", data, "--steps", "5", "--batch", "8", "--score-samples", "2", "--out", str(tmp_path / "list"))
    code, stdout, stderr = call("train", BUILD, *given, "--set", "width=4,6", "--seed", "0..1", "--set", "drop=0.1")
    assert code == 0, stderr
    folders = sorted(path.name for path in (tmp_path / "list").iterdir())
    assert folders == [f"width={width},seed={seed}" for width in (4, 6) for seed in (0, 1)]
    assert all(folder in stdout for folder in folders)


def test_a_list_without_test_data_is_scored_on_its_validation_data(tmp_path: Path) -> None:
    path = own.write(tmp_path / "train.npz", train=own.bits(40).numpy())
    given = ("--data", path, "--steps", "2", "--batch", "8", "--score-samples", "2", "--out", str(tmp_path / "list"))
    code, stdout, stderr = call("train", BUILD, *given, "--seed", "0,1")
    assert code == 0, stderr
    assert "valid NLL" in stdout
    assert (tmp_path / "list" / "seed=1" / "report.html").exists()
    runs = [str(tmp_path / "list" / name) for name in ("seed=0", "seed=1")]
    assert call("evaluate", runs[0], "--samples", "2")[1].startswith("valid NLL ")
    has_not = (
        f"{runs[0]!r} has not been scored on 'test'; compare the scores on 'valid' with --split valid, or score it "
    )
    assert call("compare", *runs)[2].startswith(has_not)
    assert call("compare", *runs, "--split", "valid")[0] == 0


class Talkative(c.Model):
    """A model that prints when it is built and when it runs."""

    def __init__(self) -> None:
        print("building")
        super().__init__(own.Prior(), Printing())


class Printing(own.Posterior):
    def forward(self, draw: c.Draw, x: Tensor) -> None:
        print("running")
        super().forward(draw, x)


def test_json_is_all_that_is_printed_to_stdout(data: str, tmp_path: Path) -> None:
    given = ("--data", data, "--steps", "2", "--batch", "8", "--score-samples", "2", "--out", str(tmp_path / "run"))
    assert call("train", "tests.cli.test_own:Talkative", *given)[0] == 0
    code, stdout, stderr = call("evaluate", str(tmp_path / "run"), "--samples", "2", "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["samples"] == 2
    assert {"building", "running"} <= set(stderr.split())


def test_the_best_of_a_sweep_is_trained_again(data: str, tmp_path: Path) -> None:
    given = ("--data", data, "--steps", "4", "--batch", "8", "--estimator", "rloo", "--score-samples", "2")
    code, stdout, stderr = call("sweep", BUILD, *given, "--lr", "1e-2,1e-3", "--out", str(tmp_path / "sweep"))
    assert code == 0, stderr
    assert len([line for line in stdout.splitlines() if line.strip().endswith("best")]) == 1
    best = tmp_path / "sweep" / "best.toml"
    again = ("--recipe", str(best), "--out", str(tmp_path / "again"), "--score-samples", "2")
    sentence = f"a recipe calls its builder only if you name it: add {BUILD!r} as first argument\n"
    assert call("train", *again) == (2, "", sentence)
    code, _, stderr = call("train", BUILD, *again)
    assert code == 0, stderr
    assert load_recipe(tmp_path / "again").settings["estimator"] == "rloo"


def test_a_recipe_need_not_name_the_builder(data: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('clip = 1.0\nbeta = "0:1:10"\nlr = [1e-3, 3e-3]\n[arguments]\nwidth = 5\n')
    given = ("--data", data, "--steps", "2", "--batch", "8", "--score-samples", "2", "--recipe", str(path))
    code, _, stderr = call("train", BUILD, *given, "--set", "drop=0.1", "--out", str(tmp_path / "list"))
    assert code == 0, stderr
    settings = load_recipe(tmp_path / "list" / "lr=0.003").settings
    assert (settings["clip"], settings["beta"]) == (1.0, "0:1:10")
    assert settings["arguments"] == {"width": 5, "drop": 0.1}


def test_a_program_is_scored_by_its_cost(labelled: str, tmp_path: Path) -> None:
    run = str(tmp_path / "gate")
    given = ("--data", labelled, "--steps", "6", "--batch", "8", "--estimator", "rloo", "--score-samples", "3")
    code, stdout, stderr = call("train", GATE, *given, "--out", run)
    assert code == 0, stderr
    assert stdout.startswith("test cost ")
    assert call("evaluate", run, "--samples", "4", "--split", "valid")[1].startswith("valid cost ")
    code, stdout, _ = call("compare", run)
    assert code == 0
    assert "test cost" in stdout
    code, stdout, stderr = call("study", run, "--repeats", "4", "--samples", "2", "--out", str(tmp_path))
    assert code == 0, stderr
    assert "reinforce" in stdout
    assert "vimco" not in stdout
    sentence = "vimco must be left out for a program, as it needs the log-weights of a model\n"
    assert call("study", run, "--estimators", "rloo,vimco", "--out", str(tmp_path)) == (2, "", sentence)


def test_a_sweep_of_a_program_and_its_report_say_cost(labelled: str, tmp_path: Path) -> None:
    given = ("--data", labelled, "--steps", "4", "--batch", "8", "--score-samples", "2")
    code, stdout, stderr = call("sweep", GATE, *given, "--lr", "1e-2,1e-3", "--out", str(tmp_path / "sweep"))
    assert code == 0, stderr
    assert "validation cost from 2 samples" in stdout
    assert "NLL" not in stdout
    run = tmp_path / "sweep" / "lr=0.01,seed=0"
    assert call("evaluate", str(run), "--samples", "2", "--relaxed")[0] == 0
    page = (run / "report.html").read_text()
    assert "The objective of training; the cost is that of the discrete graph" in page
    assert "the training cost is" in page
    assert "NLL" not in page


def test_a_cost_is_not_compared_with_a_likelihood(trained: Path, labelled: str, tmp_path: Path) -> None:
    run = str(tmp_path / "gate")
    given = ("--data", labelled, "--steps", "2", "--batch", "8", "--estimator", "rloo", "--score-samples", "3")
    assert call("train", GATE, *given, "--out", run)[0] == 0
    sentence = f"runs must have scores of one kind, got the cost of a program in {run!r} and an NLL in {str(trained)!r}"
    assert call("compare", str(trained), run) == (2, "", f"{sentence}\n")


def test_an_interrupted_run_is_resumed_to_the_same_end(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--data", data, "--batch", "8", "--score-samples", "2", "--beta", "0:1:8", "--temperature", "1:1/2:9")
    assert call("train", BUILD, *given, "--steps", "12", "--out", str(tmp_path / "straight"))[0] == 0
    assert call("train", BUILD, *given, "--steps", "7", "--out", str(tmp_path / "parts"))[0] == 0
    code, _, stderr = call("train", "--resume", str(tmp_path / "parts"), "--steps", "12", "--score-samples", "2")
    assert code == 0, stderr
    one, other = (own.saved(tmp_path / name) for name in ("straight", "parts"))
    assert all(one[name].equal(other[name]) for name in one if not name.startswith("row/"))


def test_another_setting_has_another_default_folder(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("--data", data, "--steps", "2", "--batch", "8", "--score-samples", "2")
    for extra in ((), ("--lr", "1e-2"), ("--set", "width=5", "--lr", "1e-2")):
        code, _, stderr = call("train", BUILD, *given, *extra)
        assert code == 0, stderr
    names = sorted(path.name for path in (tmp_path / "out" / "train").iterdir())
    assert names == ["own.build-my-seed0", "own.build-my-seed0,lr=0.01", "own.build-width5-my-seed0"]
    code, _, stderr = call("train", BUILD, *given)
    assert code == 2
    assert stderr == (
        "'out/train/own.build-my-seed0' already holds a run: resume it with --resume, replace it with --overwrite, or "
        "choose another folder with --out\n"
    )
    assert call("train", BUILD, *given, "--overwrite")[0] == 0
    folder = tmp_path / "out" / "train" / names[0]
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    assert call("train", BUILD, "--data", "missing.npz", "--out", str(folder), "--overwrite")[0] == 2
    assert {path: path.read_bytes() for path in folder.glob("*.*")} == before


@pytest.mark.parametrize("several", [(), ("--seed", "0,1")], ids=["one run", "a list"])
def test_overwrite_deletes_a_run_only_once_the_new_one_has_been_checked(
    several: tuple[str, ...], data: str, labelled: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given = ("--steps", "2", "--batch", "8", "--score-samples", "2", "--out", str(out), *several)
    assert call("train", BUILD, "--data", data, *given)[0] == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for bad in (("--data", labelled), ("--data", str(tmp_path / "missing.npz")), ("--data", data, "--set", "width=a")):
        assert call("train", BUILD, *bad, *given, "--overwrite")[0] == 2
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    code, _, stderr = call("train", BUILD, "--data", data, *given, "--overwrite", "--lr", "0.1")
    assert code == 0, stderr
    assert [load_recipe(path.parent).settings["lr"] for path in out.rglob("recipe.toml")] == [0.1] * max(
        1, len(several)
    )


def test_overwrite_leaves_other_runs_in_the_folder_and_the_run_to_resume(data: str, tmp_path: Path) -> None:
    given = ("--data", data, "--steps", "2", "--batch", "8", "--score-samples", "2", "--out")
    assert call("train", BUILD, *given, str(tmp_path / "other"))[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "other").iterdir()}
    assert call("train", BUILD, *given, str(tmp_path), "--overwrite")[0] == 0
    assert call("train", BUILD, *given, str(tmp_path), "--overwrite", "--seed", "0,1")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "other", "seed=0", "seed=1"}
    assert {f"{name}.png" for name in CAPTIONS} < set(PICTURES)
    sentence = "overwrite must be left out with --resume, as it would delete the run to resume\n"
    assert call("train", "--resume", str(tmp_path / "other"), "--overwrite") == (2, "", sentence)
    assert {path: path.read_bytes() for path in (tmp_path / "other").iterdir()} == before


def test_a_run_of_fit_is_scored_with_its_file_or_with_one_of_its_tensors(data: str, tmp_path: Path) -> None:
    own.fitted(own.build, data, steps=2, out=tmp_path / "named")
    assert call("evaluate", str(tmp_path / "named"), "--samples", "2")[1].startswith("test NLL ")
    own.fitted(own.build, steps=2, out=tmp_path / "unnamed")
    code, _, stderr = call("evaluate", str(tmp_path / "unnamed"), "--samples", "2")
    assert (code, stderr) == (
        2,
        "the data of this run were objects of Python without a name: pass a file of them as --data\n",
    )
    assert call("evaluate", str(tmp_path / "unnamed"), "--samples", "2", "--data", data)[0] == 0


def test_what_needs_a_run_or_samples_without_inputs_says_so(tmp_path: Path) -> None:
    must = "study must be given the folder of a run, or a notation"
    sentence = f"{must}, got the builder of a model; train it first: concretely train {BUILD}\n"
    assert call("study", BUILD) == (2, "", sentence)
    x = own.bits(40).numpy()
    path = own.write(tmp_path / "halves.npz", train_upper=x[:, :3], train_lower=x[:, 3:])
    given = ("--data", path, "--steps", "2", "--batch", "8", "--score-samples", "2", "--out", str(tmp_path / "run"))
    code, _, stderr = call("train", "tests.cli.test_own:half", *given)
    assert code == 0, stderr
    code, _, stderr = call("sample", str(tmp_path / "run"), "--out", str(tmp_path))
    assert (code, stderr) == (2, "p must run without inputs to draw samples, but needs upper: use concretely.run\n")


class Half(nn.Module):
    """A generative program that predicts one half of the data from the other."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Linear(3, 3)

    def forward(self, draw: c.Draw, upper: Tensor, lower: Tensor | None = None) -> None:
        h = draw("h", c.Bernoulli(logits=self.logits(upper)))
        draw("lower", c.Bernoulli(logits=h), observed=lower)


def half() -> c.Model:
    return c.Model(Half())


@pytest.mark.parametrize(
    "temperature",
    [0.3, c.Annealing(1.0, 0.3, 8), {"code": 0.3}, {"code": c.Annealing(1.0, 0.3, 8)}],
    ids=["number", "schedule", "by node", "schedule by node"],
)
def test_the_temperature_of_a_run_of_fit_is_read_from_its_recipe(temperature: Any, data: str, tmp_path: Path) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    for folder, steps in ((straight, 8), (resumed, 4)):
        own.fitted(own.build, data, estimator=c.Pathwise(), temperature=temperature, steps=steps, out=folder)
    code, _, stderr = call("train", "--resume", str(resumed), "--steps", "8", "--score-samples", "2")
    assert code == 0, stderr
    assert_same(own.exported(resumed), own.exported(straight))
    by_node = isinstance(temperature, dict)
    assert relaxed_estimator(load_recipe(straight), 8) == c.Pathwise({"code": 0.3} if by_node else 0.3, kl="analytic")
    code, stdout, _ = call("evaluate", str(straight), "--samples", "2", "--relaxed")
    assert (code, "relaxed graph" in stdout) == (0, True)


def test_the_objective_of_a_run_of_fit_is_read_from_its_recipe(data: str, tmp_path: Path) -> None:
    straight, resumed, default = (tmp_path / name for name in ("straight", "resumed", "default"))
    how = {"estimator": c.Pathwise(), "samples": 3}
    for folder, steps in ((straight, 8), (resumed, 4)):
        own.fitted(own.build, data, **how, objective=c.average, steps=steps, out=folder)
    own.fitted(own.build, data, **how, steps=8, out=default)
    code, _, stderr = call("train", "--resume", str(resumed), "--steps", "8", "--score-samples", "2")
    assert code == 0, stderr
    assert_same(own.exported(resumed), own.exported(straight))
    assert not own.exported(default)["p.logits"].equal(own.exported(straight)["p.logits"])
    given, model, file = OwnRecipe.of(read(straight / "recipe.toml")), c.load(straight), load_splits(data)
    average, bound = (
        relaxed_objective(recipe, model, file, split="test", samples=50, step=8)["value"]
        for recipe in (given, replace(given, objective=describe(c.bound)))
    )
    assert average > bound  # of minus both


def test_a_run_of_fit_with_nvil_is_resumed_and_one_with_other_objects_is_not(data: str, tmp_path: Path) -> None:
    for folder, steps in (("straight", 8), ("resumed", 4)):
        own.fitted(own.build, data, estimator=c.NVIL, steps=steps, out=tmp_path / folder)
    code, _, stderr = call("train", "--resume", str(tmp_path / "resumed"), "--steps", "8", "--score-samples", "2")
    assert code == 0, stderr
    assert_same(own.exported(tmp_path / "resumed"), own.exported(tmp_path / "straight"))
    assert "must be left out" in call("evaluate", str(tmp_path / "resumed"), "--samples", "2", "--relaxed")[2]
    for name, given in (
        ("tests.cli.test_own:halved", {"schedule": halved}),
        ("torch.optim.adamw:AdamW", {"optimizer": torch.optim.AdamW}),
        ("tests.cli.test_own:least", {"objective": least}),
    ):
        own.fitted(own.build, data, **given, steps=4, out=tmp_path / "own", overwrite=True)
        sentence = f"this run had an object that cannot be made from its text {name!r}\n"
        assert call("train", "--resume", str(tmp_path / "own")) == (2, "", sentence)


def test_a_run_of_fit_with_a_function_for_its_inputs_is_scored_in_python(data: str, tmp_path: Path) -> None:
    own.fitted(own.build, data, inputs=flipped, steps=2, out=tmp_path)
    name = "tests.cli.test_own:flipped"
    must = f"the inputs of this run were made by a function, {name!r}, which only Python can call"
    sentence = f"{must}: score it there, as in c.evaluate(c.load(folder), *inputs)\n"
    for verb in ("evaluate", "study"):
        assert call(verb, str(tmp_path)) == (2, "", sentence)
    sentence = f"this run had an object that cannot be made from its text {name!r}\n"
    assert call("train", "--resume", str(tmp_path), "--steps", "3") == (2, "", sentence)


def flipped(x: Tensor) -> Tensor:
    return 1 - x


def halved(step: int) -> float:
    return 0.5


def least(log_w: Tensor) -> Tensor:
    return log_w.amin(0)


@pytest.mark.parametrize("model", ["__main__:build", ""], ids=["builder", "instance"])
def test_a_run_of_a_script_is_resumed_by_the_script(model: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(OwnRecipe(model=model).toml())
    must = f"a run of a script must be resumed by the script, got {str(tmp_path)!r}: run the script again\n"
    for given in ((), (BUILD,)):
        assert call("train", *given, "--resume", str(tmp_path)) == (2, "", must)


def test_a_builder_may_be_in_a_file(data: str, tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(
        "from tests.training.own import build as made\n\ndef build():\n    return made()\n"
    )
    given = ("--data", data, "--steps", "2", "--batch", "8", "--score-samples", "2", "--out", str(tmp_path / "run"))
    code, _, stderr = call("train", f"{tmp_path / 'my_model.py'}:build", *given)
    assert code == 0, stderr
    assert isinstance(c.load(tmp_path / "run"), c.Model)
