"""The classes of torch.distributions."""

import torch
from torch.distributions import RelaxedBernoulli, RelaxedOneHotCategorical
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.distributions.relaxed_categorical import ExpRelaxedCategorical

from ..task import Task
from . import autograd
from .base import Contender, Family

FAMILIES = (
    Family("LogitRelaxedBernoulli", "binary", "node", lambda logits, t: LogitRelaxedBernoulli(t, logits=logits)),
    Family("RelaxedBernoulli", "binary", "unit", lambda logits, t: RelaxedBernoulli(t, logits=logits)),
    Family("ExpRelaxedCategorical", "n-ary", "node", lambda logits, t: ExpRelaxedCategorical(t, logits=logits)),
    Family("RelaxedOneHotCategorical", "n-ary", "unit", lambda logits, t: RelaxedOneHotCategorical(t, logits=logits)),
)


def contenders(task: Task) -> list[Contender]:
    """Return the contenders of both spaces."""
    # a number would be refused by log_prob
    temperatures = [torch.tensor(temperature) for temperature in task.temperatures]
    return [
        Contender(
            f"torch {family.name}",
            space=family.space,
            step=autograd.step(family.build, autograd.draw_then_score, task=task, temperatures=temperatures),
        )
        for family in FAMILIES
        if family.kind == task.kind
    ]
