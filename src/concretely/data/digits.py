"""The handwritten digits of scikit-learn."""

import numpy as np
from numpy.random import RandomState

from .bits import Bits
from .dataset import Dataset
from .grey import Rule, binarize, how
from .need import need

WIDTH = 64
SEED = 0
VALID, TEST = 250, 250


def load(rule: Rule) -> Dataset:
    """Load 1,297 digits of 8×8 pixels for training and 250 each for validation and test.

    One `numpy.random.RandomState(0)` shuffles them, then draws their bits.
    """
    grey = need("sklearn.datasets", "scikit-learn", what="the data set 'digits'").load_digits().data
    random = RandomState(SEED)
    grey = grey[random.permutation(len(grey))]
    bits = binarize(grey, rule, top=16, random=random)
    train, valid, test = np.split(bits, [len(bits) - VALID - TEST, len(bits) - TEST])
    source = f"The handwritten digits of scikit-learn, 8×8 pixels in 17 shades, {how(rule, SEED)}."
    return Dataset("digits", Bits.pack(train), Bits.pack(valid), Bits.pack(test), source)
