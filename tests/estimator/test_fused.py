"""Losses from one kernel are those of the definitions, with the same gradients, for every estimator that has them."""

from copy import deepcopy
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import concretely as c
from tests.kernel import fast, kernel, on

ESTIMATORS: dict[str, Any] = {
    "pathwise": lambda model, x: c.Pathwise(2 / 3, prior_temperature=1 / 2),
    "straight-through": lambda model, x: c.StraightThrough(),
    "reinforce": lambda model, x: c.Reinforce(),
    "rloo": lambda model, x: c.RLOO(),
    "vimco": lambda model, x: c.VIMCO(),
    "nvil": lambda model, x: c.NVIL(model, x),
    "nvil without baselines": lambda model, x: c.NVIL(model, x, baseline=False),
}


@kernel
@pytest.mark.parametrize("notation", ["3H-6V", "3H~2H:4-6V"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_losses_are_those_of_the_definition(name: str, notation: str) -> None:
    x = torch.randint(2, (7, 6)).float()
    model = c.density(notation)
    estimator = ESTIMATORS[name](model, x)
    own = [*estimator.parameters()] if isinstance(estimator, nn.Module) else []
    leaves = [*model.parameters(), *own]

    def run() -> tuple[torch.Tensor, ...]:
        found = c.estimate(model.eval(), x, estimator=estimator, samples=3, generator=torch.Generator().manual_seed(0))
        slopes = torch.autograd.grad(found.loss, leaves, materialize_grads=True)
        return found.loss.detach(), found.bound, found.log_w, *found.signal.values(), *slopes

    before = deepcopy(estimator.state_dict()) if isinstance(estimator, nn.Module) else {}
    defined = run()
    if isinstance(estimator, nn.Module):
        estimator.load_state_dict(before)
    module = fast("bound")
    with on("fast", "bound", "nvil", "vimco"), mock.patch.object(module, "_losses", wraps=module._losses) as taken:
        found = run()
    assert taken.called
    torch.testing.assert_close(found, defined, rtol=1e-4, atol=1e-5)
