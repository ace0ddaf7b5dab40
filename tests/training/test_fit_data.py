"""Data come in many forms; the batches are the same in each, in every seed its own order, and again after a resume."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import concretely as c
from concretely.data import Bits
from concretely.data import Dataset as BitData
from concretely.training.callback import Callbacks
from concretely.training.rng import Order, Purpose, generator_of
from concretely.training.source import as_source
from concretely.training.stream import Stream, why_not_replayable

from . import own
from .example import assert_same
from .own import Steps, bits, build, fitted, saved, stopping

CPU = torch.device("cpu")
LABELS = (bits().sum(-1) % 3).long()


class Items(Dataset[Tensor]):
    """A data set of torch that reads one point at a time."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, place: int) -> Tensor:
        return bits()[place]


class Noisy(Items):
    """One that returns something else at each reading."""

    def __getitem__(self, place: int) -> Tensor:
        flip = torch.rand(6) < 0.1
        return torch.where(flip, 1 - bits()[place], bits()[place])


class Endless(IterableDataset[Tensor]):
    """One that can only be iterated."""

    def __iter__(self) -> Iterator[Tensor]:
        yield from bits()


def notes(data: Any) -> list[str]:
    """What is said about data."""
    said = list[str]()
    as_source(data, device=CPU, note=said.append)
    return said


FORMS: dict[str, Any] = {
    "tensor": bits(),
    "array": bits().numpy(),
    "tuple": (bits(),),
    "dictionary": {"x": bits()},
    "tensor data set": TensorDataset(bits()),
    "data set": Items(),
    "bits": Bits.pack(bits()),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_the_same_points_give_the_same_batches(form: str) -> None:
    source = as_source(FORMS[form], device=CPU, note=lambda sentence: pytest.fail(sentence))
    feed, order = source.feed(seed=4, batch=7, parts=2), Order(points=60, batch=14, seed=4)
    for step in (0, 3, 11):
        expected = bits()[order.indices(step)].split(7)
        for found, true in zip(feed.inputs(step, CPU), expected, strict=True):
            leaf = found["x"] if isinstance(found, dict) else found[0] if isinstance(found, tuple | list) else found
            assert leaf.equal(true)
    if form in ("tensor", "array", "data set"):
        assert source.digest == as_source(bits(), device=CPU, note=print).digest != ""


def test_a_data_set_of_this_library_brings_its_validation_points() -> None:
    parts = [Bits.pack(bits()[start:end]) for start, end in ((0, 40), (40, 50), (50, 60))]
    data = BitData("dots", *parts, source="made up.")
    run = fitted(build(), data, every=10, steps=10)
    generator = generator_of(3, Purpose.VALIDATION)
    assert run.best == (10, c.evaluate(run.model, bits()[40:50], samples=10, generator=generator).nll)
    assert fitted(build(), data, steps=2).best is None


def test_points_that_are_random_are_read_for_each_step_and_follow_from_the_seed() -> None:
    assert notes(Noisy()) == [
        "the points of data differ from one reading to the next, so that each is read when a step needs it"
    ]
    first, second = (as_source(Noisy(), device=CPU, note=lambda _: None) for _ in range(2))
    one, other = (source.feed(seed=1, batch=5, parts=1) for source in (first, second))
    torch.manual_seed(77)
    assert one.inputs(3, CPU)[0].equal(other.inputs(3, CPU)[0])
    assert not one.inputs(3, CPU)[0].equal(one.inputs(15, CPU)[0])


def test_a_resumed_run_reads_the_same_random_points(tmp_path: Path) -> None:
    given = {"model": build, "data": Noisy(), "valid": Noisy(), "every": 10}
    quiet = Callbacks(note=lambda sentence: None)
    straight = fitted(**given, out=tmp_path / "straight", callbacks=quiet)
    fitted(**given, out=tmp_path / "stopped", callbacks=stopping(13))
    assert fitted(**given, out=tmp_path / "stopped", callbacks=quiet).best == straight.best
    assert_same(saved(tmp_path / "stopped"), saved(tmp_path / "straight"))


def loaders() -> dict[str, DataLoader[Any]]:
    data, generator = TensorDataset(bits()), torch.Generator()
    return {
        "plain": DataLoader(data, batch_size=8),
        "shuffled": DataLoader(data, batch_size=8, shuffle=True),
        "without a rest": DataLoader(data, batch_size=8, shuffle=True, drop_last=True),
        "drawn": DataLoader(data, batch_size=8, sampler=RandomSampler(data, replacement=True, num_samples=40)),
        "random": DataLoader(Noisy(), batch_size=8, shuffle=True),
        "own generator": DataLoader(data, batch_size=8, shuffle=True, generator=generator),
        "iterable": DataLoader(Endless(), batch_size=8),
    }


@pytest.mark.parametrize("name", ["plain", "shuffled", "without a rest", "drawn", "random"])
def test_a_loader_is_replayed_from_any_step(name: str) -> None:
    straight, later = (Stream(loaders()[name], seed=5, parts=2) for _ in range(2))
    batches = [straight.host(step) for step in range(12)]
    torch.manual_seed(1)
    for step in (7, 8, 2):
        for one, other in zip(later.host(step), batches[step], strict=True):
            leaves = [each[0] if isinstance(each, list) else each for each in (one, other)]
            assert leaves[0].equal(leaves[1])
    assert why_not_replayable(loaders()[name]) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking a process with threads
def test_workers_end_with_the_call_and_begin_again(tmp_path: Path) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=1)

    fitted(build, loader(), steps=12, out=tmp_path / "straight")
    fitted(build, loader(), steps=12, out=tmp_path / "stopped", callbacks=stopping(9))
    fitted(build, loader(), steps=12, out=tmp_path / "stopped")  # which is not locked by a worker
    assert_same(saved(tmp_path / "stopped"), saved(tmp_path / "straight"))


