"""This library, as it comes and compiled."""

import concretely as c

from ..task import Task
from . import autograd
from .base import Contender, Family

FAMILIES = (
    Family("Logistic", "binary", "node", lambda logits, t: c.Logistic(logits=logits, temperature=t)),
    Family("BinaryConcrete", "binary", "unit", lambda logits, t: c.BinaryConcrete(logits=logits, temperature=t)),
    Family("ExpConcrete", "n-ary", "node", lambda logits, t: c.ExpConcrete(logits=logits, temperature=t)),
    Family("Concrete", "n-ary", "unit", lambda logits, t: c.Concrete(logits=logits, temperature=t)),
)


def contenders(task: Task) -> list[Contender]:
    """Both spaces, eager and compiled."""
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
