"""`reproduce --smoke` trains the rows that are asked for, those of the paper, too, and says that it means nothing."""

import math
from pathlib import Path

import pytest
import torch

from concretely.data import Bits, Dataset
from concretely.experiment import paper
from concretely.experiment.record import read_record

from .command import call

pytestmark = pytest.mark.usefixtures("tables", "unpictured")

PAPER = paper.FOLDER


def test_smoke_is_apart_and_says_so(trained: list[Path]) -> None:
    code, stdout, _ = call("reproduce", "tiny", "--smoke", "--rows", "nonlinear")
    assert code == 0
    assert stdout.splitlines()[0] == "Smoke test of tiny on 128 data points: these numbers mean nothing"
    assert stdout.splitlines()[-1] == "NLL in nats from 10 samples ± standard error"
    (record,) = Path().rglob("record.json")
    assert record.parts[:4] == ("out", "reproduce", "tiny", "smoke")
    found = read_record(record)
    assert (found["step"], found["metrics"]["train_nll"]["points"]) == (20, 128)
    call("reproduce", "tiny", "--rows", "nonlinear")
    assert len(trained) == 2


def test_a_row_of_the_paper_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "FOLDER", PAPER)
    bits = torch.rand(600, 784, generator=torch.Generator().manual_seed(0)) < 0.3
    made_up = Dataset("mnist", *(Bits.pack(part) for part in bits.split(200)), source="made up.")
    monkeypatch.setattr("concretely.training.folder.load_data", lambda *_, **__: made_up)
    code, stdout, stderr = call(
        "reproduce", "table-1", "--smoke", "--rows", "200H-784V", "--samples", "1", "--data", "mnist"
    )
    assert code == 0, stderr
    assert stdout.splitlines()[0] == "Smoke test of table-1 on 128 data points: these numbers mean nothing"
    concrete, nvil = (line.split() for line in stdout.splitlines() if line.startswith(" 200H-784V"))
    for line, estimator, printed in ((concrete, "concrete", "107.3"), (nvil, "nvil", "104.4")):
        assert (line[1], line[5]) == (estimator, printed)
        assert 300 < float(line[2]) < 784 * math.log(2) + 50
