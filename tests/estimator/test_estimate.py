"""What an estimate holds: the terms of its bound by node, its traces and the output."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

import concretely as c

BATCH = 6
ENCODER, DECODER = nn.Linear(4, 2), nn.Linear(2, 4)


def generative(draw: c.Draw, x: Tensor | None = None) -> Tensor:
    """Two bits, then four."""
    z = draw("z", c.Bernoulli(logits=torch.tensor([0.3, -0.4])))
    return draw("x", c.Bernoulli(logits=DECODER(z)), observed=x)


def inference(draw: c.Draw, x: Tensor) -> None:
    """Two bits of four."""
    draw("z", c.Bernoulli(logits=ENCODER(x)))


def test_exact_logs_are_expectations() -> None:
    x = torch.tensor([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    estimate = c.estimate(c.Model(generative, inference), x, estimator=c.Exact(), objective=c.average)
    torch.testing.assert_close(estimate.bound, estimate.log_likelihood["x"] - estimate.kl["z"])


@pytest.mark.parametrize("node", [torch.distributions.Bernoulli, torch.distributions.OneHotCategorical])
def test_divergences_of_torch_distributions_are_logged(node: Any) -> None:
    prior = nn.Linear(2, 2)

    def p(draw: c.Draw, x: Tensor) -> None:
        z = draw("z", node(logits=torch.zeros(2)))
        draw("y", node(logits=prior(z)))
        draw("x", Normal(z.sum(-1), 1.0), observed=x[:, 0])

    def q(draw: c.Draw, x: Tensor) -> None:
        draw("z", node(logits=ENCODER(x)))
        draw("y", node(logits=ENCODER(x) / 2))

    estimate = c.estimate(c.Model(p, q), torch.randn(BATCH, 4), estimator=c.RLOO(), samples=3)
    assert {name: kl.shape for name, kl in estimate.kl.items()} == {"z": (BATCH,), "y": (BATCH,)}
    assert all((kl >= 0).all() for kl in estimate.kl.values())


def test_nvil_takes_dictionaries_and_two_batch_dimensions() -> None:
    def program(draw: c.Draw, batch: dict[str, Tensor]) -> Tensor:
        return draw("z", c.Bernoulli(logits=ENCODER(batch["x"]))).sum(-1)

    batch = {"x": torch.randn(3, 2, 4)}
    nvil = c.NVIL(program, batch, batch_dims=2)
    assert c.estimate(program, batch, estimator=nvil, samples=2, batch_dims=2).log_w.shape == (2, 3, 2)


@pytest.mark.parametrize("estimator", [c.Pathwise(0.5), c.Reinforce(), c.RLOO(), c.VIMCO(), c.StraightThrough()])
def test_an_estimate_holds_what_a_training_loop_logs(estimator: c.Estimator) -> None:
    model, x = c.Model(generative, inference), torch.randint(2, (BATCH, 4)).float()
    estimate = c.estimate(model, x, estimator=estimator, samples=3)
    assert list(estimate.trace) == ["z", "x"]
    assert list(estimate.posterior) == ["z"]
    assert torch.equal(estimate.output, x)
    assert estimate.kl.keys() == {"z"}
    assert estimate.log_likelihood.keys() == {"x"}
    by_point = [estimate.bound, estimate.kl["z"], estimate.log_likelihood["x"], estimate.effective_sample_size]
    assert all(each.shape == (BATCH,) and not each.requires_grad for each in by_point)
    assert estimate.log_w.shape == (3, BATCH)
    torch.testing.assert_close(estimate.loss, -estimate.bound.mean())


def test_the_terms_of_an_estimate_make_up_its_average() -> None:
    model, x = c.Model(generative, inference), torch.randint(2, (BATCH, 4)).float()
    estimate = c.estimate(model, x, estimator=c.Reinforce(), samples=50, objective=c.average)
    log_q, log_p = (trace["z"].log_prob.mean(0) for trace in (estimate.posterior, estimate.trace))
    torch.testing.assert_close(estimate.bound, estimate.log_likelihood["x"] + log_p - log_q)
    laws = (estimate.posterior["z"].distribution, c.Bernoulli(logits=torch.tensor([0.3, -0.4])))
    torch.testing.assert_close(estimate.kl["z"], torch.distributions.kl_divergence(*laws).sum(-1))


def test_a_program_may_return_more_than_its_cost() -> None:
    def program(draw: c.Draw, x: Tensor) -> tuple[Tensor, dict[str, Tensor], str]:
        z = draw("z", c.Bernoulli(logits=ENCODER(x)))
        return z.sum(-1), {"z": z}, "anything"

    cost, aux, word = c.estimate(program, torch.randn(BATCH, 4), estimator=c.RLOO(), samples=2).output
    assert (len(cost), aux["z"].shape, word) == (2 * BATCH, (2 * BATCH, 2), "anything")
