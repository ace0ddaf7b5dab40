"""How a family written in JAX does a task."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..task import Task, scored
from .base import Result


def step(
    build: Callable[[Any, Any], Any], draw: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]], *, task: Task
) -> Callable[[int], Result]:
    """Forwards and backwards as one jitted program, which returns all it computes so that none of it is dropped."""
    arrays = jax.tree.map(jax.device_put, (tuple(task.logits), tuple(task.cotangents)))

    def forward_and_backward(seed: Any, logits: tuple[jax.Array, ...], cotangents: tuple[jax.Array, ...]) -> Result:
        key = jax.random.key(seed)

        def forward(*logits: jax.Array) -> tuple[jax.Array, ...]:
            return scored(build, lambda variable: draw(variable, key), logits=logits, temperatures=task.temperatures)

        outputs, pull = jax.vjp(forward, *logits)
        return outputs, pull(cotangents)

    jitted = jax.jit(forward_and_backward)
    # the key is made inside, from a number that changes: splitting one outside would cost as much as a small node
    return lambda seed: jax.block_until_ready(jitted(np.uint32(seed), *arrays))
