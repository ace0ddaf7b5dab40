"""Threads that read and write the same files at once see whole files, and lose nothing."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np

from concretely.data import load_data
from concretely.experiment.record import read_record, write_record
from concretely.experiment.scoring import add_scores
from concretely.file import exclusive_dir, file_lock, read_bytes, write_text
from concretely.training.folder import load, restored

from ..training.example import assert_same, data
from .conftest import Attack
from .outcome import sentence_of

THREADS = 8


def test_threads(attack: Attack, sound: Path, tmp_path: Path, victims: Callable[[int], Path]) -> None:
    folder, counter, text = victims(0), tmp_path / "counter", tmp_path / "text"
    points = np.random.default_rng(0).integers(0, 2, (30, 12)).astype(np.uint8)
    np.savez(tmp_path / "own.npz", train=points, test=points)
    counter.write_text("0")
    write_text(text, "a" * 10_000)
    run, model, _ = restored(sound)
    parameters, record, digest = (
        model.state_dict(),
        read_record(sound / "record.json"),
        load_data(tmp_path / "own.npz").digest,
    )

    def count() -> None:
        with file_lock(tmp_path / "counter.lock"):
            counter.write_text(str(int(counter.read_text()) + 1))

    def write() -> None:
        write_text(text, "ab"[np.random.default_rng().integers(2)] * 10_000)

    def look() -> None:
        assert set(read_bytes(text, most=10_000)) in ({97}, {98})

    def score() -> None:
        add_scores(folder, run, model, data=data(), scores={}, others={"test_relaxed": {"value": 1.0, "samples": 1}})

    def recall() -> None:
        assert read_record(folder / "record.json")["metrics"].items() >= record["metrics"].items()

    def restore() -> None:
        assert_same(load(folder).state_dict(), parameters)

    def claim() -> None:
        def hold() -> None:
            with exclusive_dir(folder):
                write_record(folder / "held.json", {"held": True})

        found = sentence_of(hold)
        assert found is None or "is in use by another process" in found

    def read() -> None:
        assert load_data(tmp_path / "own.npz").digest == digest

    acts = {"counts": count, "writes": write, "reads of text": look, "scores": score, "reads of records": recall}
    acts |= {"reads of runs": restore, "locks": claim, "reads of data": read}

    def work(random: Random) -> str:
        name = random.choice([*acts])
        acts[name]()
        return name

    with ThreadPoolExecutor(THREADS) as pool:
        for name in pool.map(work, attack.trials(short=150, full=4_000)):
            attack.count(name)
    assert int(counter.read_text()) == attack.outcomes["counts"]
    assert read_record(folder / "record.json")["metrics"]["test_relaxed"]["value"] == 1.0