def test_the_order_of_a_loader_follows_from_the_seed() -> None:
    one, same, other = (Stream(loaders()["shuffled"], seed=seed).host(0)[0][0] for seed in (1, 1, 2))
    assert one.equal(same)
    assert not one.equal(other)
    epochs = [
        torch.cat([Stream(loaders()["shuffled"], seed=1).host(step)[0][0] for step in steps])
        for steps in (range(8), range(8, 16))
    ]
    assert epochs[0].sum(0).equal(epochs[1].sum(0))
    assert not epochs[0].equal(epochs[1])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("own generator", "its sampler has a generator of its own"),
        ("iterable", "its data set is iterable, and may not begin again at the same place"),
    ],
)
def test_a_loader_that_cannot_be_replayed_is_named_once(name: str, why: str) -> None:
    start = "data cannot be replayed, so that a resumed run may see other batches than an uninterrupted one: "
    assert notes(loaders()[name]) == [start + why]
    said = list[str]()
    fitted(
        build(),
        loaders()[name],
        inputs=lambda batch: batch[0] if isinstance(batch, list) else batch,
        steps=12,
        callbacks=Callbacks(note=said.append),
    )
    assert said == [start + why]


def test_batches_may_differ_in_size() -> None:
    run = fitted(build(), [bits()[:7], bits()[7:30], bits()[30:31]])  # of which each is measured once
    assert run.finished
    assert [row.metrics["constant/code"] for row in run.rows][2] == 0.0


@pytest.mark.parametrize("parts", [1, 2])
def test_batches_may_have_sequences_of_other_lengths(parts: int, tmp_path: Path) -> None:
    data = [bits()[:9, :width] for width in (3, 6, 2, 1, 4)]
    straight = fitted(Steps, data, accumulate=parts, out=tmp_path / "straight")
    assert straight.finished
    assert {"active/z0", "active/z2"} <= straight.rows[-1].metrics.keys()
    fitted(Steps, data, accumulate=parts, out=tmp_path / "stopped", callbacks=stopping(8))
    assert fitted(Steps, data, accumulate=parts, out=tmp_path / "stopped").finished
    assert_same(saved(tmp_path / "stopped"), saved(tmp_path / "straight"))


