"""Without arguments, a relaxed estimator gives every node the temperature of its number of states."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, StudentT

import concretely as c
from concretely.temperature import ANALYTIC, MEASURED, PAPER, PAPER_PRIOR, TEMPERATURES, ByStates
from concretely.training.own_method import estimator_from_text
from concretely.training.recipe import resolve
from tests.cases import MASSES, Case

X = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
STATES = {"bit": 2, "four": 4, "cube": 8, "some": 5}
"""The nodes of `Mixed`, and how many states each has."""


class Mixed(nn.Module):
    """A program for p or q, with nodes of several numbers of states."""

    def __init__(self, *, observes: bool) -> None:
        super().__init__()
        self.observes = observes
        self.maps = nn.ModuleDict({name: nn.Linear(3, max(1, states)) for name, states in STATES.items()})
        self.last = nn.Linear(1 + 4 + 3 + 5, 3)

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        """Draw every node from the data; return a cost."""
        logits = {name: each(x) for name, each in self.maps.items()}
        values = [
            draw("bit", c.Bernoulli(logits=logits["bit"][:, :1])),
            draw("four", c.OneHotCategorical(logits=logits["four"])),
            draw("cube", c.Hypercube(logits=logits["cube"])),
            draw("some", c.OneHotCategorical(logits=logits["some"])),
        ]
        mean = self.last(torch.cat(values, -1))
        if self.observes:
            draw("x", c.Bernoulli(logits=mean), observed=x)
        return (mean - c.tile(x, mean)).square().sum(-1)


def gradient(target: nn.Module, estimator: c.Estimator, samples: int = 1) -> tuple[Tensor, ...]:
    """The loss of an estimator and its gradient, from the same noise at every call."""
    generator = torch.Generator().manual_seed(0)
    loss = c.estimate(target, X, estimator=estimator, samples=samples, generator=generator).loss
    slopes = torch.autograd.grad(loss, list(target.parameters()), allow_unused=True)
    return loss, *(slope for slope in slopes if slope is not None)


def by_name(temperature: ByStates) -> dict[str, float]:
    return {name: temperature(states) for name, states in STATES.items()}


EXPLICIT: dict[str, tuple[c.Estimator, c.Estimator]] = {
    "pathwise": (c.Pathwise(), c.Pathwise(by_name(MEASURED), kl="analytic")),
    "pathwise of densities": (c.Pathwise(kl="density"), c.Pathwise(by_name(PAPER), by_name(PAPER_PRIOR))),
    "pathwise of masses": (c.Pathwise(kl="mass"), c.Pathwise(by_name(PAPER), kl="mass")),
    "pathwise with a prior": (c.Pathwise(prior_temperature=0.3), c.Pathwise(by_name(PAPER), 0.3, kl="density")),
    "gumbel-softmax": (c.GumbelSoftmax(), c.GumbelSoftmax(by_name(PAPER))),
    "straight-through": (c.StraightThroughGumbelSoftmax(), c.StraightThroughGumbelSoftmax(by_name(PAPER))),
    "straight-through, analytic": (
        c.StraightThroughGumbelSoftmax(kl="analytic"),
        c.StraightThroughGumbelSoftmax(by_name(MEASURED), kl="analytic"),
    ),
}


@pytest.mark.parametrize(("default", "explicit"), list(EXPLICIT.values()), ids=list(EXPLICIT))
def test_a_default_is_the_temperature_of_every_node_by_its_states(default: c.Estimator, explicit: c.Estimator) -> None:
    torch.manual_seed(0)
    for target in (c.Model(Mixed(observes=True), Mixed(observes=False)), Mixed(observes=False)):
        found, expected = gradient(target, default), gradient(target, explicit)
        assert len(found) > 10
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def test_a_temperature_keeps_the_kl_between_densities() -> None:
    assert c.Pathwise() == c.Pathwise(kl="analytic")
    assert c.Pathwise(0.5) == c.Pathwise(0.5, kl="density") != c.Pathwise(0.5, kl="analytic")
    assert c.Pathwise(prior_temperature=0.5).kl == "density"


@pytest.mark.parametrize("states", TEMPERATURES)
def test_a_recipe_has_the_temperatures_of_the_estimator(states: int) -> None:
    recipe = resolve(notation=f"12H:{states}~6V" if states > 2 else "12H~6V")
    assert recipe.temperature == PAPER(states)
    assert recipe.prior_temperature == PAPER_PRIOR(states)


def test_a_model_of_ones_own_is_trained_by_the_default() -> None:
    run = c.fit(c.density("2H-3V"), X, steps=1, batch=2)
    assert estimator_from_text(run.recipe.estimator) == c.Pathwise() == estimator_from_text("concrete")
    assert estimator_from_text("concrete", "1/2") == c.Pathwise(0.5, kl="analytic")  # as fit(temperature=0.5) trains
    assert estimator_from_text("concrete", "1/2", "1/3") == c.Pathwise(0.5, 1 / 3)


@pytest.mark.parametrize("table", [PAPER, PAPER_PRIOR, MEASURED])
def test_every_number_of_states_has_the_temperature_of_the_nearest_one_that_is_known(table: ByStates) -> None:
    known = sorted(table.table)
    for states in range(2, 300):
        nearest = min(known, key=lambda each: abs(math.log(each / states)))
        assert table(states) == table.table[nearest]
    assert all(0 < temperature <= 1 for temperature in table.table.values())


@pytest.mark.parametrize("case", MASSES, ids=lambda case: case.name)
def test_a_variable_has_as_many_states_as_can_be_enumerated(case: Case) -> None:
    for n in case.sizes():
        variable = case.build(case.logits(n, batch=(3,)))
        assert variable.states == len(variable.enumerate_support(expand=False))


@pytest.mark.parametrize("states", sorted(ANALYTIC))
def test_a_unit_is_charged_at_most_its_information(states: int) -> None:
    """A code that tells a data point exactly costs log n; between densities it costs more, and is then not used."""
    logits = 12 * torch.eye(states)

    def p(draw: c.Draw, x: Tensor) -> None:
        draw("z", c.OneHotCategorical(logits=torch.zeros(len(x), states)))
        draw("x", c.Bernoulli(logits=torch.zeros(len(x), 1)), observed=x)

    def q(draw: c.Draw, x: Tensor) -> None:
        draw("z", c.OneHotCategorical(logits=logits))

    def charge(estimator: c.Estimator) -> Tensor:
        log_w = c.estimate(c.Model(p, q), torch.ones(states, 1), estimator=estimator, samples=1).log_w
        return -log_w - math.log(2)

    assert charge(c.Pathwise()).max() <= math.log(states)
    assert charge(c.Pathwise(kl="density")).mean() > 2 * math.log(states)


HEAVY: dict[str, Callable[[Tensor], torch.distributions.Distribution]] = {
    "formula": lambda x: Normal(x, 2.0),
    "no formula": lambda x: StudentT(5.0, x, 2.0),
}


@pytest.mark.parametrize("family", HEAVY)
def test_a_continuous_node_without_a_formula_is_estimated_at_the_drawn_value(family: str) -> None:
    def p(draw: c.Draw, x: Tensor) -> None:
        t = draw("t", Normal(torch.zeros_like(x), 1.0))
        bit = draw("bit", c.Bernoulli(logits=torch.zeros_like(x)))
        draw("x", c.Bernoulli(logits=t + bit), observed=x)

    def q(draw: c.Draw, x: Tensor) -> None:
        draw("t", HEAVY[family](x))
        draw("bit", c.Bernoulli(logits=x))

    estimate = c.estimate(c.Model(p, q), X, estimator=c.Pathwise(), samples=4)
    trace, posterior = estimate.trace, estimate.posterior
    ratio = posterior["t"].log_prob - trace["t"].log_prob
    exact = torch.distributions.kl_divergence(Normal(X, 2.0), Normal(torch.zeros_like(X), 1.0)).sum(-1).expand(4, -1)
    bits = torch.distributions.kl_divergence(c.Bernoulli(logits=X), c.Bernoulli(logits=0 * X)).sum(-1)
    charged = trace["x"].log_prob - estimate.log_w - bits
    torch.testing.assert_close(charged, exact if family == "formula" else ratio)
    torch.testing.assert_close(estimate.kl["t"], charged.mean(0))
