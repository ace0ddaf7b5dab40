"""Reproducible binarization of grey values."""

from typing import Any, Literal, get_args

import numpy as np
from numpy.random import RandomState  # numpy guarantees that its numbers never change
from numpy.typing import NDArray

Rule = Literal["bernoulli", "threshold"]
RULES: tuple[Rule, ...] = get_args(Rule)

CHUNK = 4_096
"""The number of points to draw at once; it does not affect the bits."""


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


def how(rule: Rule, seed: int) -> str:
    """Describe the binarization.

    >>> how("bernoulli", 0)
    'binarised by one Bernoulli draw from seed 0'
    """
    return "binarised at one half" if rule == "threshold" else f"binarised by one Bernoulli draw from seed {seed}"
