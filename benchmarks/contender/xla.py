"""A task with a family written in JAX."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..task import Task, scored
from .base import Result


def step(
    build: Callable[[Any, Any], Any], draw: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]], *, task: Task
) -> Callable[[int], Result]:
    """Return a contender that runs the forward and backward pass of a task."""
    run = work(build, draw, logits=task.logits, cotangents=task.cotangents, temperatures=task.temperatures)
    return lambda seed: jax.block_until_ready(run(seed))


def work(
    build: Callable[[Any, Any], Any],
    draw: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]],
    *,
    logits: Sequence[Any],
    cotangents: Sequence[Any],
    temperatures: Sequence[float],
) -> Callable[[int], Result]:
    """Return the forward and backward pass as one jitted program. It returns everything, so that nothing is dropped.

    The device may still be busy when the call returns.
    """
    arrays = jax.tree.map(jax.device_put, (tuple(logits), tuple(cotangents)))

    def forward_and_backward(seed: Any, logits: tuple[jax.Array, ...], cotangents: tuple[jax.Array, ...]) -> Result:
        key = jax.random.key(seed)

        def forward(*logits: jax.Array) -> tuple[jax.Array, ...]:
            return scored(build, lambda variable: draw(variable, key), logits=logits, temperatures=temperatures)

        outputs, pull = jax.vjp(forward, *logits)
        return outputs, pull(cotangents)

    jitted = jax.jit(forward_and_backward)
    # the key is made inside, from a number that changes: splitting one outside would cost as much as a small node
    return lambda seed: jitted(np.uint32(seed), *arrays)
