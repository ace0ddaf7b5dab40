"""Lines are read one after the other, on either path."""

import pytest
import torch

from concretely.kernel import line as operation
from concretely.kernel.line import read_
from tests.kernel import DEVICE, PATHS, taken


@PATHS
@pytest.mark.parametrize("width", [1, 33, 5000])
def test_lines_are_read_one_after_the_other(width: int, path: str) -> None:
    table = torch.randint(-(2**63), 2**63 - 1, (5, width)).to(DEVICE)
    line, cursor = torch.empty((1, width), dtype=torch.int64, device=DEVICE), torch.tensor([1], device=DEVICE)
    with taken(operation, path):
        for expected in (1, 2, 3):
            read_(line, table, cursor)
            assert torch.equal(line[0], table[expected])
            assert cursor.item() == expected + 1