class Recorded(Steps):
    """One that keeps the noise of its draws in training."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = list[Tensor]()

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        def recorded(name: str, distribution: c.OneHotCategorical) -> Tensor:
            fair = draw(f"fair {name}", c.Bernoulli(logits=torch.zeros(len(x), 64)))
            self.noise += [fair] * self.training
            return draw(name, distribution)

        return super().forward(recorded, x)  # type: ignore[arg-type]


def test_parts_of_a_step_with_sequences_of_other_lengths_share_no_noise() -> None:
    data = [bits()[:9, :width] for width in (1, 4, 3, 2)]
    run = fitted(Recorded, data, accumulate=2, estimator=c.RLOO(), samples=2, steps=2, seed=3)
    noise = run.model.noise[-10:]
    assert len({tuple(drawn.flatten().tolist()) for drawn in noise}) == len(noise) == 10


def test_rows_have_the_metrics_of_the_nodes_in_their_batches_only() -> None:
    rows = fitted(Steps, [bits()[:9, :width] for width in (3, 1, 1)]).rows  # of which each measures another batch
    assert ["active/z0" in row.metrics for row in rows] == [True, True, True]
    assert ["active/z2" in row.metrics for row in rows] == [True, False, False]
    assert not any(name.startswith("drawn") for name in rows[0].values)


def test_an_iterator_that_ends_early_is_saved_and_named(tmp_path: Path) -> None:
    quiet = Callbacks(note=lambda sentence: None)
    sentence = "data ended after 12 batches, before the last step: pass a DataLoader or a list, which can be read again"
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        fitted(build, (bits()[:8] for _ in range(12)), out=tmp_path, callbacks=quiet)
    assert any(tmp_path.glob("checkpoint-*.json"))
    run = fitted(build, (bits()[:8] for _ in range(99)), out=tmp_path, callbacks=quiet)
    assert (run.step, run.finished) == (30, True)


class Short:
    """Batches fewer than their length says."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[Tensor]:
        yield from bits().split(20)


def test_an_epoch_shorter_than_its_length_is_named() -> None:
    with pytest.raises(ValueError, match=r"^an epoch of data must have 5 batches, as its len says, got 3$"):
        fitted(build(), Short(), callbacks=Callbacks(note=lambda sentence: None))


def test_dictionaries_are_passed_by_name_or_as_one_input() -> None:
    class Whole(own.Gate):
        def forward(self, draw: c.Draw, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
            return super().forward(draw, batch["image"], batch["label"])

    torch.manual_seed(0)
    by_name = fitted(own.Gate, {"y": LABELS, "x": bits()}, steps=5)
    whole = fitted(Whole, {"image": bits(), "label": LABELS}, steps=5)
    assert_same(dict(by_name.model.state_dict()), dict(whole.model.state_dict()))


class OneInput(nn.Module):
    """A program of one input, which may be a dictionary with an entry of the same name."""

    def __init__(self, *, takes_whole: bool = False) -> None:
        super().__init__()
        self.layer, self.takes_whole = nn.Linear(6, 2), takes_whole

    def forward(self, draw: c.Draw, x: Any) -> Tensor:
        return draw("z", c.Bernoulli(logits=self.layer(x["x"] if self.takes_whole else x))).sum(-1)


class Sized(OneInput):
    """A program that runs on a dictionary, but with a cost for each entry."""

    def forward(self, draw: c.Draw, x: Any) -> Tensor:
        return self.layer.weight.sum() * torch.ones(len(x))


class OptionalInput(OneInput):
    """A program whose second input may be left out."""

    def forward(self, draw: c.Draw, x: Tensor, weight: Tensor | None = None) -> Tensor:  # type: ignore[override]
        cost = super().forward(draw, x)
        return cost if weight is None else cost * c.tile(weight, cost)


RENAME = "name its entries like the inputs, or pass inputs=, a function from a batch to the inputs"


@pytest.mark.parametrize(
    ("model", "given", "sentence"),
    [
        (
            own.Gate,
            {"data": {"x": bits()}},
            "a program of (x, y) must be given a dictionary of its inputs, got one without 'y'",
        ),
        (own.Gate, {"data": {"x": bits(), "label": LABELS}}, "without 'y' and with unknown 'label'"),
        (own.Gate, {"data": {"image": bits(), "label": LABELS}}, "without 'x', 'y' and with unknown 'image', 'label'"),
        (own.Gate, {"data": {"x": bits(), "y": LABELS}, "valid": {"x": bits()}}, "got one without 'y'"),
        (own.Gate, {"data": (bits(), LABELS), "inputs": lambda batch: {"x": batch[0]}}, "got one without 'y'"),
        (build, {"data": {"x": bits(), "label": LABELS}}, "x was the whole dictionary, as (x) has no input 'label'"),
        (
            OptionalInput,
            {"data": {"x": bits(), "label": LABELS}},
            "a program of (x, weight) must be given a dictionary",
        ),
        (OptionalInput, {"data": [{"x": bits()}, {"x": bits(), "label": LABELS}]}, "got one with unknown 'label'"),
        (OneInput, {"data": {"x": bits(), "label": LABELS}}, "x was the whole dictionary, as (x) has no input 'label'"),
        (Sized, {"data": {"x": bits(), "label": LABELS}}, "got shape (2,); x was the whole dictionary, as (x) has no "),
    ],
)
def test_entries_that_are_not_the_inputs_are_named(model: Any, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(sentence)}.*: {RENAME}$"):
        fitted(model, **given, steps=5)


@pytest.mark.parametrize("data", [{"x": bits(), "y": LABELS}, (bits(), LABELS), bits()])
def test_an_input_by_keyword_only_is_named(data: Any) -> None:
    def program(draw: c.Draw, x: Tensor, *, y: Tensor, scale: float = 1.0) -> Tensor:
        raise AssertionError

    sentence = "a program of (x, y, scale) must take its inputs by position, got y by keyword only: remove the * in"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)} its signature$"):
        fitted(program, data, steps=5)


