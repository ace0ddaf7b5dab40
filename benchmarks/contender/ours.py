"""This library, eager and compiled."""

from collections.abc import Callable
from typing import Any

import concretely as c

from ..task import Task
from . import autograd
from .base import Contender, Family


def _built(cls: Any) -> Callable[..., Any]:
    """Return a function that builds a class from logits and a temperature, which it takes by name."""
    return lambda logits, temperature, **more: cls(logits=logits, temperature=temperature, **more)


FAMILIES = (
    Family("Logistic", "binary", "node", _built(c.Logistic)),
    Family("BinaryConcrete", "binary", "unit", _built(c.BinaryConcrete)),
    Family("ExpConcrete", "n-ary", "node", _built(c.ExpConcrete)),
    Family("Concrete", "n-ary", "unit", _built(c.Concrete)),
)


def contenders(task: Task) -> list[Contender]:
    """Return the contenders of both spaces, eager and compiled."""
    return [
        Contender(
            f"concretely {family.name}" + ", compiled" * compiled,
            space=family.space,
            step=autograd.step(
                family.build,
                lambda variable: variable.rsample_and_log_prob(),
                task=task,
                temperatures=task.temperatures,
                compiled=compiled,
            ),
            ours=True,
        )
        for family in FAMILIES
        if family.kind == task.kind
        for compiled in (False, True)
    ]
