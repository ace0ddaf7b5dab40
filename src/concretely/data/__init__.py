"""Data sets of bits: those of the paper, a small one that is always at hand, and your own."""

import os
from pathlib import Path

from ..spelling import did_you_mean
from . import archive, digits, mnist, omniglot
from .bits import Bits
from .dataset import Dataset
from .grey import RULES, Rule

__all__ = ["Bits", "Dataset", "load"]

WIDTHS = {"digits": digits.WIDTH, "mnist": mnist.WIDTH, "omniglot": omniglot.WIDTH}


def load(name: str | Path, *, width: int | None = None, binarize: str = "bernoulli", progress: bool = False) -> Dataset:
    """Load a data set: `digits`, `mnist`, `omniglot`, or an `.npz` file with arrays `train`, `test` and maybe `valid`.

    `width` is the number of bits that a point must have; it also tells packed bits from grey values in a file of your
    own. `binarize` says how grey values become bits: `bernoulli` draws each once, from a fixed seed; `threshold` sets
    those above one half. Bits stay as they are. What is not at hand is downloaded, once, into the folder that the
    environment names in `CONCRETELY_DATA`, or else into the one for caches of this user; `progress` shows a bar on
    stderr meanwhile.

    >>> data = load("digits")
    >>> len(data.train), len(data.valid), len(data.test), data.width
    (1297, 250, 250, 64)
    >>> load("minst")
    Traceback (most recent call last):
    ValueError: data must be a known name or a path that ends in .npz, got 'minst'; did you mean 'mnist'?
    """
    name, rule = os.path.expanduser(name), _rule(binarize)
    if name not in WIDTHS and not name.endswith(".npz"):
        must = "data must be a known name or a path that ends in .npz"
        raise ValueError(f"{must}, got {name!r}{did_you_mean(name, WIDTHS)}")
    if width is not None and width < 1:
        raise ValueError(f"width must be positive, got {width}")
    _require_width(name, WIDTHS.get(name, width), width)  # before anything is downloaded
    match name:
        case "digits":
            data = digits.load(rule)
        case "mnist":
            data = mnist.load(progress=progress)
        case "omniglot":
            data = omniglot.load(rule, progress=progress)
        case _:
            data = archive.load(Path(name), width=width, rule=rule)
    _require_width(name, data.width, width)
    return data


def _rule(name: str) -> Rule:
    """A rule that makes bits of grey values, by its name."""
    for rule in RULES:
        if rule == name:
            return rule
    raise ValueError(f"unknown way to binarize {name!r}{did_you_mean(name, RULES)}")


def _require_width(name: str, found: int | None, width: int | None) -> None:
    """Refuse points that a model cannot have."""
    if width not in (None, found):
        raise ValueError(f"data must have {width} bits for each point, as the model has, got {found} in {name!r}")
