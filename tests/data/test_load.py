"""Every data set is what it was when it was published, wherever it comes from."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from scipy import io

from concretely.data import Bits, Dataset, load_data, mnist, omniglot
from concretely.data.download import DownloadError, need
from concretely.data.download import folder as data_folder
from concretely.data.grey import CHUNK, RULES, binarize
from concretely.training.recipe import BINARIZATIONS
from tests.budget import assert_frequency
from tests.data.disk import largest_file
from tests.data.server import Server, status

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
SPLITS = ("train", "valid", "test")
shared = pytest.mark.skipif(not SHARED.exists(), reason=f"there are no data in {SHARED}")


def digest(data: Dataset) -> str:
    return hashlib.sha256(b"".join(data.split(name).packed.numpy().tobytes() for name in SPLITS)).hexdigest()


def sizes(data: Dataset) -> tuple[int, ...]:
    return tuple(len(data.split(name)) for name in SPLITS)


def text(bits: NDArray[np.uint8]) -> bytes:
    """Lines of 0 and 1, separated by spaces."""
    characters = np.full((len(bits), 2 * bits.shape[1]), ord(" "), np.uint8)
    characters[:, ::2] = bits + ord("0")
    characters[:, -1] = ord("\n")
    return characters.tobytes()


def test_digits_are_those_that_are_published() -> None:
    data = load_data("digits", width=64)
    assert (data.name, sizes(data)) == ("digits", (1297, 250, 250))
    assert digest(data) == "b4f40d150c95b4b4be876f8070ae6f99ac85d401d99e73b41035e393d46962e7"
    assert "one Bernoulli draw from seed 0" in data.source
    assert "at one half" in load_data("digits", binarize="threshold").source


def test_digits_are_shuffled_and_binarised_grey_values() -> None:
    from sklearn.datasets import load_digits

    grey = load_digits().data
    random = RandomState(0)
    grey = grey[random.permutation(1797)]
    drawn = torch.from_numpy(random.random_sample(grey.shape) < grey / 16)
    for rule, bits in (("bernoulli", drawn), ("threshold", torch.from_numpy(grey > 8))):
        data = load_data("digits", binarize=rule)
        joined = torch.cat([data.split(name)[:] for name in SPLITS])
        assert torch.equal(joined, bits.byte())


@pytest.mark.parametrize(("top", "dtype"), [(255, np.uint8), (1, np.float32)])
def test_grey_values_are_drawn_with_their_probability(top: int, dtype: Any) -> None:
    points, random = 2 * CHUNK + 100, RandomState(0)
    levels = np.array([0, 1, 64, 128, 200, 254, 255]) / 255
    grey = np.broadcast_to(levels * top, (points, len(levels))).astype(dtype)
    bits = binarize(grey, "bernoulli", top=top, random=random)
    for level, hits in zip(levels, bits.sum(0), strict=True):
        assert_frequency(int(hits), of=points, probability=float(level), what=f"of grey value {level:.3f}")
    assert not np.array_equal(bits[:CHUNK], bits[CHUNK : 2 * CHUNK])


@pytest.fixture
def served_mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, NDArray[np.uint8]]:
    """A small MNIST on a server of this machine."""
    points = zip(SPLITS, (7, 4, 3), strict=True)
    bits = {name: RandomState(size).randint(0, 2, (size, 784)).astype(np.uint8) for name, size in points}
    texts = {name: text(array) for name, array in bits.items()}
    server.files = {f"binarized_mnist_{name}.amat": content for name, content in texts.items()}
    monkeypatch.setattr(mnist, "URL", server.url)
    monkeypatch.setattr(mnist, "SIZE", {name: len(content) for name, content in texts.items()})
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in texts.items()}
    monkeypatch.setattr(mnist, "SHA256", sha256)
    return bits


def test_mnist_is_downloaded_once_and_kept_packed(
    served_mnist: dict[str, NDArray[np.uint8]], server: Server, folder: Path
) -> None:
    for name in ("mnist", "mnist", str(folder / "binarized_mnist.npz")):
        data = load_data(name)
        assert data.width == 784
        assert all(np.array_equal(data.split(split)[:].numpy(), bits) for split, bits in served_mnist.items())
        assert [file.name for file in folder.iterdir()] == ["binarized_mnist.npz"]
    assert [name for name, _ in server.asked] == [f"binarized_mnist_{split}.amat" for split in SPLITS]


def test_mnist_goes_on_from_what_has_arrived(
    served_mnist: dict[str, NDArray[np.uint8]], server: Server, folder: Path
) -> None:
    server.script = [lambda handler, body: handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + body), status(404)]
    urls = [f"{server.url}binarized_mnist_{split}.amat" for split in SPLITS]
    sentence = (
        "'binarized_mnist_valid.amat' could not be downloaded: the server answered 404 Not Found; try again, or "
        f"fetch {urls[0]}, {urls[1]} and {urls[2]} by hand and put them into {folder}"
    )
    with pytest.raises(DownloadError, match=f"^{re.escape(sentence)}$"):
        load_data("mnist")
    assert [file.name for file in folder.iterdir()] == ["binarized_mnist_train.amat"]
    assert len(load_data("mnist").valid) == 4
    assert [name for name, _ in server.asked].count("binarized_mnist_train.amat") == 1


def test_texts_of_mnist_may_be_put_there_by_hand(
    served_mnist: dict[str, NDArray[np.uint8]], server: Server, folder: Path
) -> None:
    folder.mkdir(parents=True)
    for name, content in server.files.items():
        (folder / name).write_bytes(content)
    assert sizes(load_data("mnist")) == (7, 4, 3)
    assert not server.asked


def test_disk_that_fills_up_is_told_and_the_texts_of_mnist_are_kept(
    served_mnist: dict[str, NDArray[np.uint8]], server: Server, folder: Path
) -> None:
    folder.mkdir(parents=True)
    for name, content in server.files.items():
        (folder / name).write_bytes(content)
    sentence = (
        f"'binarized_mnist.npz' could not be written: the disk of {folder} is full (File too large); try again, or "
        "move its .amat files to another folder and name that in CONCRETELY_DATA"
    )
    with largest_file(500), pytest.raises(DownloadError, match=f"^{re.escape(sentence)}$"):
        load_data("mnist")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == server.files
    assert sizes(load_data("mnist")) == (7, 4, 3)
    assert not server.asked


def test_mnist_that_another_process_has_made_meanwhile_is_taken(
    served_mnist: dict[str, NDArray[np.uint8]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(*_: object, **__: object) -> None:
        folder.mkdir(parents=True)
        packed: dict[str, Any] = {name: np.packbits(bits, axis=1) for name, bits in served_mnist.items()}
        np.savez(folder / "binarized_mnist.npz", **packed)

    monkeypatch.setattr(mnist, "fetch", overtaken)
    assert sizes(load_data("mnist")) == (7, 4, 3)


@pytest.mark.parametrize(("name", "file"), [("mnist", "binarized_mnist.npz"), ("omniglot", "omniglot28.npz")])
def test_files_of_another_form_are_told(name: str, file: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    arrays: dict[str, Any] = {split: np.zeros((3, 5), np.uint8) for split in SPLITS}
    np.savez(folder / file, **arrays)
    columns = {"mnist": 98, "omniglot": 784}[name]
    must = f"array 'train' of {str(folder / file)!r} must have {columns} columns of uint8"
    sentence = f"{must}, got uint8 of shape (3, 5); delete the file to download the data again"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        load_data(name)


@pytest.mark.parametrize(("name", "file"), [("mnist", "binarized_mnist.npz"), ("omniglot", "omniglot28.npz")])
def test_damaged_files_are_told_with_what_to_do(name: str, file: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / file).write_bytes(b"PK\x03\x04 broken")
    must = f"{str(folder / file)!r} must be an .npz file of numpy, got another format"
    with pytest.raises(ValueError, match=f"^{re.escape(must)}; delete the file to download the data again$"):
        load_data(name)


def test_damaged_matrix_is_told_with_what_to_do(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "chardata.mat").write_bytes(b"broken")
    place = re.escape(str(folder / "chardata.mat"))
    with pytest.raises(DownloadError, match=f"^{place} must have the md5 .*: delete it to download it again, or"):
        load_data("omniglot")


def test_omniglot_is_downloaded_once_and_turned_upright(
    server: Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = RandomState(0).randint(0, 2, (20, 28, 28)).astype(float)
    columns = np.stack([image.flatten(order="F") for image in images], axis=1)
    io.savemat(tmp_path / "chardata.mat", {"data": columns[:, :15], "testdata": columns[:, 15:], "target": images[0]})
    content = (tmp_path / "chardata.mat").read_bytes()
    server.files["chardata.mat"] = content
    monkeypatch.setattr(omniglot, "URL", f"{server.url}chardata.mat")
    monkeypatch.setattr(omniglot, "MD5", hashlib.md5(content).hexdigest())
    monkeypatch.setattr(omniglot, "VALID", 4)
    for _ in range(2):
        data = load_data("omniglot", width=784)
        assert sizes(data) == (11, 4, 5)
        assert np.array_equal(data.test[:].numpy(), images[15:].reshape(5, -1))
        assert sorted(data.whole.train[:].tolist()) == sorted(images[:15].reshape(15, -1).tolist())
        assert data.whole.train[:].tolist() != images[:15].reshape(15, -1).tolist()
        assert [file.name for file in folder.iterdir()] == ["chardata.mat"]
    assert len(server.asked) == 1


def test_omniglot_that_is_out_of_reach_is_told(folder: Path) -> None:
    with pytest.raises(DownloadError, match="could not connect to") as caught:
        load_data("omniglot")
    manual = (
        "fetch https://raw.githubusercontent.com/yburda/iwae/master/datasets/OMNIGLOT/chardata.mat by hand and save it "
        f"as {folder / 'chardata.mat'}"
    )
    assert str(caught.value).endswith(manual)


@shared
def test_mnist_is_the_published_binarisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCRETELY_DATA", str(SHARED))
    data = load_data("mnist", width=784)
    assert sizes(data) == (50_000, 10_000, 10_000)
    for split in SPLITS:
        lines = text(data.split(split)[:].numpy())
        assert len(lines) == mnist.SIZE[split]
        assert hashlib.sha256(lines).hexdigest() == mnist.SHA256[split]


@shared
def test_mnist_is_known_as_a_file_too() -> None:
    data = load_data(SHARED / "binarized_mnist.npz", width=784)
    assert sizes(data) == (50_000, 10_000, 10_000)
    assert data.source.endswith("packed bits.")


@shared
def test_omniglot_is_the_split_that_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCRETELY_DATA", str(SHARED))
    data = load_data("omniglot", width=784)
    assert sizes(data) == (23_000, 1_345, 8_070)
    assert len(data.whole.train) == 24_345
    assert digest(data) == "2c4d99915c1999ecd8b15d6dc1d35a96c76228184a3646d0f5fb3cc6bad98b71"
    with np.load(SHARED / "omniglot28.npz") as file:
        ink = file["test"].mean() / 255
    assert data.test.rate.mean().item() == pytest.approx(ink, rel=1e-2)
    assert data.train.rate.mean().item() == pytest.approx(data.valid.rate.mean().item(), rel=2e-2)


def test_whole_data_train_on_the_validation_points_too() -> None:
    data = load_data("digits")
    whole = data.whole
    assert torch.equal(whole.train[:], torch.cat([data.train[:], data.valid[:]]))
    assert (whole.valid, whole.test, whole.name, whole.width) == (data.valid, data.test, data.name, 64)
    assert whole.source == data.source[:-1] + "; the validation points are among those for training."


def test_digest_is_that_of_the_bits_and_their_splits() -> None:
    train, valid, test = (Bits.pack(RandomState(size).randint(0, 2, (size, 20))) for size in (4, 3, 2))
    data = Dataset("d", train, valid, test, source=".")
    header = np.array([20, 4, 3, 2], "<i8").tobytes()
    packed = b"".join(bits.packed.numpy().tobytes() for bits in (train, valid, test))
    assert data.digest == hashlib.sha256(header + packed).hexdigest()
    strided = Bits(train.packed.T.contiguous().T, 20)
    assert Dataset("other", strided, valid, test, source="elsewhere.").digest == data.digest
    joined = torch.cat([train.packed, valid.packed])
    others = [
        data.whole,
        Dataset("d", train, test, valid, source="."),
        Dataset("d", Bits(joined[:3], 20), Bits(joined[3:], 20), test, source="."),  # the same bytes, split elsewhere
        Dataset("d", *(Bits(bits.packed, 21) for bits in (train, valid, test)), source="."),
        Dataset("d", Bits(train.packed ^ 16, 20), valid, test, source="."),
    ]
    assert len({data.digest, *(other.digest for other in others)}) == 6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no second device")
def test_digest_is_the_same_on_every_device() -> None:
    data = load_data("digits")
    assert data.to("cuda").digest == data.digest


def test_recipes_know_every_way_to_binarize() -> None:
    assert BINARIZATIONS == RULES  # written twice, so that a recipe is read without torch


def test_data_move_as_a_whole() -> None:
    moved = load_data("digits").to("meta")
    assert [moved.split(name).packed.device.type for name in SPLITS] == ["meta"] * 3


BITS = {width: Bits.pack(torch.zeros(2, width)) for width in (3, 4)}
CALLS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: load_data("minst"),
        "data must be a data set name or the path of an .npz file, got 'minst'; did you mean 'mnist'?",
    ),
    (
        lambda: load_data("x"),
        "data must be a data set name or the path of an .npz file, got 'x'; choose from 'digits', 'mnist', 'omniglot'",
    ),
    (lambda: load_data("digits", binarize="treshold"), "unknown binarization 'treshold'; did you mean 'threshold'?"),
    (lambda: load_data("digits", binarize="x"), "unknown binarization 'x'; choose from 'bernoulli', 'threshold'"),
    (
        lambda: load_data("digits", width=784),
        "data must have 784 bits for each point, like the model, got 64 in 'digits'",
    ),
    (  # and nothing is downloaded for it
        lambda: load_data("omniglot", width=64),
        "data must have 64 bits for each point, like the model, got 784 in 'omniglot'",
    ),
    (lambda: load_data("digits", width=0), "width must be positive, got 0"),
    (lambda: load_data("digits").split("tests"), "unknown split 'tests'; did you mean 'test'?"),
    (
        lambda: Dataset("d", BITS[3], BITS[4], BITS[3], source="."),
        "train, valid and test must have points of the same width, got 3, 4 and 3 in 'd'",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), CALLS, ids=[sentence for _, sentence in CALLS])
def test_what_cannot_be_loaded_gets_one_sentence(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        call()


def test_data_folder_is_the_named_one_or_that_for_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONCRETELY_DATA", str(tmp_path / "mine"))
    assert data_folder() == tmp_path / "mine"
    monkeypatch.setenv("CONCRETELY_DATA", "~/mine")
    assert data_folder() == Path.home() / "mine"
    monkeypatch.setenv("CONCRETELY_DATA", "~nobody-of-that-name/mine")
    with pytest.raises(ValueError, match=r"^CONCRETELY_DATA must name a folder, got '~nobody.*' of an unknown user$"):
        data_folder()
    monkeypatch.setenv("CONCRETELY_DATA", "mine")
    assert data_folder() == Path.cwd() / "mine"
    for clear in (lambda: monkeypatch.setenv("CONCRETELY_DATA", ""), lambda: monkeypatch.delenv("CONCRETELY_DATA")):
        clear()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert "concretely" in data_folder().parts
        assert sys.platform != "linux" or data_folder() == tmp_path / "concretely"


def test_missing_package_is_told() -> None:
    sentence = f"the data set 'x' needs scikit-y, which is not installed: {sys.executable} -m pip install scikit-y"
    with pytest.raises(ImportError, match=f"^{re.escape(sentence)}$"):
        need("no_such_module.inside", "scikit-y", what="the data set 'x'")


def test_packages_for_some_data_are_not_imported_before_they_are_used() -> None:
    program = "import sys, concretely.data; assert not {'sklearn', 'scipy', 'platformdirs', 'rich'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
