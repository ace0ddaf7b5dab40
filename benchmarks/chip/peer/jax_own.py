"""The training step of a user's own model by hand in JAX: a scan over steps, all of it one jitted program."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ...training import BETAS, EPSILON, LEARNING_RATE, PRIOR_TEMPERATURE, TEMPERATURE
from ..turn import Contender
from .jax_step import PRECISIONS
from .own_model import CATEGORIES, Network, OwnCase

Weights = dict[str, jax.Array]


def contender(case: OwnCase, network: Network, data: NDArray[np.float32], *, precision: str, times: int) -> Contender:
    """The step of a case, from the weights of a network."""
    weights = {name: jnp.array(parameter.detach().cpu().numpy()) for name, parameter in network.named_parameters()}
    first, second = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
    points, seen = jax.device_put(data), list[float]()

    @partial(jax.jit, donate_argnums=0)
    def stretch(state: Any, points: jax.Array, seed: Any) -> Any:
        def one(state: Any, key: jax.Array) -> Any:
            order, noise = jax.random.split(key)
            x = points[jax.random.randint(order, (case.batch,), 0, len(points))]
            value, slope = jax.value_and_grad(_loss)(state[0], noise, x, case)
            return _adam(state, slope), value

        state, losses = jax.lax.scan(one, state, jax.random.split(jax.random.key(seed), times))
        return state, losses.mean()

    state = (weights, first, second, jnp.zeros(()))

    def turn(seed: int) -> None:
        nonlocal state
        with jax.default_matmul_precision(PRECISIONS[precision]):
            state, loss = jax.block_until_ready(stretch(state, points, np.uint32(seed)))
        if not seen:
            seen.append(-float(loss))

    return Contender("jax by hand, jit, scan", turn, times=times, bound=lambda: seen[0])


def _adam(state: Any, slope: Weights) -> Any:
    weights, first, second, count = state
    count = count + 1
    first = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, first, slope)
    second = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, second, slope)
    mean, scale = 1 - BETAS[0] ** count, 1 - BETAS[1] ** count
    move = jax.tree.map(lambda m, v: LEARNING_RATE * (m / mean) / (jnp.sqrt(v / scale) + EPSILON), first, second)
    return jax.tree.map(jnp.subtract, weights, move), first, second, count


def _loss(weights: Weights, key: jax.Array, x: jax.Array, case: OwnCase) -> jax.Array:
    """Minus the multi-sample bound of the relaxed graph, in log space."""
    logits = _encode(weights, 2 * x - 1, case)
    shape = (case.samples, *logits.shape)
    prior = weights["logits"]
    if case.kind == "mlp":
        noise = jax.random.logistic(key, shape)
        y = (logits + noise) / TEMPERATURE
        log_q = _logistic(noise) + math.log(TEMPERATURE)
        log_p = _logistic(PRIOR_TEMPERATURE * y - prior) + math.log(PRIOR_TEMPERATURE)
        log_w, z = (log_p - log_q).sum(-1), jax.nn.sigmoid(y)
    else:
        y = jax.nn.log_softmax((logits + jax.random.gumbel(key, shape)) / TEMPERATURE, -1)
        scored = _concrete(y, prior, PRIOR_TEMPERATURE) - _concrete(y, logits, TEMPERATURE)
        log_w, z = scored.sum(-1), jnp.exp(y)
    made = _decode(weights, z.reshape(-1, *z.shape[2:]), case).reshape(case.samples, *x.shape)
    log_x = (x * jax.nn.log_sigmoid(made) + (1 - x) * jax.nn.log_sigmoid(-made)).reshape(*shape[:2], -1).sum(-1)
    return -(jax.nn.logsumexp(log_w + log_x, 0) - math.log(case.samples)).mean()


def _logistic(noise: jax.Array) -> jax.Array:
    return -jnp.abs(noise) - 2 * jax.nn.softplus(-jnp.abs(noise))


def _concrete(y: jax.Array, logits: jax.Array, temperature: float) -> jax.Array:
    scale = math.lgamma(CATEGORIES) + (CATEGORIES - 1) * math.log(temperature)
    score = logits - temperature * y
    return scale + score.sum(-1) - CATEGORIES * jax.nn.logsumexp(score, -1)


def _linear(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


AXES = ("NCHW", "OIHW", "NCHW")


def _down(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """A convolution with stride 2."""
    image = jax.lax.conv_general_dilated(x, weights[f"{name}.weight"], (2, 2), [(1, 1), (1, 1)], dimension_numbers=AXES)
    return image + weights[f"{name}.bias"][:, None, None]


def _up(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """A transposed convolution with stride 2, as torch has it."""
    kernel = jnp.flip(weights[f"{name}.weight"], (2, 3)).swapaxes(0, 1)
    image = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), [(2, 2), (2, 2)], lhs_dilation=(2, 2), dimension_numbers=AXES
    )
    return image + weights[f"{name}.bias"][:, None, None]


def _encode(weights: Weights, x: jax.Array, case: OwnCase) -> jax.Array:
    if case.kind == "mlp":
        return _linear(weights, "encoder", x)
    h = jax.nn.relu(_down(weights, "encoder.0", x))
    h = jax.nn.relu(_down(weights, "encoder.2", h))
    return _linear(weights, "encoder.5", h.reshape(len(h), -1)).reshape(-1, case.units, CATEGORIES)


def _decode(weights: Weights, z: jax.Array, case: OwnCase) -> jax.Array:
    if case.kind == "mlp":
        return _linear(weights, "decoder", z)
    quarter = case.side // 4
    h = jax.nn.relu(_linear(weights, "decoder.1", z.reshape(len(z), -1)))
    h = jax.nn.relu(_up(weights, "decoder.4", h.reshape(-1, 2 * case.channels, quarter, quarter)))
    return _up(weights, "decoder.6", h)
