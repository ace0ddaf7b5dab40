"""Every estimator takes subsets: straight-through is SIMPLE, a relaxation trains, and a study compares them all."""

import itertools

import torch
from torch import Tensor

import concretely as c
from tests.estimator.target import BITS, SUBSETS

LOGITS = torch.tensor([[0.5, -1.0, 0.3, 1.0], [1.0, 0.0, 0.0, -2.0]], dtype=torch.float64)


def test_straight_through_has_the_gradient_of_the_exact_marginals() -> None:
    logits, slope = LOGITS.clone().requires_grad_(), torch.tensor([1.0, 2.0, -1.0, 0.5], dtype=torch.float64)

    def program(draw: c.Draw, logits: Tensor) -> Tensor:
        return draw("chosen", c.Subset(logits=logits, k=2)) @ slope

    estimate = c.estimate(program, logits, estimator=c.StraightThrough())
    value = estimate.trace["chosen"].value
    assert (value.sum(-1) == 2).all()
    (gradient,) = torch.autograd.grad(estimate.loss, logits)
    states = torch.tensor([[float(i in pair) for i in range(4)] for pair in itertools.combinations(range(4), 2)])
    probs = (LOGITS @ states.double().T).softmax(-1)
    mean = probs @ states.double()
    covariance = (
        torch.einsum("bs,si,sj->bij", probs, states.double(), states.double()) - mean[:, :, None] * mean[:, None]
    )
    # the gradient of a linear cost is exact: the mean over the batch of covariance times slope
    torch.testing.assert_close(gradient, covariance @ slope / 2)


def test_relaxed_gradient_points_along_the_exact_one() -> None:
    module = SUBSETS.made()
    exact = torch.cat([g.flatten() for g in gradient_of(module, c.Exact(), samples=1)])
    for estimator in (c.Pathwise(), c.Pathwise(temperature=0.2)):
        torch.manual_seed(0)
        found = torch.cat([g.flatten() for g in gradient_of(module, estimator, samples=20_000)])
        assert torch.cosine_similarity(found, exact, dim=0) > 0.88, estimator  # 0.90 and 0.89 for many samples


def gradient_of(module: torch.nn.Module, estimator: c.Estimator, samples: int) -> tuple[Tensor, ...]:
    loss = c.estimate(module, BITS, estimator=estimator, samples=samples).loss
    return torch.autograd.grad(loss, list(module.parameters()))


def test_a_study_compares_estimators_of_a_subset_and_finds_no_bias_in_the_unbiased_ones() -> None:
    module = SUBSETS.made()
    estimators = {"RLOO": c.RLOO(), "Pathwise": c.Pathwise(), "StraightThrough": c.StraightThrough()}
    estimators["surrogate"] = c.StraightThroughGumbelSoftmax()
    study = c.gradient_study(module, BITS, estimators=estimators, samples=100, repeats=30)
    assert not study["RLOO"].is_biased
    assert study["StraightThrough"].is_biased
    assert all(study[name].variance.value > 0 for name in estimators)
