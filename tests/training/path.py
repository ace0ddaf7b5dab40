"""Runs a law of the optimisers and of the step table on the kernels and on their definitions."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest import mock

import pytest


@contextmanager
def taken(module: ModuleType, path: str) -> Iterator[None]:
    """Let a module use its kernels ("fast") or its definitions ("plain"), wherever the tensors are."""
    if path == "fast":
        pytest.importorskip("triton")
    with mock.patch.object(module, "is_fast", return_value=path == "fast"):
        yield
