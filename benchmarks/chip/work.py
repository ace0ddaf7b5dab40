"""Random bits to train on, runs that train on them, and their initial weights."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concretely.data import Bits, Dataset
from concretely.training.engine import Engine
from concretely.training.recipe import Recipe, resolve
from concretely.training.train_state import TrainState

from ..training import LEARNING_RATE

SEED = 0
POINTS = 10_000
STEPS = 100_000_000
"""More steps than are ever taken, so that a falling learning rate stays nearly constant."""

Affine = tuple[NDArray[np.float32], NDArray[np.float32]]
"""The matrices, with a row for every output, and the biases of all members."""


class Start(NamedTuple):
    """The initial weights of all members, which are the first axis of every array."""

    top: NDArray[np.float32]
    encoder: list[Affine]
    decoder: list[Affine]
    baseline: list[Affine]
    """The network of NVIL, if there is one."""
    offset: NDArray[np.float32]
    """The offset that the baseline subtracts from the data, if there is one."""


def bits(width: int, *, points: int = POINTS) -> Dataset:
    """Return data points with about 13 % of the bits set, some often and most rarely."""
    random = np.random.default_rng(SEED)
    rates = random.beta(0.3, 2.0, width)
    parts = (Bits.pack(random.random((size, width)) < rates) for size in (points, 1, points))
    return Dataset("bits", *parts, source="drawn at random.")


def recipe(notation: str, **given: Any) -> Recipe:
    """Return the recipe of a model, with the learning rate that all contenders have."""
    return resolve(**{"notation": notation, "data": "bits", "lr": LEARNING_RATE, "steps": STEPS} | given)


def states(first: Recipe, data: Dataset, *, members: int, device: torch.device) -> list[TrainState]:
    """Return runs that differ in their seed."""
    seeds = range(SEED, SEED + members)
    recipes = [resolve(**{**first.settings, "seed": seed}) for seed in seeds]
    data = data.to(device)
    return [TrainState.of(recipe, data, device=device) for recipe in recipes]


def taken(engine: Engine, steps: int) -> None:
    """Take steps with an engine, and wait for the device."""
    engine.advance(engine.step + steps)
    if engine.device.type == "cuda":
        torch.cuda.current_stream(engine.device).synchronize()  # others may be recording on theirs


def start(members: Sequence[TrainState]) -> Start:
    """Return the weights of runs with one latent layer and two tanh layers on either side."""
    models = [member.model.state_dict() for member in members]
    own = [member.estimator.state_dict() if isinstance(member.estimator, torch.nn.Module) else {} for member in members]
    is_nvil = "offset" in own[0]
    return Start(
        top=_stacked(models, "p.top.logits").squeeze(-1),
        encoder=_affines(models, "q.layers.0.network", (0, 2, 4)),
        decoder=_affines(models, "p.visible.network", (0, 2, 4)),
        baseline=_affines(own, "baselines.0", (0, 2)) if is_nvil else [],
        offset=_stacked(own, "offset") if is_nvil else np.empty(0, np.float32),
    )


def _affines(states: Sequence[dict[str, Tensor]], module: str, places: Sequence[int]) -> list[Affine]:
    return [
        (_stacked(states, f"{module}.{place}.weight"), _stacked(states, f"{module}.{place}.bias")) for place in places
    ]


def _stacked(states: Sequence[dict[str, Tensor]], name: str) -> NDArray[np.float32]:
    stacked: NDArray[np.float32] = torch.stack([state[name] for state in states]).cpu().numpy()
    return stacked
