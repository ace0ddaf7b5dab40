"""The node written by hand in JAX in its stable form, with the density computed from the noise."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..task import Task
from . import xla
from .base import Contender, Family


def log_logistic(noise: jax.Array) -> jax.Array:
    """Return the log density of standard logistic noise."""
    size = -jnp.abs(noise)
    return size - 2 * jnp.log1p(jnp.exp(size))


class Logistic(NamedTuple):
    """The binary node."""

    logits: jax.Array
    temperature: float

    def sample_and_log_prob(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return a draw and its log density."""
        noise = jax.random.logistic(key, self.logits.shape)
        return (self.logits + noise) / self.temperature, log_logistic(noise) + math.log(self.temperature)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log density of a value."""
        return log_logistic(self.temperature * value - self.logits) + math.log(self.temperature)


class ExpConcrete(NamedTuple):
    """The n-ary node."""

    logits: jax.Array
    temperature: float

    def sample_and_log_prob(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return a draw and its log density."""
        noise = jax.random.gumbel(key, self.logits.shape)
        value = jax.nn.log_softmax((self.logits + noise) / self.temperature)
        return value, self._log_density_of_noise(noise)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log density of a value."""
        return self._log_density_of_noise(self.temperature * value - self.logits)

    def _log_density_of_noise(self, noise: jax.Array) -> jax.Array:
        n = noise.shape[-1]
        constant = math.lgamma(n) + (n - 1) * math.log(self.temperature)
        return constant - noise.sum(-1) - n * jax.nn.logsumexp(-noise, axis=-1)


FAMILIES = (Family("Logistic", "binary", "node", Logistic), Family("ExpConcrete", "n-ary", "node", ExpConcrete))


def contenders(task: Task) -> list[Contender]:
    """Return the node."""
    return [
        Contender(
            f"jax {family.name} by hand, jit",
            space=family.space,
            step=xla.step(family.build, lambda variable, key: variable.sample_and_log_prob(key), task=task),
        )
        for family in FAMILIES
        if family.kind == task.kind
    ]
