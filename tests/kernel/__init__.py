"""Kernels against their definitions: on a GPU where there is one, else in Triton's interpreter."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import concretely.kernel
from concretely.functional import arithmetic
from concretely.kernel import operator
from tests import interpreter

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    interpreter.prepare()

ROOM = Path(concretely.kernel.__file__).parent
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
    return pytest.importorskip(f"concretely.kernel.{module_of(name)}")


def module_of(name: str) -> str:
    """The module with the kernels of an operation."""
    return f"{name}.triton" if (ROOM / name).is_dir() else name


ELIGIBLE = operator.Operator._is_eligible


@contextmanager
def launched(*names: str | None) -> Iterator[None]:
    """Run the kernels of some modules wherever their tensors are, and none of any other; without names, none at all."""
    for name in names:
        if name is not None:
            fast(name)

    def is_launchable(tensor: Tensor) -> bool:  # a function, as the compiler traces it
        return any(name is not None for name in names)

    def is_eligible(self: operator.Operator[..., Any], arguments: Sequence[Any]) -> bool:
        return self.kernel in names and ELIGIBLE(self, arguments)

    with (
        mock.patch.object(operator, "is_launchable", is_launchable),
        mock.patch.object(operator.Operator, "_is_eligible", is_eligible),
    ):
        yield


def on(path: str, *names: str) -> AbstractContextManager[None]:
    """Run the kernels of some modules on the fast path, and the definitions on the plain one."""
    return launched(*names) if path == "fast" else launched()


def gradients(
    outputs: Sequence[Tensor], leaves: Sequence[Tensor], by: Sequence[Tensor | None], **options: Any
) -> tuple[Tensor, ...]:
    """The gradients of leaves, from those of some outputs."""
    pairs = [pair for pair in zip(outputs, by, strict=True) if pair[1] is not None]
    heads, slopes = zip(*pairs, strict=True)
    return torch.autograd.grad(heads, leaves, slopes, **options)


@contextmanager
def precise(path: str) -> Iterator[None]:
    """A path of affine maps on which products are of float32, the kernels' as well as torch's own."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with on(path, "affine", "affine_likelihood"), exact_products("high" if path == "fast" else "highest"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def wished(precision: str) -> Any:
    """Have kernels choose their products as at a precision, without torch's own becoming coarser on a GPU."""
    return mock.patch("torch.get_float32_matmul_precision", return_value=precision)


@contextmanager
def exact_products(precision: str = "high") -> Iterator[None]:
    """Have kernels choose their products as at a precision, but compute those of "high" in float32, too."""
    with wished(precision), mock.patch.dict(arithmetic.PRODUCTS, high="ieee"):
        yield


def opcheck(checked: operator.Operator[..., Any], arguments: tuple[Any, ...]) -> None:
    """Have torch look at an operator."""
    torch.library.opcheck(checked.registered, arguments)


def key(members: int) -> Tensor:
    """A key for every member."""
    return torch.randint(-(2**63), 2**63 - 1, (members, 2)).to(DEVICE)


UNITS = {
    "ieee": (0.0, 2.0**-24 if DEVICE == "cuda" else 0.0),  # an interpreter adds as torch does
    "tf32": (2.0**-10, 2.0**-23),
    "bfloat16": (2.0**-8, 2.0**-23),
}
"""How far a factor of a product and a sum may be off, of their size: rounded, or cut off as TF32 and its sums are."""


def drift(one: Tensor, other: Tensor, product: str = "ieee", more: int = 0) -> Tensor:
    """How far a product of matrices may be off in float32, in whatever order its terms are added.

    A term meets at most one rounding, up to u, for each term there is, and so many `more` within its factors. Then a
    sum of n of them is off by at most γ Σ |a b|, γ = n u / (1 - n u), in any order [Higham 2002, Sections 3.1 and 4.2].
    """
    factor, unit = UNITS[product]
    roundings = (one.shape[-1] + more) * unit
    return ((1 + factor) ** 2 / (1 - roundings) - 1) * (one.double().abs() @ other.double().abs())


def assert_precise(found: Tensor, defined: Tensor, truth: Tensor, drift: Tensor | float = 0.0) -> None:
    """Fail if a kernel is more than twice as far from the truth as its definition is, or as rounding may take it.

    Where it adds in an order of its own, it may drift besides.
    """
    assert found.dtype == defined.dtype
    assert found.shape == defined.shape == truth.shape
    if found.numel():
        rounding = torch.finfo(defined.dtype).eps / 2 * truth.abs().max()
        allowed = 2 * torch.maximum(_distance(defined, truth), rounding)
        off = ((found.double() - truth).abs() - drift).max()
        assert off <= allowed, f"{off:.3g} off, allowed {allowed:.3g}"


def _distance(found: Tensor, truth: Tensor) -> Tensor:
    return (found.double() - truth).abs().max()
