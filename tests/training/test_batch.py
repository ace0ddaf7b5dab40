"""Bits are those that numpy unpacks, on either path, batched and compiled."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from concretely.kernel import bits
from concretely.kernel.bits import unpack
from tests.kernel import DEVICE, PATHS, opcheck, taken

SIZES = [(1, 1, 1, 1), (3, 5, 2, 13), (1, 4, 7, 784), (2, 3, 2, 2_051)]
"""Members, points, those of a batch, and bits."""


def given(members: int, points: int, batch: int, width: int) -> tuple[Tensor, Tensor]:
    """Packed bits and the points of a batch."""
    packed = torch.randint(256, (members, points, -(-width // 8)), dtype=torch.uint8)
    return packed.to(DEVICE), torch.randint(points, (members, batch)).to(DEVICE)


def truth(packed: Tensor, index: Tensor, width: int) -> Tensor:
    """The bits of every member by numpy."""
    whole = torch.from_numpy(np.unpackbits(packed.cpu().numpy(), axis=-1, count=width))
    return torch.stack([each[at] for each, at in zip(whole, index.cpu(), strict=True)]).float().to(DEVICE)


@PATHS
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_bits_are_those_of_numpy(shape: tuple[int, int, int, int], path: str) -> None:
    packed, index = given(*shape)
    shared = packed[:1].expand_as(packed)  # all members may draw on one data set
    spread = packed.movedim(0, -1).contiguous().movedim(-1, 0)
    with taken(bits, path):
        for each in (packed, shared, spread):
            found = unpack(each, index, shape[-1])
            assert found.dtype == torch.float32
            assert torch.equal(found, truth(each, index, shape[-1]))
        columns = index.mT.contiguous().mT
        assert torch.equal(unpack(packed, columns, shape[-1]), truth(packed, index, shape[-1]))


@PATHS
def test_a_batch_of_programs_is_a_loop_over_them(path: str) -> None:
    packed, index = given(4, 5, 3, 13)
    with taken(bits, path):
        found = vmap(lambda packed, index: unpack(packed, index, 13))(packed.unsqueeze(1), index.unsqueeze(1))
        assert torch.equal(found.squeeze(1), truth(packed, index, 13))
        found = vmap(lambda index: unpack(packed[:1], index, 13))(index.unsqueeze(1))
        assert torch.equal(found.squeeze(1), truth(packed[:1].expand_as(packed), index, 13))


@pytest.mark.unchecked
def test_unpacking_is_an_operator_and_compiles() -> None:
    packed, index = given(2, 5, 3, 13)
    opcheck(unpack, (packed, index, 13))
    compiled = torch.compile(lambda *each: unpack(*each, 13) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(packed, index), truth(packed, index, 13) + 1)
