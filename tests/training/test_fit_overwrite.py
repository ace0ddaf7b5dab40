"""What was trained is deleted, or trained, only after all checks of bad input."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import concretely as c
from concretely.training.callback import Callbacks

from .own import bits, build, fitted, stopping
from .test_fit_input import SENTENCES


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*.*")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    fitted(steps=3, out=folder)
    return folder


@pytest.mark.filterwarnings("ignore::concretely.training.fit.TrainingWarning")
@pytest.mark.parametrize("given", [given for given, _ in SENTENCES])
def test_bad_input_keeps_the_run_that_it_would_overwrite(given: dict[str, Any], trained: Path) -> None:
    before = files_of(trained)
    with pytest.raises((ValueError, TypeError)):
        fitted(**given, out=trained, overwrite=True)
    assert files_of(trained) == before


def test_a_run_that_is_being_trained_is_not_overwritten(tmp_path: Path) -> None:
    def step(taken: int) -> None:
        if taken == 10:
            before = files_of(tmp_path)
            assert any(path.suffix == ".safetensors" for path in before)
            with pytest.raises(
                ValueError, match=r"is in use by another process: wait for it, or choose another folder$"
            ):
                fitted(build, seed=[1, 2], steps=2, out=tmp_path / "runs", overwrite=True)
            assert files_of(tmp_path) == before

    given: dict[str, Any] = {"seed": range(2), "out": tmp_path / "runs", "checkpoint_seconds": 0.0}
    assert len(fitted(build, **given, steps=20, callbacks=Callbacks(step=step))) == 2


def test_an_interrupted_run_that_overwrites_does_not_go_on_by_overwriting(tmp_path: Path) -> None:
    found, stop = list[str](), stopping(7)
    called = [Callbacks(step=stop.step), Callbacks(note=found.append)]
    assert not fitted(build, out=tmp_path, overwrite=True, callbacks=called).finished
    assert found == ["stopped after step 7 and saved; the same call without overwrite goes on from there"]
    steps = list[int]()
    assert fitted(build, out=tmp_path, callbacks=Callbacks(step=steps.append)).finished
    assert min(steps) == 8


class Widths(nn.Module):
    """A program that only runs if it has one width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, width), nn.Linear(4, 6)

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=self.encoder(x)))
        return (self.decoder(z) - c.tile(x, z)).square().sum(-1)


def test_every_setting_is_tried_before_any_is_trained(tmp_path: Path) -> None:
    rows = list[Any]()
    with pytest.raises(ValueError, match=r"^the model must run on a batch of the data, of float32 \(10, 6\), but it"):
        fitted(Widths, arguments={"width": [4, 5]}, out=tmp_path / "runs", callbacks=rows.append)
    assert not rows
    assert not (tmp_path / "runs").exists()


def test_settings_that_train_one_after_the_other_read_a_loader_from_its_start() -> None:
    loader = torch.utils.data.DataLoader(torch.rand(40, 6).round(), batch_size=10, shuffle=True)
    several = fitted(build, loader, arguments={"width": [4, 8]})
    alone = [fitted(build, loader, arguments={"width": width}) for width in (4, 8)]
    assert [run.rows[-1].objective for run in several] == [run.rows[-1].objective for run in alone]


class Untiled(Widths):
    """The same, which only runs with one sample."""

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        return (self.decoder(draw("z", c.Bernoulli(logits=self.encoder(x)))) - x).square().sum(-1)


def test_a_program_that_cannot_be_validated_is_not_trained() -> None:
    rows = list[Any]()
    with pytest.raises(ValueError, match=r"^the model must run on a batch of valid, .*: repeat the rows of the former"):
        fitted(Untiled, arguments={"width": 4}, valid=bits(), callbacks=rows.append)
    assert not rows
    assert fitted(Untiled, arguments={"width": 4}, valid=bits(), validation_samples=1).finished
