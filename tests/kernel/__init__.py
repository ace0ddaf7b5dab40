"""Kernels against their definitions: on a GPU where there is one, else in Triton's interpreter."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from concretely.kernel import affine

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

TINY = torch.finfo(torch.float32).tiny
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def sizes(*shapes: tuple[int, ...]) -> pytest.MarkDecorator:
    """Run a law over shapes, over the second of them in a half dtype too."""
    cases = [(shape, torch.float32) for shape in shapes] + [(shapes[1], torch.bfloat16)]
    return pytest.mark.parametrize(("shape", "dtype"), cases, ids=str)


SIZES = sizes((1, 1, 1), (3, 2, 33), (1, 5, 200), (1, 40, 67), (1, 1, 1100))
"""Members, samples and units: one, odd ones, more than a block, rows that end within blocks."""
# the compiler of kernels knows nothing of checks, and its interpreter warns of what is computed but not chosen
MARKS = [pytest.mark.unchecked, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
PATHS = pytest.mark.parametrize("path", ["plain", pytest.param("fast", marks=MARKS)])


def kernel(test: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a test that runs kernels."""
    for mark in MARKS:
        test = mark(test)
    return test


def fast(name: str) -> Any:
    """The kernels of an operation."""
    return pytest.importorskip(f"concretely.kernel.{name}.triton")


@contextmanager
def taken(operation: ModuleType, path: str) -> Iterator[None]:
    """Let an operation take its fast path or its plain one, wherever its tensors are."""
    if path == "fast":
        fast(operation.__name__.rpartition(".")[2])
    with mock.patch.object(operation, "is_fast", return_value=path == "fast"):
        yield


@contextmanager
def precise(path: str) -> Iterator[None]:
    """A path of affine maps on which products are as precise as torch's own."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if path == "fast" else "highest")
    try:
        with taken(affine, path), mock.patch.dict(affine.PRODUCTS, high="ieee"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def key(members: int) -> Tensor:
    """A key for every member."""
    return torch.randint(-(2**63), 2**63 - 1, (members, 2)).to(DEVICE)


def assert_precise(found: Tensor, defined: Tensor, truth: Tensor) -> None:
    """Fail if a kernel is more than twice as far from the truth as its definition is, or as rounding may take it."""
    assert found.dtype == defined.dtype
    assert found.shape == defined.shape == truth.shape
    if found.numel():
        rounding = torch.finfo(defined.dtype).eps / 2 * truth.abs().max()
        allowed = 2 * torch.maximum(_distance(defined, truth), rounding)
        assert _distance(found, truth) <= allowed, f"{_distance(found, truth):.3g} off, allowed {allowed:.3g}"


def _distance(found: Tensor, truth: Tensor) -> Tensor:
    return (found.double() - truth).abs().max()
