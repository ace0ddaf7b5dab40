"""The equations of the paper in float64, and the error of a result."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from .contender.base import Result, Space
from .task import Kind, Task

TOLERANCE = 1e-5
"""A few times the rounding error of float32 over a million entries."""

INSIDE = 1e-2
"""The distance from the edge above which float32 values on the unit interval determine their log-odds."""


def push(logits: Tensor, noise: Tensor, *, kind: Kind, temperature: float) -> Tensor:
    """Return the node made from noise."""
    node = (logits + noise) / temperature
    return node if kind == "binary" else node.log_softmax(-1)


def log_density(logits: Tensor, node: Tensor, *, kind: Kind, temperature: float) -> Tensor:
    """Return the log density of a node [maddison2017concrete, cheat sheet]."""
    a = logits - temperature * node
    if kind == "binary":
        return math.log(temperature) + a - 2 * softplus(a, threshold=math.inf)
    n = logits.shape[-1]
    return math.lgamma(n) + (n - 1) * math.log(temperature) + a.sum(-1) - n * a.logsumexp(-1)


def log_slope(node: Tensor, *, kind: Kind) -> Tensor:
    """Return the log absolute determinant of the Jacobian of the squashing at a node."""
    if kind == "binary":
        return -softplus(node, threshold=math.inf) - softplus(-node, threshold=math.inf)
    return node.sum(-1)


def error(result: Result, *, task: Task, space: Space) -> float:
    """Return the largest error of a value's log densities and of the gradients, relative where they exceed one.

    The noise is recovered from the value, so that nothing but the result is needed.
    """
    (value, *densities), gradients = (tuple(map(_wide, part)) for part in result)
    logits = [_wide(array).requires_grad_() for array in task.logits]
    node = value if space == "node" else value.log() if task.kind == "n-ary" else value.logit()
    noise = task.temperatures[0] * node - logits[0].detach()

    node = push(logits[0], noise, kind=task.kind, temperature=task.temperatures[0])
    squashed = node if space == "node" else node.exp() if task.kind == "n-ary" else node.sigmoid()
    slope = 0 if space == "node" else log_slope(node, kind=task.kind)
    expected_densities = [
        log_density(own, node, kind=task.kind, temperature=temperature) - slope
        for own, temperature in zip(logits, task.temperatures, strict=True)
    ]
    cotangents = [_wide(array) for array in task.cotangents]
    expected_gradients = torch.autograd.grad([squashed, *expected_densities], logits, cotangents)

    judged = (value > INSIDE) & (value < 1 - INSIDE) if (task.kind, space) == ("binary", "unit") else slice(None)
    results = [value, *densities, *gradients]
    expected = [squashed, *expected_densities, *expected_gradients]
    return max(_largest(a[judged], b[judged].detach()) for a, b in zip(results, expected, strict=True))


def _largest(computed: Tensor, expected: Tensor) -> float:
    return float(((computed - expected).abs() / expected.abs().clamp(min=1)).nan_to_num(nan=math.inf).max())


def _wide(array: Any) -> Tensor:
    return torch.tensor(np.asarray(array.detach() if isinstance(array, Tensor) else array), dtype=torch.float64)
