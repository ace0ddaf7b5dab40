"""Models of one's own: p and q as any functions."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

import concretely as c


def with_prior(prior: Any) -> c.Model:
    def p(draw: c.Draw, x: Tensor) -> None:
        draw("z", prior)
        draw("x", Normal(torch.zeros(1), 1.0), observed=x)

    return c.Model(p, lambda draw, x: draw("z", c.Bernoulli(logits=x)))


@pytest.mark.parametrize(
    ("prior", "found"),
    [
        (Normal(torch.zeros(1), 1.0), "Normal with event shape ()"),
        (
            torch.distributions.Bernoulli(logits=torch.zeros(1), validate_args=False),
            "Bernoulli of torch.distributions.bernoulli with event shape ()",
        ),
        (c.OneHotCategorical(logits=torch.zeros(1, 2)), "OneHotCategorical with event shape (2,)"),
    ],
)
@pytest.mark.parametrize("estimator", [c.Pathwise(0.5), c.Reinforce()])
def test_a_node_must_be_the_same_kind_of_mass_in_p_and_in_q(estimator: c.Estimator, prior: Any, found: str) -> None:
    with pytest.raises(ValueError, match=r"node 'z' is a Bernoulli.* in q and must be the same in p, got") as error:
        c.estimate(with_prior(prior), torch.zeros(4, 1), estimator=estimator)
    assert str(error.value).endswith(f"got {found}")


def test_nvil_credits_a_node_for_what_is_observed_through_a_distribution_made_of_another() -> None:
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(3, 2).double(), nn.Linear(2, 3).double()

    def p(draw: c.Draw, x: Tensor) -> None:
        z = draw("z", c.Bernoulli(logits=torch.zeros(2, dtype=torch.float64)))
        draw("x", Independent(Normal(decoder(z), 1.0), 1), observed=x)

    model = c.Model(p, lambda draw, x: draw("z", c.Bernoulli(logits=encoder(x))))
    x = torch.randn(1, 3, dtype=torch.float64)
    assert c.NVIL(model, x).terms == {"z": ["z", "x"]}


def test_nvil_takes_labels_that_are_integers() -> None:
    encoder, decoder = nn.Linear(3, 2), nn.Linear(2, 3)

    def p(draw: c.Draw, x: Tensor, y: Tensor) -> None:
        z = draw("z", c.Bernoulli(logits=torch.zeros(2)))
        draw("y", Categorical(logits=decoder(z)), observed=y)

    model = c.Model(p, lambda draw, x, y: draw("z", c.Bernoulli(logits=encoder(x))))
    x, y = torch.randn(5, 3), torch.randint(3, (5,))
    estimate = c.estimate(model, x, y, estimator=c.NVIL(model, x, y))
    assert estimate.signal["z"].shape == (1, 5)


def test_exact_gradient_is_finite_where_a_state_is_impossible() -> None:
    logits = nn.Parameter(torch.zeros(1, 2))

    def p(draw: c.Draw, x: Tensor) -> None:
        draw("z", c.OneHotCategorical(logits=torch.zeros(3)))
        draw("x", Normal(torch.zeros(3), 1.0), observed=x)

    def q(draw: c.Draw, x: Tensor) -> None:
        draw("z", c.OneHotCategorical(logits=torch.cat([logits, torch.full((1, 1), -math.inf)], -1)))

    for samples in (1, 2):
        loss = c.estimate(c.Model(p, q), torch.zeros(1, 3), estimator=c.Exact(), samples=samples).loss
        (gradient,) = torch.autograd.grad(loss, logits)
        assert gradient.isfinite().all()


def test_exact_estimates_do_not_move_the_centre() -> None:
    model = c.density("2H-2H-4V")
    model.q.centres[0].offset.fill_(0.5)
    c.estimate(model, torch.zeros(3, 4), estimator=c.Exact())
    assert torch.equal(model.q.centres[0].offset, torch.full((2,), 0.5))
    assert model.q.centres[0].training


CALLS = pytest.mark.parametrize("call", [c.estimate, c.Model.__call__], ids=["estimate", "forward"])


@CALLS
def test_estimators_that_average_refuse_another_objective(call: Any) -> None:
    model, x = c.density("2H-3V"), torch.zeros(2, 3)
    for estimator in (c.RLOO(), c.NVIL(model, x)):
        with pytest.raises(ValueError, match="objective must be `average` for"):
            call(model, x, estimator=estimator, samples=2, objective=c.bound)
        assert call(model, x, estimator=estimator, samples=2).bound.shape == (2,)


@CALLS
@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"estimator": c.RLOO}, "estimator must be an estimator, .* got the class RLOO: write RLOO"),
        ({"estimator": "rloo"}, "estimator must be an estimator, .* got str"),
        ({"objective": "bound"}, "objective must be a function, such as concretely.bound, got str"),
        ({"samples": None}, "samples must be a positive whole number, got None"),
        ({"samples": "2"}, "samples must be a positive whole number, got '2'"),
        ({"samples": 0}, "samples must be a positive whole number, got 0"),
        ({"generator": 0}, "generator must be a torch.Generator, .* got int"),
        ({"batch_dims": "1"}, "batch_dims must be a whole number of at least 0, got '1'"),
    ],
)
def test_the_forward_pass_refuses_what_estimate_refuses(call: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{sentence}"):
        call(c.density("2H-3V"), torch.zeros(2, 3), **{"estimator": c.Reinforce(), **options})


def test_nvil_of_another_target_is_refused() -> None:
    one, two = c.density("2H-3V"), c.density("2H-2H-3V")
    nvil = c.NVIL(one, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"the target of this NVIL must draw the nodes \['h1'\], got \['h1', 'h2'\]"):
        c.estimate(two, torch.zeros(2, 3), estimator=nvil)
