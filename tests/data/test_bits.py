"""Packed bits are those that were packed, wherever and however they are asked for."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from concretely.data import Bits
from tests.cases import DEVICES

WIDTHS = (1, 3, 7, 8, 9, 16, 63, 64, 65, 784)


def some_bits(points: int, width: int) -> torch.Tensor:
    return torch.randint(2, (points, width), dtype=torch.uint8)


@settings(deadline=None, max_examples=200, derandomize=True, database=None)
@given(array=arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 70))))
def test_bits_are_packed_as_numpy_does_and_unpacked_again(array: NDArray[np.bool_]) -> None:
    bits = Bits.pack(array)
    assert np.array_equal(bits.packed.numpy(), np.packbits(array, axis=1))
    assert bits[:].dtype == torch.uint8
    assert np.array_equal(bits[:].numpy(), array)
    assert (len(bits), bits.width) == array.shape


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64])
def test_bits_of_any_type_are_packed_alike(dtype: torch.dtype) -> None:
    bits = some_bits(5, 11)
    assert torch.equal(Bits.pack(bits.to(dtype))[:], bits)
    assert torch.equal(Bits.pack(bits.to(dtype).numpy())[:], bits)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_points_are_found_by_any_index(width: int, device: str) -> None:
    bits = some_bits(20, width).to(device)
    packed = Bits.pack(bits)
    assert packed.packed.device.type == device
    for index in (torch.tensor(7), torch.tensor([3, 3, -1]), torch.randint(20, (2, 1, 4)), torch.zeros(0, 2).long()):
        for places in (index.to(device), index.to(device, torch.int32)):
            assert torch.equal(packed[places], bits[places])
    for some in (slice(None), slice(5, 9), slice(-3, None), slice(1, 19, 4), slice(4, 4), 0, -1):
        assert torch.equal(packed[some], bits[some])
    assert torch.equal(torch.stack(list(packed)), bits)  # type: ignore[call-overload]


@pytest.mark.parametrize("device", DEVICES)
def test_points_are_found_under_vmap(device: str) -> None:
    bits = some_bits(20, 13).to(device)
    packed, index = Bits.pack(bits), torch.randint(20, (4, 3), device=device)
    assert torch.equal(torch.vmap(packed.__getitem__)(index), bits[index])
    stacked = torch.stack([packed.packed, packed.packed.flip(0)])
    both = torch.vmap(lambda packed, index: Bits(packed, 13)[index])(stacked, index[:2])
    assert torch.equal(both, torch.stack([bits[index[0]], bits.flip(0)[index[1]]]))


@pytest.mark.unchecked
@pytest.mark.parametrize("device", DEVICES)
def test_points_are_found_by_one_compiled_graph(device: str) -> None:
    bits = some_bits(20, 13).to(device)
    packed, index = Bits.pack(bits), torch.randint(20, (4, 3), device=device)

    def gather(packed: Bits, index: torch.Tensor) -> torch.Tensor:
        return torch.vmap(packed.__getitem__)(index).float() + packed[:1]

    compiled = torch.compile(gather, fullgraph=True, backend="aot_eager" if device == "cpu" else "inductor")
    assert torch.equal(compiled(packed, index), bits[index].float() + bits[0])


@pytest.mark.unchecked
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
def test_points_are_gathered_without_talk_to_the_host() -> None:
    packed, index = Bits.pack(some_bits(20, 13)).to("cuda"), torch.randint(20, (4, 3), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        packed[index]
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("points", [1, 4_096, 4_097, 9_999])
def test_rate_is_the_mean_of_every_bit(points: int, device: str) -> None:
    bits = (torch.rand(points, 11) < torch.linspace(0, 1, 11)).to(device)
    rate = Bits.pack(bits).rate
    assert rate.dtype == torch.float32
    assert torch.equal(rate, bits.double().mean(0).float())
    assert (rate[0], rate[-1]) == (0, 1)


def test_bits_move_as_a_whole() -> None:
    bits = Bits.pack(some_bits(3, 9))
    moved = bits.to("meta")
    assert (moved.packed.device.type, moved.width, len(moved)) == ("meta", 9, 3)


BYTES = torch.zeros(2, 2, dtype=torch.uint8)
CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Bits(BYTES, 17), ValueError, "packed must have 3 bytes for 17 bits, got 2"),
    (lambda: Bits(BYTES, 8), ValueError, "packed must have 1 bytes for 8 bits, got 2"),
    (lambda: Bits(BYTES, 0), ValueError, "width must be positive, got 0"),
    (lambda: Bits(BYTES[:0], 16), ValueError, "packed must have at least one point, got none"),
    (lambda: Bits(BYTES, 16.0), TypeError, "width must be an integer, got float"),  # type: ignore[arg-type]
    (lambda: Bits(BYTES, True), TypeError, "width must be an integer, got bool"),
    (lambda: Bits([[0, 0]], 16), TypeError, "packed must be a tensor, got list"),  # type: ignore[arg-type]
    (
        lambda: Bits(BYTES.int(), 16),
        ValueError,
        "packed must be of uint8 and have two axes, got torch.int32 of shape (2, 2)",
    ),
    (
        lambda: Bits(BYTES[0], 16),
        ValueError,
        "packed must be of uint8 and have two axes, got torch.uint8 of shape (2,)",
    ),
    (lambda: Bits.pack([[0, 1]]), TypeError, "array must be an array or a tensor, got list"),  # type: ignore[arg-type]
    (
        lambda: Bits.pack(torch.zeros(3)),
        ValueError,
        "array must have an axis of points and one of bits, got shape (3,)",
    ),
    (lambda: Bits.pack(torch.zeros(0, 3)), ValueError, "packed must have at least one point, got none"),
    (lambda: Bits.pack(torch.zeros(3, 0)), ValueError, "width must be positive, got 0"),
    (
        lambda: Bits.pack(torch.tensor([[0, 1], [1, 2]])),
        ValueError,
        "array must be bits of 0 and 1, got 2 at index (1, 1)",
    ),
    (
        lambda: Bits.pack(np.array([[0.0, np.nan]])),
        ValueError,
        "array must be bits of 0 and 1, got nan at index (0, 1)",
    ),
    (
        lambda: Bits(BYTES, 16)[torch.tensor([True, False])],
        TypeError,
        "index must be of int64 or int32, got torch.bool",
    ),
    (lambda: Bits(BYTES, 16)[BYTES], TypeError, "index must be of int64 or int32, got torch.uint8"),
    (lambda: Bits(BYTES, 16)[torch.ones(1)], TypeError, "index must be of int64 or int32, got torch.float32"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("call", "error", "sentence"), CALLS, ids=[sentence for _, _, sentence in CALLS])
def test_what_are_no_bits_gets_one_sentence(call: Callable[[], Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(sentence)}$"):
        call()
