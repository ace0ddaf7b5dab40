"""What pyro adds to torch.distributions: a logistic variable, and relaxations rounded in the forward pass."""

import torch
from pyro.distributions import Logistic, RelaxedBernoulliStraightThrough, RelaxedOneHotCategoricalStraightThrough

from ..task import Task
from . import autograd
from .base import Contender, Family

FAMILIES = (
    Family("Logistic", "binary", "node", lambda logits, t: Logistic(logits / t, 1 / t)),
    Family(
        "RelaxedBernoulliStraightThrough",
        "binary",
        "unit",
        lambda logits, t: RelaxedBernoulliStraightThrough(t, logits=logits),
    ),
    Family(
        "RelaxedOneHotCategoricalStraightThrough",
        "n-ary",
        "unit",
        lambda logits, t: RelaxedOneHotCategoricalStraightThrough(t, logits=logits),
    ),
)


def contenders(task: Task) -> list[Contender]:
    """Return the node, if pyro has it, and the straight-through class."""
    temperatures = [torch.tensor(temperature) for temperature in task.temperatures]
    return [
        Contender(
            f"pyro {family.name}",
            space=family.space,
            step=autograd.step(family.build, autograd.draw_then_score, task=task, temperatures=temperatures),
        )
        for family in FAMILIES
        if family.kind == task.kind
    ]
