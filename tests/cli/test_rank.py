"""`torchrun` of `fit` or of `concretely train` is one run with one voice, which survives the end of a rank."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from concretely.training import checkpoint

from . import doomed
from .command import call

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOCAL = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
STEPS = ["--data", "digits", "--steps", "10", "--checkpoint-seconds", "0", "--score-samples", "10"]
START = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]


def called(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **LOCAL, "PYTHONPATH": paths}
    full = [sys.executable, *command]
    return subprocess.run(full, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def restarted(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Start two ranks, of which one is killed, so that both are started again."""
    ranks = called("-m", *START, "--max-restarts", "1", *command, folder=folder)
    assert ranks.returncode == 0, ranks.stderr[-3_000:]
    assert (folder / "died").exists()
    assert ranks.stderr.count("another rank has ended or does not answer: start all again") >= 1
    return ranks


def assert_alike(folder: Path) -> None:
    """Fail unless the run on two ranks has the parameters of that on one process, up to rounding."""
    found, expected = (load_file(folder / name / "model.safetensors") for name in ("ranks", "alone"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_run_of_fit_goes_on_after_a_restart_and_ends_as_on_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = restarted("-m", "tests.cli.doomed", "ranks", folder=tmp_path)
    assert ranks.stdout.split() == ["10", "10"]
    monkeypatch.chdir(tmp_path)
    doomed.main("alone")
    assert_alike(tmp_path)


@pytest.mark.exhaustive
def test_the_command_goes_on_after_a_restart_and_ends_as_on_one_process(tmp_path: Path) -> None:
    model = ["-m", "concretely", "train", "tests.cli.doomed:build", *STEPS]
    ranks = restarted(*model, "--set", "mark=died", "--out", "ranks", folder=tmp_path)
    assert ranks.stderr.count("another rank has ended") == 1
    assert ranks.stdout.count("test NLL") == 1
    last = checkpoint.latest(tmp_path / "ranks")
    assert last is not None
    assert last.step == 10
    alone = called(*model, "--set", "mark=died", "--out", "alone", folder=tmp_path)
    assert alone.returncode == 0, alone.stderr[-3_000:]
    assert_alike(tmp_path)
    records = [json.loads((tmp_path / name / "record.json").read_text()) for name in ("ranks", "alone")]
    first, second = (record["metrics"]["test_nll"]["value"] for record in records)
    assert first == pytest.approx(second, abs=1e-3)


@pytest.mark.exhaustive
def test_ranks_share_the_points_of_an_evaluation_and_one_of_them_writes(tmp_path: Path) -> None:
    assert called("-m", "concretely", "train", "4H-64V", *STEPS, "--out", "run", folder=tmp_path).returncode == 0
    found = []
    for start in (["-m", *START, "-m"], ["-m"]):
        done = called(*start, "concretely", "evaluate", "run", "--samples", "50", "--json", folder=tmp_path)
        assert done.returncode == 0, done.stderr[-3_000:]
        assert done.stderr.count("added to") == 1
        found.append(json.loads(done.stdout))
    shared, alone = ({key: value for key, value in each.items() if "seconds" not in key} for each in found)
    assert shared == pytest.approx(alone)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_device_that_a_machine_lacks_is_named_by_its_first_rank(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    code, _, stderr = call("train", "4H-64V", "--data", "digits", "--device", "xla")
    assert code != 0
    assert stderr.count("device must be") == (rank == "0")


@pytest.mark.parametrize("command", [["sweep", "4H-64V"], ["reproduce", "table-1"]], ids=["sweep", "reproduce"])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_verbs_for_many_models_are_refused_by_one_rank(
    command: list[str], rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    code, _, stderr = call(*command)
    told = f"{command[0]} must be started without torchrun, which trains one model"
    assert code != 0
    assert (told in stderr, stderr.strip() == "") == (rank == "0", rank != "0")
