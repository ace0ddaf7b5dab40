"""The slices of all ranks make up the batches of one process, wherever the data are."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from concretely.training.parallel import World, join
from concretely.training.source import as_source

from .own import bits

RANKS, BATCH, PARTS = 3, 12, 2


class Restless(Dataset[Tensor]):
    """Points with noise that differs from one reading to the next."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand(4)


DATA: dict[str, Any] = {
    "tensor": bits(),
    "pair": (bits(), torch.arange(60)),
    "loader": DataLoader(TensorDataset(bits(), torch.arange(60)), batch_size=BATCH, shuffle=True),
    "restless": Restless(),
}


@pytest.mark.parametrize("name", DATA)
def test_slices_make_up_the_batches_of_one_process(name: str) -> None:
    source = as_source(DATA[name], device=torch.device("cpu"), note=lambda sentence: None)

    def batches(world: World) -> list[Any]:
        feed = world.feed(source.feed(seed=3, batch=BATCH, parts=PARTS))
        return [part for step in (0, 4) for part in feed.inputs(step, torch.device("cpu"))]

    expected = batches(World())
    found = [batches(World(rank, RANKS)) for rank in range(RANKS)]
    for place, whole in enumerate(expected):
        parts = [each[place] for each in found]
        if isinstance(whole, Tensor):
            whole, parts = (whole,), [(part,) for part in parts]
        for leaf, own in zip(whole, zip(*parts, strict=True), strict=True):
            assert len(own[0]) == BATCH // RANKS
            assert torch.equal(torch.cat(own), leaf)


@pytest.mark.parametrize(
    ("rank", "sentence"),
    [
        ("3", r"^RANK must be below WORLD_SIZE, as torchrun sets them, got 3 and 2$"),
        ("x", r"^RANK must be a whole number, as torchrun sets it, got 'x'$"),
        ("1", r"^ranks must be started by torchrun, got RANK=1 without a rendezvous: "),
    ],
)
def test_variables_that_torchrun_has_not_set_are_refused(
    rank: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", rank), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ValueError, match=sentence):
        join("cpu")
