"""Reproducible binarization of grey values, such as those of scikit-learn's digits."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.random import RandomState  # numpy guarantees that its numbers never change
from numpy.typing import NDArray

from .dataset import SPLITS, Bits, Dataset
from .download import need

Rule = Literal["bernoulli", "threshold"]
RULES: tuple[Rule, ...] = get_args(Rule)

SEED = 0
"""The seed of every shuffle and every draw of bits."""
DIGITS = 64
"""The number of pixels of a digit."""

CHUNK = 4_096
"""The number of points to binarize at once. It does not affect the bits."""


def binarize(grey: NDArray[Any], rule: Rule, *, top: float, random: RandomState) -> NDArray[np.bool_]:
    """Binarize grey values between 0 and `top`, by a Bernoulli draw with probability grey / top or a threshold.

    >>> binarize(np.array([[0, 127, 128, 255]]), "threshold", top=255, random=RandomState(0))
    array([[False, False,  True,  True]])
    >>> binarize(np.array([[0, 255]]), "bernoulli", top=255, random=RandomState(0))
    array([[False,  True]])
    """
    if rule == "threshold":
        return np.asarray(grey > top / 2)
    bits = np.empty(grey.shape, np.bool_)
    for start in range(0, len(grey), CHUNK):
        part = grey[start : start + CHUNK]
        bits[start : start + CHUNK] = random.random_sample(part.shape) < part.astype(np.float64) / top
    return bits


def binarized(shades: Mapping[str, NDArray[Any]], rule: Rule, *, top: float, random: RandomState) -> dict[str, Bits]:
    """Binarize the grey values of the splits, in the order of `SPLITS`."""
    return {name: Bits.pack(binarize(shades[name], rule, top=top, random=random)) for name in SPLITS}


def how(rule: Rule) -> str:
    """Return a description of the binarization.

    >>> how("bernoulli")
    'binarised by one Bernoulli draw from seed 0'
    """
    return "binarised at one half" if rule == "threshold" else f"binarised by one Bernoulli draw from seed {SEED}"


def digits(rule: Rule) -> Dataset:
    """Load 1,297 digits of 8×8 pixels for training and 250 each for validation and test.

    One `numpy.random.RandomState(0)` shuffles them, then draws their bits.
    """
    grey = need("sklearn.datasets", "scikit-learn", what="the data set 'digits'").load_digits().data
    random = RandomState(SEED)
    shades = np.split(grey[random.permutation(len(grey))], [-500, -250])
    splits = binarized(dict(zip(SPLITS, shades, strict=True)), rule, top=16, random=random)
    source = f"The handwritten digits of scikit-learn, 8×8 pixels in 17 shades, {how(rule)}."
    return Dataset("digits", **splits, source=source)


def digit_labels() -> dict[str, NDArray[np.int64]]:
    """Load the labels of the digits by split, in the order of the points of `digits`."""
    label = need("sklearn.datasets", "scikit-learn", what="the data set 'digits'").load_digits().target
    shuffled = label[RandomState(SEED).permutation(len(label))].astype(np.int64)
    return dict(zip(SPLITS, np.split(shuffled, [-500, -250]), strict=True))
