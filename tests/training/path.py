"""Runs a law of the optimisers and of the step table on the kernels and on their definitions."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from concretely.training import optimizer


@contextmanager
def taken(path: str) -> Iterator[None]:
    """Use kernels ("fast") or definitions ("plain"), wherever the tensors are."""
    if path == "fast":
        pytest.importorskip("triton")
    with mock.patch.object(optimizer, "is_fast", return_value=path == "fast"):
        yield
