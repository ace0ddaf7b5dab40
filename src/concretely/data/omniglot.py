"""Omniglot at 28×28 pixels, in the split of Burda et al."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from .archive import stored
from .dataset import Dataset
from .download import fetch, folder, need
from .grey import SEED, Rule, binarized, how

SIDE = 28
WIDTH = SIDE * SIDE
VALID = 1_345
URL = "https://raw.githubusercontent.com/yburda/iwae/master/datasets/OMNIGLOT/chardata.mat"
MD5 = "21ecaf34373511aa7691cf2e0802aa3d"
LIMIT = 100 * 2**20
"""An upper limit of the size of the published file in bytes: GitHub accepts no larger ones."""


def load(rule: Rule, *, progress: bool) -> Dataset:
    """Load 23,000 characters for training, 1,345 for validation and 8,070 for test.

    [burda2016importance] has no validation set: ours is held out from its 24,345 training points. Use `whole` to train
    on all of these, as in [maddison2017concrete].

    The data folder may contain `omniglot28.npz`, with arrays `train` and `test` of bytes. Otherwise `chardata.mat` is
    read, and downloaded if needed. One `numpy.random.RandomState(0)` shuffles the training points, which are sorted by
    character, then draws the bits of training, validation and test points.
    """
    path = folder() / "omniglot28.npz"
    if path.exists():
        grey, top, origin = stored(path, ("train", "test"), columns=WIDTH), 255, "rebuilt from the originals"
    else:
        grey, top, origin = _published(path.with_name("chardata.mat"), progress=progress), 1, "as published"
    random = RandomState(SEED)
    train = grey["train"][random.permutation(len(grey["train"]))]
    shades = {"train": train[:-VALID], "valid": train[-VALID:], "test": grey["test"]}
    source = f"Omniglot, 28×28 pixels in the split of Burda et al. (2016), {origin}, {how(rule)}."
    return Dataset("omniglot", **binarized(shades, rule, top=top, random=random), source=source)


def _published(path: Path, *, progress: bool) -> dict[str, NDArray[Any]]:
    """Load the grey values published by Burda et al."""
    matlab = need("scipy.io", "scipy", what="the data set 'omniglot'")
    manual = f"fetch {URL} by hand and save it as {path}"
    fetch(URL, path, digest=f"md5:{MD5}", size=LIMIT, exact=False, manual=manual, progress=progress)
    arrays = matlab.loadmat(path, variable_names=["data", "testdata"])
    return {"train": _upright(arrays["data"]), "test": _upright(arrays["testdata"])}


def _upright(columns: NDArray[Any]) -> NDArray[Any]:
    """Convert MATLAB images, one per column in column-major order, to one per row in row-major order."""
    return np.ascontiguousarray(columns.T.reshape(-1, SIDE, SIDE).swapaxes(1, 2)).reshape(-1, WIDTH)
