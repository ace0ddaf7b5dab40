"""Lines of a table, read one after the other where it lies."""

from jaxtyping import Int64
from torch import Tensor

from ..handwritten import is_fast
from . import naive


def read_(line: Int64[Tensor, "1 width"], table: Int64[Tensor, "lines width"], cursor: Int64[Tensor, " 1"]) -> None:
    """Read the line at the cursor, and move the cursor to the next."""
    if is_fast(line):
        from . import triton

        triton.read_(line, table, cursor)
    else:
        naive.read_(line, table, cursor)
