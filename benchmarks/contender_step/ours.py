"""This library: a model from the paper's notation, and an estimator."""

from itertools import chain

import torch
from torch import Tensor, nn

import concretely as c

from ..training import PRIOR_TEMPERATURE, TEMPERATURE, Training
from . import eager
from .base import Contender
from .network import fill


def contenders(task: Training) -> list[Contender]:
    """Return the contender for the method of the task."""
    model = c.density(task.architecture)
    for program, links in ((model.q, task.weights.encoder), (model.p, task.weights.decoder)):
        fill([layer for layer in program.modules() if isinstance(layer, nn.Linear)], chain.from_iterable(links))
    estimator = (
        c.Pathwise(temperature=TEMPERATURE, prior_temperature=PRIOR_TEMPERATURE)
        if task.method == "concrete"
        else c.VIMCO()
    )

    def loss(x: Tensor) -> Tensor:
        return c.estimate(model, x, estimator=estimator, samples=task.samples).loss

    return [
        eager.contender("concretely", model, loss, task=task, ours=True),
        eager.contender("concretely, compiled", model, torch.compile(loss, fullgraph=True), task=task, ours=True),
    ]
