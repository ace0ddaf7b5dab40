"""Arrays of a file are read by parts, within a limit of memory that is told and can be raised."""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concretely.data import load_data
from concretely.data import npz as npz_file

from .test_archive import BITS, Array, assert_holds, npy, npz, save, sized


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own.npz"


@pytest.mark.parametrize("shape", [f"({10**15}, 64)", f"({10**20}, 64)"])
def test_a_shape_beyond_the_limit_is_refused_before_it_is_read(path: Path, shape: str) -> None:
    path.write_bytes(npz(npy(sized(shape))))
    with pytest.raises(ValueError, match=r"must have at most 1,073,741,824 bytes, got 6[0-9,]{20}"):
        load_data(path)


def definition(arrays: dict[str, Array], rule: str) -> dict[str, Array]:
    """The bits of arrays, computed from all of them at once."""
    random, found = np.random.RandomState(0), {name: array.reshape(len(array), -1) for name, array in arrays.items()}
    if "valid" not in found:
        train, held = found["train"][random.permutation(len(found["train"]))], max(len(found["train"]) // 10, 1)
        found = {"train": train[:-held], "valid": train[-held:], "test": found["test"]}
    if all(((array == 0) | (array == 1)).all() for array in found.values()):
        return found
    top = 255 if all(array.dtype == np.uint8 for array in found.values()) else 1
    if rule == "threshold":
        return {name: found[name] > top / 2 for name in ("train", "valid", "test")}
    return {
        name: random.random_sample(found[name].shape) < found[name].astype(np.float64) / top
        for name in ("train", "valid", "test")
    }


@pytest.mark.parametrize("part", [1, 100, 2**24])
@pytest.mark.parametrize("rule", ["bernoulli", "threshold"])
@pytest.mark.parametrize("held_out", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["bits", "bytes", "float32"])
def test_parts_give_what_the_whole_gives(
    path: Path, *, part: int, rule: str, held_out: bool, order: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    draw = {
        "bits": lambda shape: random.integers(0, 2, shape),
        "bytes": lambda shape: random.integers(0, 256, shape, dtype=np.uint8),
        "float32": lambda shape: random.random(shape, dtype=np.float32),
    }[kind]
    arrays = {name: draw((points, 3, 4)) for name, points in (("train", 50), ("valid", 6), ("test", 9))}
    if held_out:
        del arrays["valid"]
    np.savez_compressed(path, **{name: np.asarray(array, order=order) for name, array in arrays.items()})
    monkeypatch.setattr(npz_file, "PART", part)
    assert_holds(load_data(path, binarize=rule), definition(arrays, rule))


def peak_of(path: Path, **options: Any) -> int:
    """The largest memory that loading a file takes."""
    tracemalloc.start()
    try:
        load_data(path, **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_bounded_by_a_part_or_by_the_points_that_are_shuffled(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz_file, "PART", 2**18)
    valid = np.zeros((8, 512))
    arrays = {"train": np.zeros((4_096, 512)), "valid": valid, "test": valid}
    np.savez_compressed(path, **arrays)
    size = arrays["train"].nbytes
    assert path.stat().st_size < size / 500
    assert peak_of(path) < size / 4
    np.savez_compressed(path, **arrays | {"valid": valid + 0.5})  # grey values, already divided
    assert peak_of(path) < size / 2
    np.savez_compressed(path, train=arrays["train"], test=valid + 0.5)
    assert peak_of(path) < 1.5 * size


def test_the_limit_is_told_and_can_be_raised(path: Path) -> None:
    size = sum(array.nbytes for array in BITS.values())
    save(path, BITS)
    assert_holds(load_data(path, max_bytes=size), BITS)
    remedy = "raise the limit (--max-bytes, or max_bytes in Python) if the file is what you expect"
    sentence = f"arrays of {str(path)!r} must have at most {size - 1:,} bytes, got {size:,}: {remedy}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        load_data(path, max_bytes=size - 1)
    with pytest.raises(ValueError, match=r"^max_bytes must be positive, got 0$"):
        load_data(path, max_bytes=0)
