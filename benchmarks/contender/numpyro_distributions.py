"""The classes of numpyro, under jax.jit."""

from typing import Any

import jax
from numpyro.distributions import Logistic, RelaxedBernoulli

from ..task import Task
from . import xla
from .base import Contender, Family

FAMILIES = (
    Family("Logistic", "binary", "node", lambda logits, t: Logistic(logits / t, 1 / t)),
    Family("RelaxedBernoulli", "binary", "unit", lambda logits, t: RelaxedBernoulli(t, logits=logits)),
)


def draw(variable: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return a draw and its log density."""
    value = variable.sample(key)
    return value, variable.log_prob(value)


def contenders(task: Task) -> list[Contender]:
    """Return the contenders of both spaces. There is no n-ary class."""
    return [
        Contender(f"numpyro {family.name}, jit", space=family.space, step=xla.step(family.build, draw, task=task))
        for family in FAMILIES
        if family.kind == task.kind
    ]
