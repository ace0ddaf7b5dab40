"""A file of one's own is read by one rule, and whatever is wrong with it is told in one sentence."""

import io
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from concretely.data import Bits, Dataset, load_data
from concretely.data import npz as npz_file

Array = NDArray[Any]


def some_bits(points: int, width: int, *, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 2, (points, width), dtype=np.uint8)


BITS = {"train": some_bits(30, 20, seed=1), "valid": some_bits(5, 20, seed=2), "test": some_bits(7, 20, seed=3)}
PACKED = {name: np.packbits(bits, axis=1) for name, bits in BITS.items()}
GREY = {name: 255 * bits for name, bits in BITS.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own.npz"


def save(path: Path, arrays: dict[str, Any]) -> str:
    np.savez(path, **arrays)
    return str(path)


def assert_holds(data: Dataset, arrays: dict[str, Array]) -> None:
    for name, array in arrays.items():
        assert np.array_equal(data.split(name)[:].numpy(), array), name


def cast(arrays: dict[str, Array], dtype: Any) -> dict[str, Array]:
    return {name: array.astype(dtype) for name, array in arrays.items()}


FORMS: list[tuple[str, dict[str, Any], int | None, str]] = [
    ("bool", cast(BITS, bool), None, "bits"),
    ("uint8 of 0 and 1", BITS, None, "bits"),
    ("uint8 of 0 and 1, width known", BITS, 20, "bits"),
    ("int64 of 0 and 1", cast(BITS, np.int64), 20, "bits"),
    ("float32 of 0 and 1", cast(BITS, np.float32), None, "bits"),
    ("big-endian of 0 and 1", cast(BITS, ">f8"), None, "bits"),
    ("mixed types of 0 and 1", BITS | {"test": BITS["test"].astype(float)}, None, "bits"),
    ("images", {name: bits.reshape(-1, 2, 5, 2) for name, bits in BITS.items()}, 20, "bits"),
    ("packed, width known", PACKED, 20, "packed bits"),
    ("packed, width declared", PACKED | {"width": 20}, None, "packed bits"),
    ("packed, width declared in a list", PACKED | {"width": np.array([20], np.uint16)}, 20, "packed bits"),
    (
        "packed in Fortran's order",
        {name: np.asfortranarray(packed) for name, packed in PACKED.items()},
        20,
        "packed bits",
    ),
]


@pytest.mark.parametrize(("form", "arrays", "width", "meaning"), FORMS, ids=[form for form, *_ in FORMS])
def test_bits_are_read_as_they_are(
    path: Path, *, form: str, arrays: dict[str, Any], width: int | None, meaning: str
) -> None:
    name = save(path, arrays)
    data = load_data(name, width=width)
    assert_holds(data, BITS)
    assert (data.name, data.width) == (name, 20)
    assert data.source == f"{name!r}, {meaning}."


def test_one_bit_is_not_packed_unless_the_file_says_so(path: Path) -> None:
    arrays = {"train": np.array([[0], [1]], np.uint8), "valid": np.array([[1]], np.uint8)}
    arrays["test"] = arrays["valid"]
    assert_holds(load_data(save(path, arrays), width=1), arrays)
    declared = load_data(save(path, arrays | {"width": np.array(1)}), width=1)
    assert_holds(declared, {"train": np.array([[0], [0]])})  # the first bit of a byte is its largest


def test_bytes_whose_width_is_not_known_are_grey(path: Path) -> None:
    data = load_data(save(path, PACKED), binarize="threshold")
    assert_holds(data, {name: packed > 127 for name, packed in PACKED.items()})
    assert "grey values from 0 to 255" in data.source


@pytest.mark.parametrize("binarize", ["bernoulli", "threshold"])
@pytest.mark.parametrize(("arrays", "top"), [(GREY, 255), (cast(BITS, np.float32) | {"train": BITS["train"] / 1}, 1)])
def test_black_and_white_stay_black_and_white(path: Path, arrays: dict[str, Array], top: int, binarize: str) -> None:
    arrays = arrays | {"train": np.concatenate([arrays["train"], np.full_like(arrays["train"][:1], top / 4)])}
    data = load_data(save(path, arrays), binarize=binarize)
    assert_holds(data, {"valid": BITS["valid"], "test": BITS["test"]})
    assert np.array_equal(data.train[:-1].numpy(), BITS["train"])
    how = {"bernoulli": "binarised by one Bernoulli draw from seed 0", "threshold": "binarised at one half"}[binarize]
    assert data.source == f"{str(path)!r}, grey values from 0 to {top}, {how}."


def test_bytes_are_grey_together(path: Path) -> None:
    ones = {"train": GREY["train"], "valid": np.ones((500, 20), np.uint8), "test": np.ones((500, 20), np.uint8)}
    data = load_data(save(path, ones))
    assert 0 < data.valid.rate.mean() < 0.02  # grey values of 1 in 255, and not bits
    assert not torch.equal(data.valid[:], data.test[:])  # drawn apart
    assert not load_data(save(path, ones), binarize="threshold").valid[:].any()


def test_grey_values_are_drawn_alike_at_every_load(path: Path) -> None:
    grey = {name: np.random.default_rng(0).random((9, 20)) for name in BITS}
    name = save(path, grey)
    first, second = load_data(name), load_data(name)
    assert all(torch.equal(first.split(split).packed, second.split(split).packed) for split in BITS)
    assert not torch.equal(first.train.packed, load_data(name, binarize="threshold").train.packed)


@pytest.mark.parametrize(("points", "held"), [(2, 1), (19, 1), (20, 2), (205, 20)])
@pytest.mark.parametrize("packed", [True, False])
def test_a_tenth_is_held_out_where_no_points_are_for_validation(
    path: Path, points: int, held: int, packed: bool
) -> None:
    numbers = np.unpackbits(np.arange(points, dtype=">u2").view(np.uint8).reshape(-1, 2), axis=1)
    train = np.packbits(numbers, axis=1) if packed else numbers
    data = load_data(save(path, {"train": train, "test": train}), width=16)
    assert (len(data.train), len(data.valid), len(data.test)) == (points - held, held, points)
    parts = [
        Bits.to(bits, "cpu").packed.int() @ torch.tensor([256, 1], dtype=torch.int32)
        for bits in (data.train, data.valid)
    ]
    assert sorted(torch.cat(parts).tolist()) == list(range(points))
    assert points == 2 or torch.cat(parts).tolist() != list(range(points))
    assert data.source.endswith(
        f", {held} of {points} training points held out for validation after a shuffle from seed 0."
    )


def with_value(value: float) -> Array:
    array = np.full((3, 4), 0.5)
    array[1, 2] = value
    return array


GOOD = np.full((3, 4), 0.5)
OBJECTS = np.array([[None, 1]], dtype=object)
FAULTS: list[tuple[dict[str, Any], int | None, str]] = [
    ({"test": GOOD}, None, "PATH must have an array 'train', got 'test'"),
    ({"train": GOOD, "Test": GOOD}, None, "PATH must have an array 'test', got 'train', 'Test'"),
    ({}, None, "PATH must have an array 'train', got nothing"),
    ({"train": OBJECTS, "test": GOOD}, None, "array 'train' of PATH must be an array of numbers, got objects"),
    ({"train": GOOD, "test": GOOD.astype(str)}, None, "array 'test' of PATH must be an array of numbers, got <U32"),
    ({"train": GOOD * 1j, "test": GOOD}, None, "array 'train' of PATH must be an array of numbers, got complex128"),
    (
        {"train": GOOD, "test": with_value(np.nan)},
        None,
        "array 'test' of PATH must lie between 0 and 1, got nan of float64 at index (1, 2)",
    ),
    (
        {"train": with_value(-0.5), "valid": GOOD, "test": GOOD},
        None,
        "array 'train' of PATH must lie between 0 and 1, got -0.5 of float64 at index (1, 2)",
    ),
    (
        {"train": GOOD, "valid": GOOD, "test": with_value(np.inf).astype(np.float32)},
        None,
        "array 'test' of PATH must lie between 0 and 1, got inf of float32 at index (1, 2)",
    ),
    (
        {"train": np.array([[0, 7]]), "valid": np.array([[0, 1]]), "test": np.array([[0, 1]])},
        None,
        "array 'train' of PATH must be bits, since not all arrays are uint8 or floating, got 7 of int64 at",
    ),
    (
        {"train": GREY["train"], "test": BITS["test"].astype(bool), "valid": GREY["valid"]},
        None,
        "array 'train' of PATH must be bits, since not all arrays are uint8 or floating, got 255 of uint8 at index",
    ),
    (
        {"train": GOOD, "valid": GOOD[:, :3], "test": GOOD},
        None,
        "arrays of PATH must all have the same width, got 4 in 'train', 3 in 'valid', 4 in 'test'",
    ),
    (
        {"train": GOOD, "test": GOOD[:0]},
        None,
        "array 'test' of PATH must have an axis of points and one of bits or grey values, got shape (0, 4)",
    ),
    (
        {"train": GOOD[:, :0], "test": GOOD[:, :0]},
        None,
        "array 'train' of PATH must have an axis of points and one of bits or grey values, got shape (3, 0)",
    ),
    (
        {"train": GOOD[0], "test": GOOD},
        None,
        "array 'train' of PATH must have an axis of points and one of bits or grey values, got shape (4,)",
    ),
    (
        {"train": GOOD[:1], "test": GOOD},
        None,
        "array 'train' of PATH must have at least two points, since one is held out for validation, got 1",
    ),
    ({**PACKED, "width": 0}, None, "array 'width' of PATH must be a positive integer, got 0"),
    ({**PACKED, "width": 20.0}, None, "array 'width' of PATH must be a positive integer, got 20.0"),
    ({**PACKED, "width": [20, 20]}, None, "array 'width' of PATH must be a positive integer, got int64 of shape (2,)"),
    (
        {**PACKED, "width": 784},
        None,
        "array 'train' of PATH must have 98 columns of uint8, got uint8 of shape (30, 3)",
    ),
    (
        {**cast(PACKED, int), "width": 20},
        None,
        "array 'train' of PATH must have 3 columns of uint8, got int64 of shape (30, 3)",
    ),
    (BITS, 784, "data must have 784 bits for each point, like the model, got 20 in PATH"),
    ({**PACKED, "width": 20}, 784, "data must have 784 bits for each point, like the model, got 20 in PATH"),
    (PACKED, 25, "data must have 25 bits for each point, like the model, got 3 in PATH"),
]


@pytest.mark.parametrize(("arrays", "width", "sentence"), FAULTS, ids=[sentence for *_, sentence in FAULTS])
def test_what_is_wrong_with_an_array_gets_one_sentence(
    path: Path, arrays: dict[str, Any], width: int | None, sentence: str
) -> None:
    name = save(path, arrays)
    with pytest.raises(ValueError, match=re.escape(sentence.replace("PATH", repr(name)))) as caught:
        load_data(name, width=width)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 broken", b"\x80\x04K\x01."])
def test_other_files_are_refused_with_one_sentence(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(repr(str(path)))} must be an .npz file of numpy, got another"):
        load_data(str(path))


def test_single_array_is_refused_with_one_sentence(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, GOOD)
    with pytest.raises(ValueError, match=r"must be an \.npz file of numpy, got a single array$"):
        load_data(str(path))


def test_damaged_array_is_refused_with_one_sentence(path: Path) -> None:
    np.savez_compressed(path, train=np.random.default_rng(0).random((50, 40)), test=np.zeros((3, 40)))
    content = bytearray(path.read_bytes())
    content[3_000:3_100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^array 'train' of .* must be an array of numbers, got damaged data$"):
        load_data(str(path))


def npy(header: str, body: bytes = bytes(96)) -> bytes:
    """An array as numpy stores it, by what its header says."""
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def npz(train: bytes, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A file with an array `train` of these bytes, and a sound one `test`."""
    file, test = io.BytesIO(), io.BytesIO()
    np.save(test, GOOD)
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("train.npy", train)
        archive.writestr("test.npy", test.getvalue())
    return file.getvalue()


def patched(content: bytes, local: int, central: int, value: int) -> bytes:
    """A file of which two bytes, at places in the headers of its first member, are others."""
    changed = bytearray(content)
    struct.pack_into("<H", changed, local, value)
    struct.pack_into("<H", changed, content.index(b"PK\x01\x02") + central, value)
    return bytes(changed)


def sized(shape: str) -> str:
    return f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"


SOUND = npz(npy(sized("(3, 32)")))
DAMAGED = "damaged data"
ODD: list[tuple[str, bytes, str]] = [
    ("encrypted", patched(SOUND, 6, 8, 1), "encrypted data"),
    ("unknown compression", patched(SOUND, 8, 10, 77), "an unknown compression"),
    ("open bracket in the header", npz(npy("{'descr': (")), DAMAGED),
    ("indented header", npz(npy("  x\n y")), DAMAGED),
    ("no Python in the header", npz(npy("{'descr': '|u1', 'shape': 3 3}")), DAMAGED),
    ("nested header", npz(npy("(" * 4_000 + ")" * 4_000)), DAMAGED),
    ("header that is cut", npz(npy(sized("(3, 32)"))[:40]), DAMAGED),
    ("magic that is cut", npz(b"\x93NUMPY\x01"), DAMAGED),
    ("length that is cut", npz(b"\x93NUMPY\x01\x00\x05"), DAMAGED),
    ("numbers that are cut", npz(npy(sized("(3, 33)"))), DAMAGED),
    ("negative shape", npz(npy(sized("(-3, 32)"))), DAMAGED),
    ("numbers that go on", npz(npy(sized("(3, 31)"))), DAMAGED),
    ("shape beyond Python", npz(npy(sized(f"({'9' * 5_000}, 64)"))), DAMAGED),
    ("version of tomorrow", npz(npy(sized("(3, 32)")).replace(b"Y\x01", b"Y\x09")), DAMAGED),
    ("broken stream", patched(npz(npy(sized("(3, 32)")), zipfile.ZIP_DEFLATED), 39, 36, 0xFFFF), DAMAGED),
]


@pytest.mark.parametrize(("form", "content", "got"), ODD, ids=[form for form, *_ in ODD])
def test_odd_files_are_refused_with_one_sentence(path: Path, form: str, content: bytes, got: str) -> None:
    path.write_bytes(content)
    sentence = f"array 'train' of {str(path)!r} must be an array of numbers, got {got}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        load_data(path)


def test_sound_file_of_that_make_is_read(path: Path) -> None:
    path.write_bytes(SOUND)
    with pytest.raises(ValueError, match=r"must all have the same width, got 32 in 'train', 4 in 'test'$"):
        load_data(path)


@pytest.mark.parametrize(
    "error", [struct.error, zlib.error, tokenize.TokenError, SyntaxError, EOFError, RuntimeError, OverflowError]
)
@pytest.mark.parametrize("place", [(npz_file, "ZipFile"), (npz_file, "_header"), (npz_file, "_exactly")])
def test_whatever_the_reader_raises_gets_one_sentence(
    path: Path, error: type[Exception], place: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("odd\nlines")

    save(path, BITS)
    monkeypatch.setattr(*place, fail)
    got = r"\.npz file of numpy, got another format" if place[1] == "ZipFile" else "array of numbers, got damaged data"
    with pytest.raises(ValueError, match=f"must be an {got}$") as caught:
        load_data(path)
    assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize("form", [str, Path])
def test_home_is_known_by_its_sign(tmp_path: Path, form: Callable[[str], str | Path], monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    name = save(tmp_path / "own.npz", BITS)
    data = load_data(form("~/own.npz"))
    assert_holds(data, BITS)
    assert data.name == name
    with pytest.raises(FileNotFoundError, match=r"^data file '~nobody-of-that-name/own.npz' does not exist$"):
        load_data("~nobody-of-that-name/own.npz")


def test_missing_file_is_told(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"^data file {re.escape(repr(str(path)))} does not exist$"):
        load_data(path)
    path.mkdir()
    with pytest.raises(OSError, match=f"^data file {re.escape(repr(str(path)))} cannot be read \\(Is a directory\\)$"):
        load_data(path)
