"""The memory of a likelihood depends on the chunk alone."""

from collections import Counter
from collections.abc import Callable
from weakref import finalize

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import concretely as c
from concretely.evaluation.likelihood import evaluate

from .example import NOTATIONS, data_of


class Peak(TorchDispatchMode):
    """The most bytes that tensors took at once, those that were there before excepted."""

    def __init__(self, *before: Tensor) -> None:
        super().__init__()
        self.before = {tensor.untyped_storage()._cdata for tensor in before}
        self.tensors: Counter[int] = Counter()
        self.now = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.watch(tensor)
        return result

    def watch(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage._cdata, storage.nbytes()
        if place in self.before:
            return
        self.now += size * (self.tensors[place] == 0)
        self.tensors[place] += 1
        self.bytes = max(self.bytes, self.now)
        finalize(tensor, self.forget, place, size).atexit = False

    def forget(self, place: int, size: int) -> None:
        self.tensors[place] -= 1
        self.now -= size * (self.tensors[place] == 0)


def peak(model: c.Model, data: tuple[Tensor, ...], samples: int) -> int:
    with Peak(*data, *model.parameters(), *model.buffers()) as watched:
        evaluate(model, *data, samples=samples, chunk=16)
    return watched.bytes


@pytest.mark.parametrize("build", [NOTATIONS["two layers"], NOTATIONS["prediction"]], ids=["density", "prediction"])
def test_memory_is_set_by_the_chunk_and_neither_by_samples_nor_by_data(build: Callable[[], c.Model]) -> None:
    model = build()
    data = data_of(model, 64)
    few, some = (tuple(tensor[:points] for tensor in data) for points in (4, 16))
    start = peak(model, few, 64)
    assert start > 16 * 5 * 4  # the observed layer alone
    assert peak(model, few, 64 * 16) == start
    result = 8 * 2 * 2  # two numbers for each further data point, twice while they are put together
    assert peak(model, some, 64) <= start + 12 * result
    assert peak(model, data, 1) <= peak(model, some, 1) + 48 * result


# --- what is reported ---
