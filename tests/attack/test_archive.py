"""A hostile `.npz` file gives data or one sentence, in bounded memory, and executes nothing."""

import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path
from random import Random

import numpy as np

from concretely.data import load_data

from .conftest import Attack
from .outcome import sentence_of

LIMIT = 2**22
"""The limit of the arrays in these attacks, in bytes."""


class Bomb:
    """An object that would leave a trace if it were unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.open, (str(self.trace), os.O_CREAT)


def header(random: Random) -> bytes:
    """The header of an array, which may say anything."""
    kinds = ["|u1", "<f8", ">f4", "|b1", "|O", "<U9", "<c16", "<M8[s]", "<f2", "|V8", "<i8", "f99", "", "<u8"]
    shapes = [
        "(3, 12)",
        "(40, 12)",
        "(12,)",
        "()",
        "(0, 12)",
        "(3, -4)",
        f"({10**9}, 12)",
        f"({10**18}, {10**18})",
        "7",
    ]
    descr, shape = random.choice(kinds), random.choice(shapes)
    text = f"{{'descr': '{descr}', 'fortran_order': {random.choice(['True', 'False', '1', '[]'])}, 'shape': {shape}, }}"
    text = random.choice([text, text, text, text[:-9], "(" * 3_000, "__import__('os').abort()", "{}", text * 200])
    content = text.encode("latin1") + b"\n"
    return (
        b"\x93NUMPY" + random.choice([b"\1\0", b"\1\0", b"\2\0", b"\3\0"]) + struct.pack("<H", len(content)) + content
    )


def member(random: Random, trace: Path) -> bytes:
    """The bytes of an array, sound or not."""
    file, points = io.BytesIO(), random.choice([1, 3, 40])
    match random.randrange(16):
        case 0:
            np.save(file, np.array([[Bomb(trace)]], dtype=object), allow_pickle=True)
        case 1:
            return header(random) + random.randbytes(random.choice([0, 36, 480, 3_840]))
        case 2:
            np.save(file, np.zeros((2 ** random.randrange(1, 20), 12)))
        case 3:
            np.save(file, np.random.default_rng(0).random((points, 12)) * random.choice([1, 300, -1, np.nan]))
        case 4:
            file.write(random.randbytes(200))
        case 5:
            file.write(pickle.dumps(Bomb(trace)))
        case _:
            np.save(file, np.random.default_rng(0).integers(0, random.choice([2, 256]), (points, 12), dtype=np.uint8))
    return file.getvalue()


def hostile(random: Random, trace: Path) -> bytes:
    """A file of hostile arrays, of which some bytes may be others."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for name in ("train", "test", *random.sample(["valid", "width", "../escape", "/etc/x"], 2)):
            archive.writestr(f"{name}{random.choice(['.npy', '.npy', ''])}", member(random, trace))
    content = bytearray(file.getvalue())
    for _ in range(random.choice([0, 0, 1, 20])):
        content[random.randrange(len(content))] = random.randrange(256)
    return bytes(content[: random.choice([None, None, len(content) // 2])])


def test_hostile_archives(attack: Attack, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "own.npz"
    for random in attack.trials(short=40, full=2_000):
        path.write_bytes(hostile(random, trace))
        tracemalloc.start()
        found = sentence_of(load_data, path, max_bytes=LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 * LIMIT
        assert sorted(each.name for each in tmp_path.iterdir()) == ["own.npz"]
        attack.count("refused" if isinstance(found, str) else "loaded")
