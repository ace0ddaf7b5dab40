"""Plain JAX: the whole step is one jitted program that updates its state in place."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import sigmoid, softplus

from ..agreement import Probe
from ..contender.jax_by_hand import Logistic
from ..training import (
    BETAS,
    EPSILON,
    LEARNING_RATE,
    PRIOR_TEMPERATURE,
    RATE,
    TEMPERATURE,
    WIDTH,
    Training,
    Weights,
)
from .base import Contender

Loss = tuple[jax.Array, jax.Array]
"""The loss, and the running average after it."""


class State(NamedTuple):
    """Everything that a step changes: weights, moments of the gradients, the running average of the lower layer."""

    weights: Weights
    first: Weights
    second: Weights
    count: jax.Array
    average: jax.Array


def apply(link: Any, h: jax.Array) -> jax.Array:
    """Apply affine maps with tanh between them."""
    *inner, (matrix, bias) = link
    for inner_matrix, inner_bias in inner:
        h = jnp.tanh(h @ inner_matrix + inner_bias)
    return h @ matrix + bias


def log_mass(logits: jax.Array, bit: jax.Array) -> jax.Array:
    """Return the log mass of a bit."""
    return bit * logits - softplus(logits)


def bound(log_w: jax.Array) -> jax.Array:
    """Return the bound of many samples, for every data point."""
    return jax.nn.logsumexp(log_w, axis=0) - math.log(len(log_w))


def concrete(weights: Weights, average: jax.Array, key: jax.Array, x: jax.Array, samples: int) -> Loss:
    """Return the loss of one relaxed layer, scored before the sigmoid."""
    logits = apply(weights.encoder[0], 2 * x - 1)
    q = Logistic(jnp.broadcast_to(logits, (samples, *logits.shape)), TEMPERATURE)
    y, log_q = q.sample_and_log_prob(key)
    log_p = Logistic(weights.top, PRIOR_TEMPERATURE).log_prob(y)
    log_x = log_mass(apply(weights.decoder[0], 2 * sigmoid(y) - 1), x)
    return -bound((log_p - log_q).sum(-1) + log_x.sum(-1)).mean(), average


def discrete(weights: Weights, average: jax.Array, key: jax.Array, x: jax.Array, samples: int) -> Loss:
    """Return the loss of two discrete layers, by VIMCO with the geometric mean."""
    lower, upper = jax.random.split(key)
    logits1 = apply(weights.encoder[0], 2 * x - 1)
    b1 = jax.random.bernoulli(lower, sigmoid(logits1), (samples, *logits1.shape)).astype(x.dtype)
    h1 = 2 * b1 - 1
    logits2 = apply(weights.encoder[1], h1 - average)
    b2 = jax.random.bernoulli(upper, sigmoid(logits2)).astype(x.dtype)
    log_q = (log_mass(logits1, b1) + log_mass(logits2, b2)).sum(-1)
    log_p = (log_mass(apply(weights.decoder[0], 2 * b2 - 1), b1) + log_mass(weights.top, b2)).sum(-1)
    log_w = log_p + log_mass(apply(weights.decoder[1], h1), x).sum(-1) - log_q
    others = (log_w.sum(0) - log_w) / (samples - 1)
    alone = jnp.eye(samples, dtype=bool)[..., None]
    signal = jax.lax.stop_gradient(bound(log_w) - bound(jnp.where(alone, others, log_w[:, None])))
    score = (signal * log_q).sum(0)
    return -(bound(log_w) + score - jax.lax.stop_gradient(score)).mean(), RATE * average + (1 - RATE) * h1.mean((0, 1))


def contenders(task: Training) -> list[Contender]:
    """Return the contender for the method of the task."""
    loss = partial(concrete if task.method == "concrete" else discrete, samples=task.samples)
    gradient = jax.value_and_grad(loss, has_aux=True)

    @partial(jax.jit, donate_argnums=0)
    def step(state: State, seed: Any, x: jax.Array) -> tuple[State, jax.Array]:
        (value, average), slope = gradient(state.weights, state.average, jax.random.key(seed), x)
        return adam(state, slope)._replace(average=average), value

    @jax.jit
    def probe(state: State, seed: Any, x: jax.Array) -> tuple[jax.Array, Probe]:
        (value, average), slope = gradient(state.weights, state.average, jax.random.key(seed), x)
        growth = jax.tree.map(lambda w, g: (w * g).sum(), state.weights, slope)
        shift = jax.tree.map(lambda w, g: jnp.where(w == 0, g, 0).sum(), state.weights, slope)
        return average, Probe(value, sum(jax.tree.leaves(growth)), sum(jax.tree.leaves(shift)))

    x = jax.device_put(task.batch)
    state = initial(task)

    def take(seed: int) -> jax.Array:
        nonlocal state
        # the key is made inside, from a number that changes
        state, value = jax.block_until_ready(step(state, np.uint32(seed), x))
        return value

    def look(seed: int) -> Probe:
        nonlocal state
        average, numbers = probe(state, np.uint32(seed), x)
        state = state._replace(average=average)
        return Probe(*map(float, numbers))

    return [Contender("jax by hand, jit", step=take, probe=look)]


def initial(task: Training) -> State:
    """Return the weights of the task, transposed, and moments of zero."""
    weights = jax.tree.map(lambda array: jnp.array(array.T), task.weights)
    first, second = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
    return State(weights, first, second, count=jnp.zeros(()), average=jnp.zeros(WIDTH))


def adam(state: State, slope: Weights) -> State:
    """Return the state after an update of its weights."""
    count = state.count + 1
    first = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, state.first, slope)
    second = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g**2, state.second, slope)
    mean, scale = 1 - BETAS[0] ** count, 1 - BETAS[1] ** count

    def updated(w: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return w - LEARNING_RATE * (m / mean) / (jnp.sqrt(v / scale) + EPSILON)

    return state._replace(
        weights=jax.tree.map(updated, state.weights, first, second), first=first, second=second, count=count
    )
