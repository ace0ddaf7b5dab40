"""The definition of reading lines."""

import torch
from jaxtyping import Int64
from torch import Tensor


def read_(line: Int64[Tensor, "1 width"], table: Int64[Tensor, "lines width"], cursor: Int64[Tensor, " 1"]) -> None:
    """Read the line at the cursor, and move the cursor to the next."""
    torch.index_select(table, 0, cursor, out=line)
    cursor.add_(1)
