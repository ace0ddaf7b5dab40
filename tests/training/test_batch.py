"""The bits of a batch are those that numpy unpacks, on either path; the definition is batched and compiled."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from concretely.data.dataset import unpack
from tests.kernel import DEVICE, kernel

SIZES = [(1, 1, 1, 1), (3, 5, 2, 13), (1, 4, 7, 784), (2, 3, 2, 2_051)]
"""Members, points, those of a batch, and bits."""


def given(members: int, points: int, batch: int, width: int) -> tuple[Tensor, Tensor]:
    """Packed bits, which members share, and the points of their batches."""
    packed = torch.randint(256, (points, -(-width // 8)), dtype=torch.uint8)
    return packed.to(DEVICE), torch.randint(points, (members, batch)).to(DEVICE)


def truth(packed: Tensor, index: Tensor, width: int) -> Tensor:
    """The bits of every member by numpy."""
    whole = torch.from_numpy(np.unpackbits(packed.cpu().numpy(), axis=-1, count=width))
    return whole[index.cpu()].to(DEVICE)


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_bits_are_those_of_numpy(shape: tuple[int, int, int, int]) -> None:
    packed, index = given(*shape)
    assert torch.equal(unpack(packed[index], shape[-1]), truth(packed, index, shape[-1]))


@kernel
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_bits_of_the_kernel_are_those_of_numpy_as_floats(shape: tuple[int, int, int, int]) -> None:
    kernels = pytest.importorskip("concretely.kernel.bits")
    packed, index = given(*shape)
    for columns in (index, index.mT.contiguous().mT):
        found = kernels.unpack(packed, columns, shape[-1])
        assert found.dtype == torch.float32
        assert torch.equal(found, truth(packed, index, shape[-1]).float())


def test_a_batch_of_programs_is_a_loop_over_them() -> None:
    packed, index = given(4, 5, 3, 13)
    found = vmap(lambda index: unpack(packed[index], 13))(index)
    assert torch.equal(found, truth(packed, index, 13))


@pytest.mark.unchecked
def test_unpacking_compiles() -> None:
    packed, index = given(2, 5, 3, 13)
    compiled = torch.compile(lambda packed, index: unpack(packed[index], 13) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(packed, index), truth(packed, index, 13) + 1)
