"""Arrays of a file are read with the dtypes of the training points, and described by their sizes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from concretely.data.arrays import load_arrays

BITS = np.array([[0, 1], [1, 0], [1, 1]], np.uint8)


def read(folder: Path, **arrays: Any) -> Any:
    np.savez(folder / "my.npz", **arrays)
    return load_arrays(folder / "my.npz")


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        (">f4", torch.float32),
        ("<f8", torch.float32),
        ("f2", torch.float32),
        ("longdouble", torch.float32),
        (">i8", torch.int64),
        (">u2", torch.uint16),
        ("?", torch.float32),
        ("u1", torch.float32),
    ],
)
def test_numbers_are_read_in_every_byte_order_and_size(stored: str, dtype: torch.dtype, tmp_path: Path) -> None:
    data = read(tmp_path, train=BITS.astype(stored), valid=BITS.astype(stored))
    assert all(data.split(split).dtype == dtype for split in ("train", "valid"))
    assert data.split("train").tolist() == BITS.tolist()


def test_labels_of_two_classes_in_a_split_are_labels_as_in_train(tmp_path: Path) -> None:
    data = read(tmp_path, train_x=BITS, train_y=np.uint8([0, 4, 2]), valid_x=BITS, valid_y=np.uint8([0, 1, 1]))
    assert [part.dtype for part in data.split("valid").values()] == [torch.float32, torch.uint8]


@pytest.mark.parametrize(
    ("train", "test", "sentence"),
    [
        (BITS.astype("f4"), BITS.astype("i8"), "which is read as float32, got int64"),
        (BITS, BITS * 2, "which is read as float32, got uint8 of values up to 2"),
        (BITS.astype("i4"), BITS.astype("i8"), "which is read as int32, got int64"),
    ],
)
def test_a_split_of_another_dtype_is_refused(train: Any, test: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype") as caught:
        read(tmp_path, train_x=train, valid_x=train, test_x=test)
    place = f"array 'test_x' of {str(tmp_path / 'my.npz')!r}"
    assert str(caught.value) == f"{place} must have the dtype of train, {sentence}"


def test_data_are_described_by_their_sizes_and_what_is_not_finite(tmp_path: Path) -> None:
    x, y = np.zeros((1_500, 4, 4)), np.zeros(1_500, np.int64)
    x[7, 0] = np.nan
    data = read(tmp_path, train_x=x, train_y=y, test_x=x[:2], test_y=y[:2])
    sizes = "1,350 training, 150 validation (held out of train), 2 test points of x float32 (4, 4) and y int64 ()."
    (split,) = [name for name in ("train", "valid") if not data.split(name)["x"].isfinite().all()]
    assert data.source == f"{str(tmp_path / 'my.npz')!r}: {sizes} 4 values of {split} are not finite."
