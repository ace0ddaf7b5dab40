"""Bits from grey values, the same on every machine."""

from typing import Any, Literal, get_args

import numpy as np
from numpy.random import RandomState  # its numbers are promised never to change; those of newer generators are not
from numpy.typing import NDArray

Rule = Literal["bernoulli", "threshold"]
RULES: tuple[Rule, ...] = get_args(Rule)

CHUNK = 4_096
"""How many points are drawn at once; the bits do not depend on it."""


def binarize(grey: NDArray[Any], rule: Rule, *, top: float, random: RandomState) -> NDArray[np.bool_]:
    """Bits from grey values between 0 and `top`: drawn once with that probability, or set above one half of it.

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
    """How grey values became bits, in words.

    >>> how("bernoulli", 0)
    'binarised by one Bernoulli draw from seed 0'
    """
    return "binarised at one half" if rule == "threshold" else f"binarised by one Bernoulli draw from seed {seed}"
