"""Plain JAX: a step mapped over members, and a scan over steps, all of it one jitted program.

Batches are drawn from packed bits on the device, with replacement, as is usual where nothing may be asked of the host.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...contender_step.jax_by_hand import State, adam, apply, bound, concrete, log_mass
from ...training import Weights
from ..turn import Contender
from .case import RATE, Case, Given

PRECISIONS = {"highest": "highest", "high": "tensorfloat32", "medium": "BF16_BF16_F32"}
"""JAX's names for torch's matmul precisions. The default of JAX on an H200 is the second."""

Parts = tuple[Weights, Any, jax.Array]
"""The weights of the model, those of NVIL's baseline, and the offset that the baseline subtracts from the data."""


def contender(case: Case, given: Given) -> Contender:
    """Return the contender for a case."""
    step = partial(taken, loss=LOSSES[case.estimator], samples=case.samples)
    packed = jax.device_put(given.packed)

    @partial(jax.jit, donate_argnums=0)
    def stretch(state: State, offset: jax.Array, packed: jax.Array, seed: Any) -> tuple[State, jax.Array]:
        def one(state: State, key: jax.Array) -> tuple[State, jax.Array]:
            order, noise = jax.random.split(key)
            index = jax.random.randint(order, (case.members, case.batch), 0, len(packed))
            x = jnp.unpackbits(packed[index], axis=-1, count=given.width).astype(jnp.float32)
            return jax.vmap(step)(state, offset, jax.random.split(noise, case.members), x)

        state, losses = jax.lax.scan(one, state, jax.random.split(jax.random.key(seed), given.times))
        return state, losses.mean()

    state, offset = initial(given, case.members)
    first: list[float] = []

    def turn(seed: int) -> None:
        nonlocal state
        with jax.default_matmul_precision(PRECISIONS[given.precision]):
            state, loss = jax.block_until_ready(stretch(state, offset, packed, np.uint32(seed)))
        if not first:
            first.append(-float(loss))

    return Contender("jax by hand, vmap, scan", turn, times=given.times, bound=lambda: first[0])


def initial(given: Given, members: int) -> tuple[State, jax.Array]:
    """Return the weights, transposed, their moments, which are zero, and NVIL's offset."""
    start = given.start
    encoder, decoder, baseline = (
        [(jnp.array(matrix.swapaxes(-1, -2)), jnp.array(bias)) for matrix, bias in link]
        for link in (start.encoder, start.decoder, start.baseline)
    )
    weights = (Weights(jnp.array(start.top), [encoder], [decoder]), baseline)
    first, second = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
    running = jnp.tile(jnp.array([0.0, 1.0]), (members, 1))
    offset = jnp.array(start.offset) if start.baseline else jnp.zeros((members, 0))
    return State(weights, first, second, count=jnp.zeros(members), average=running), offset


def taken(
    state: State, offset: jax.Array, key: jax.Array, x: jax.Array, *, loss: Callable[..., Any], samples: int
) -> tuple[State, jax.Array]:
    """Take one step of one member; return the new state and the loss."""

    def parted(weights: Any) -> Any:
        return loss((*weights, offset), state.average, key, x, samples)

    (value, running), slope = jax.value_and_grad(parted, has_aux=True)(state.weights)
    return adam(state, slope)._replace(average=running), value


def relaxed(parts: Parts, running: jax.Array, key: jax.Array, x: jax.Array, samples: int) -> Any:
    """Return the loss of one relaxed layer."""
    return concrete(parts[0], running, key, x, samples)


def drawn(weights: Weights, key: jax.Array, x: jax.Array, samples: int) -> tuple[jax.Array, jax.Array]:
    """Return the log probabilities of data and bits under p, and of bits under q that draws them."""
    logits = apply(weights.encoder[0], 2 * x - 1)
    bit = jax.random.bernoulli(key, jax.nn.sigmoid(logits), (samples, *logits.shape)).astype(x.dtype)
    log_x = log_mass(apply(weights.decoder[0], 2 * bit - 1), x).sum(-1)
    return log_mass(weights.top, bit).sum(-1) + log_x, log_mass(logits, bit).sum(-1)


def vimco(parts: Parts, running: jax.Array, key: jax.Array, x: jax.Array, samples: int) -> Any:
    """Return the loss of one discrete layer, by VIMCO with the geometric mean."""
    log_p, log_q = drawn(parts[0], key, x, samples)
    log_w = log_p - log_q
    others = (log_w.sum(0) - log_w) / (samples - 1)
    alone = jnp.eye(samples, dtype=bool)[..., None]
    signal = jax.lax.stop_gradient(bound(log_w) - bound(jnp.where(alone, others, log_w[:, None])))
    return -(bound(log_w) + _silent((signal * log_q).sum(0))).mean(), running


def nvil(parts: Parts, running: jax.Array, key: jax.Array, x: jax.Array, samples: int) -> Any:
    """Return the loss of one discrete layer, by NVIL with a baseline, a running mean and a running deviation."""
    weights, baseline, offset = parts
    log_p, log_q = drawn(weights, key, x, samples)
    log_w = log_p - jax.lax.stop_gradient(log_q)
    foreseen = apply(baseline, x - offset)[..., 0]
    surprise = jax.lax.stop_gradient(log_w - foreseen)
    running = RATE * running + (1 - RATE) * jnp.stack([surprise.mean(), surprise.var()])
    signal = (surprise - running[0]) / jnp.maximum(1, jnp.sqrt(running[1])) / samples
    score = (signal * (log_q + foreseen)).sum(0)
    return -(log_w.mean(0) + _silent(score)).mean(), running


LOSSES: dict[str, Callable[..., Any]] = {"concrete": relaxed, "vimco": vimco, "nvil": nvil}


def _silent(score: jax.Array) -> jax.Array:
    """Return zero with the gradient of a number."""
    return score - jax.lax.stop_gradient(score)