@pytest.mark.parametrize(
    ("model", "data", "valid"),
    [
        (own.Gate, (bits(), LABELS), {"y": LABELS, "x": bits()}),
        (own.Gate, [(bits(), LABELS)], [{"y": LABELS, "x": bits()}]),
        (build, bits(), {"x": bits()}),
    ],
    ids=["tuple", "batches", "model"],
)
def test_validation_data_may_be_a_dictionary_beside_data_that_are_none(model: Any, data: Any, valid: Any) -> None:
    same = data[0] if isinstance(data, list) else data
    runs = [fitted(model, data, valid=given, every=15) for given in (valid, same)]
    assert runs[0].best == runs[1].best


def test_a_program_of_one_input_may_take_a_dictionary_with_an_entry_of_that_name() -> None:
    assert fitted(OneInput(takes_whole=True), {"x": bits(), "label": LABELS}, steps=5).finished


def test_an_input_with_a_default_may_be_in_some_batches_only() -> None:
    def costs(weight: float) -> list[float]:
        rows = [{"x": bits()}, {"x": bits(), "weight": torch.full((60,), weight)}]
        return [row.objective for row in fitted(OptionalInput, rows, estimator=c.RLOO(), samples=2, steps=2).rows]

    assert costs(0.0) != costs(1.0)


def test_validation_takes_inputs_without_a_row_for_each_data_point() -> None:
    scale = torch.tensor(2.0)

    class Scaled(OneInput):
        def forward(self, draw: c.Draw, x: Tensor, scale: Tensor = scale, row: Any = None) -> Tensor:  # type: ignore[override]
            return super().forward(draw, x * row) * scale

    rows = {"inputs": lambda batch: {"x": batch, "row": torch.ones(1, 6)}, "valid": bits()[:9], "every": 5}
    assert fitted(Scaled, steps=5, **rows).best is not None


def test_a_program_may_need_no_data() -> None:
    logits = torch.nn.Parameter(torch.zeros(3))

    def program(draw: c.Draw) -> Tensor:
        return (draw("b", c.Bernoulli(logits=logits)) - 0.45).square().sum(-1)

    run = fitted(program, [()], estimator=c.RLOO(), samples=4, steps=60, lr=0.3)
    assert run.finished
    assert (logits < -1).all()  # zero costs less than one
    assert c.fit(program, None, estimator=c.RLOO(), samples=4, steps=2).finished


def test_other_data_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    fitted(build, out=tmp_path, callbacks=stopping(7))
    sentence = "^data must be those that the run was trained on, got others in 'data': restore them, or start a new"
    with pytest.raises(ValueError, match=sentence):
        fitted(build, 1 - bits(), out=tmp_path)
    assert fitted(build, out=tmp_path).finished


def test_real_values_labels_and_masks_are_whatever_the_program_takes() -> None:
    def program(draw: c.Draw, x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=layer(x)))
        return ((z.sum(-1) - c.tile(y, z)) ** 2) * c.tile(mask, z)

    layer = torch.nn.Linear(4, 2)
    data = (torch.randn(30, 4), torch.rand(30) < 0.5, np.arange(30) % 3)
    run = fitted(program, data, steps=4)
    assert run.rows[-1].objective < 0
