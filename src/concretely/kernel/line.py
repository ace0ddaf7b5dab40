"""Reads a line of a step table in one launch.

One program does it: a line is short, and all of it must be read before the cursor moves.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _read(line, table, cursor, width, BLOCK: tl.constexpr):
    at = tl.load(cursor)
    for start in range(0, width, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(line + place, tl.load(table + at * width + place, mask=place < width), mask=place < width)
    tl.debug_barrier()
    tl.store(cursor, at + 1)


def read_(line: Tensor, table: Tensor, cursor: Tensor) -> None:
    """Copy the line at the cursor, and move the cursor to the next line."""
    width = table.shape[1]
    block = min(triton.next_power_of_2(width), BLOCK)
    _read[1,](line, table, cursor, width, BLOCK=block, num_warps=max(1, min(block // 128, 16)))
