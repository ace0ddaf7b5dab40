"""Binary data sets: MNIST and Omniglot as in the paper, scikit-learn's digits, and `.npz` files."""

import os
from pathlib import Path

from ..spelling import did_you_mean
from . import archive, mnist, omniglot
from .dataset import Bits, Dataset
from .grey import DIGITS, RULES, digits
from .npz import MAX_BYTES

__all__ = ["Bits", "Dataset", "load_data"]

WIDTHS = {"digits": DIGITS, "mnist": mnist.WIDTH, "omniglot": omniglot.WIDTH}


def load_data(
    name: str | Path,
    *,
    width: int | None = None,
    binarize: str = "bernoulli",
    max_bytes: int | None = None,
    progress: bool = False,
) -> Dataset:
    """Load `digits`, `mnist`, `omniglot`, or an `.npz` file with arrays `train`, `test` and optionally `valid`.

    `width` is the required number of bits per point; for a file it also distinguishes packed bits from grey values.
    `binarize` converts grey values to bits: `bernoulli` draws each bit once from a fixed seed, and `threshold` sets
    the bits of values above one half. Missing data are downloaded into the folder `CONCRETELY_DATA`, by default the
    user's cache; `progress` shows a progress bar on stderr. `max_bytes` limits the memory of the arrays of a file, by
    default to 1 GiB, as a small file may hold large ones.

    >>> data = load_data("digits")
    >>> len(data.train), len(data.valid), len(data.test), data.width
    (1297, 250, 250, 64)
    >>> load_data("minst")
    Traceback (most recent call last):
    ValueError: data must be a data set name or the path of an .npz file, got 'minst'; did you mean 'mnist'?
    """
    name, rule = os.path.expanduser(name), next((rule for rule in RULES if rule == binarize), None)
    if rule is None:
        raise ValueError(f"unknown binarization {binarize!r}{did_you_mean(binarize, RULES)}")
    if name not in WIDTHS and not name.endswith(".npz"):
        must = "data must be a data set name or the path of an .npz file"
        raise ValueError(f"{must}, got {name!r}{did_you_mean(name, WIDTHS)}")
    for key, value in (("width", width), ("max_bytes", max_bytes)):
        if value is not None and value < 1:
            raise ValueError(f"{key} must be positive, got {value}")
    _require_width(name, WIDTHS.get(name, width), width)  # before anything is downloaded
    match name:
        case "digits":
            data = digits(rule)
        case "mnist":
            data = mnist.load(progress=progress)
        case "omniglot":
            data = omniglot.load(rule, progress=progress)
        case _:
            data = archive.load(Path(name), width=width, rule=rule, max_bytes=max_bytes or MAX_BYTES)
    _require_width(name, data.width, width)
    return data


def _require_width(name: str, got: int | None, width: int | None) -> None:
    """Raise if the data do not have the width of the model."""
    if width not in (None, got):
        raise ValueError(f"data must have {width} bits for each point, like the model, got {got} in {name!r}")
