"""MNIST in the fixed binarisation of Salakhutdinov and Murray, the standard for comparing likelihoods."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..file import atomic_write
from .archive import stored
from .dataset import SPLITS, Bits, Dataset, columns
from .download import DownloadError, fetch, folder, why

WIDTH = 784
URL = "https://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"
SIZE = {"train": 78_400_000, "valid": 15_680_000, "test": 15_680_000}
SHA256 = {
    "train": "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d",
    "valid": "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2",
    "test": "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c",
}
SOURCE = "MNIST, 28×28 pixels, in the fixed binarisation of Salakhutdinov and Murray (2008)."


def load(*, progress: bool) -> Dataset:
    """Load 50,000 digits for training and 10,000 each for validation and test. The test set is sorted by digit.

    They are read from `binarized_mnist.npz` in the data folder, which is built from a download if it is missing.
    """
    path = folder() / "binarized_mnist.npz"
    if not path.exists():
        try:
            _make(path, progress=progress)
        except FileNotFoundError:  # another process has built the file and deleted the texts
            if not path.exists():
                raise
    arrays = stored(path, SPLITS, columns=columns(WIDTH))
    splits = {split: Bits(torch.from_numpy(array), WIDTH) for split, array in arrays.items()}
    return Dataset("mnist", **splits, source=SOURCE)


def _make(path: Path, *, progress: bool) -> None:
    """Download the three text files, and store them as one file of packed bits."""
    texts = {split: path.with_name(f"binarized_mnist_{split}.amat") for split in SPLITS}
    urls = [URL + text.name for text in texts.values()]
    manual = f"fetch {urls[0]}, {urls[1]} and {urls[2]} by hand and put them into {path.parent}"
    packed: dict[str, Any] = {"width": WIDTH}
    for split, text in texts.items():
        digest = f"sha256:{SHA256[split]}"
        fetch(URL + text.name, text, digest=digest, size=SIZE[split], manual=manual, progress=progress)
        # 0 or 1, each followed by a space or a line break
        bits = np.frombuffer(text.read_bytes(), np.uint8)[::2] - ord("0")
        packed[split] = np.packbits(bits.reshape(-1, WIDTH), axis=1)
    file = BytesIO()  # in memory: on a full disk, numpy would raise again when it closes the archive
    np.savez_compressed(file, **packed)
    try:
        with atomic_write(path) as place:
            place.write_bytes(file.getbuffer())
    except OSError as error:
        remedy = "try again, or move its .amat files to another folder and name that in CONCRETELY_DATA"
        raise DownloadError(f"{path.name!r} could not be written: {why(error, path.parent)}; {remedy}") from None
    for text in texts.values():
        text.unlink(missing_ok=True)
