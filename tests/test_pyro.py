"""Variables are sites of pyro programs. Needs the extra `pyro`."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

import concretely as c
from tests.cases import EDGE, MASSES, TEMPERED, Case, each

pytestmark = [
    pytest.mark.unchecked,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    EDGE,
]
pyro = pytest.importorskip("pyro", reason="needs the extra 'pyro'")
SCORED = [case for case in TEMPERED if case.name not in ("CircuitNode-cauchy", "BinaryCircuit-cauchy")]
"""Variables whose scores are not too steep for a few steps of an optimizer."""


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    """Start without the parameters of another test."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    pyro.clear_param_store()


def trained(model: Callable[[], object], guide: Callable[[], object], steps: int, particles: int = 20) -> list[float]:
    """The losses of stochastic variational inference."""
    elbo = pyro.infer.Trace_ELBO(num_particles=particles, vectorize_particles=True, max_plate_nesting=0)
    inference = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), loss=elbo)
    return [inference.step() for _ in range(steps)]


@each(*MASSES, *TEMPERED)
def test_variable_is_a_site(case: Case) -> None:
    options = () if case in MASSES else (0.5,)
    logits = case.logits(case.determined, batch=(3,), dtype=torch.float32)

    def program() -> torch.Tensor:
        with pyro.plate("batch", 3):
            return pyro.sample("z", case.build(logits, *options))

    trace = pyro.poutine.trace(program).get_trace()
    trace.compute_log_prob()
    site = trace.nodes["z"]
    torch.testing.assert_close(site["log_prob"], case.build(logits, *options).log_prob(site["value"]))


@each(*MASSES, *TEMPERED)
def test_variable_has_the_interface_of_pyro(case: Case) -> None:
    options = () if case in MASSES else (0.5,)
    variable = case.build(case.logits(4, batch=(3,)), *options)
    assert variable.event_dim == len(variable.event_shape)
    assert variable.shape() == variable.batch_shape + variable.event_shape
    assert variable.expand_by((2,)).batch_shape == (2, 3)
    assert variable.to_event(1).batch_shape == ()
    value = variable()
    assert (variable.mask(False).log_prob(value) == 0).all()


def test_elbo_of_a_program_is_minus_the_divergence() -> None:
    logits = torch.tensor([1.0, -2.0, 0.5])

    def model() -> None:
        with pyro.plate("batch", 3):
            pyro.sample("z", c.BinaryConcrete(logits=torch.zeros(3), temperature=0.5))

    def guide() -> None:
        with pyro.plate("batch", 3):
            pyro.sample("z", c.BinaryConcrete(logits=logits, temperature=0.5))

    elbo = pyro.infer.Trace_ELBO(num_particles=2000, vectorize_particles=True, max_plate_nesting=1)
    exact = torch.distributions.kl_divergence(
        c.BinaryConcrete(logits=logits, temperature=0.5), c.BinaryConcrete(logits=torch.zeros(3), temperature=0.5)
    )
    assert elbo.loss(model, guide) == pytest.approx(exact.sum().item(), abs=0.2)


def test_nuts_moves_through_a_relaxed_variable_up_to_its_edge() -> None:
    relaxed = c.Concrete(logits=torch.tensor([1.0, 0.0, -1.0]), temperature=0.3)
    chain = pyro.infer.MCMC(
        pyro.infer.NUTS(lambda: pyro.sample("z", relaxed)), num_samples=60, warmup_steps=40, disable_progbar=True
    )
    chain.run()
    value = chain.get_samples()["z"]
    assert relaxed.support.check(value).all()
    assert len(value.argmax(-1).unique()) > 1


@each(*MASSES, *SCORED)
def test_variational_inference_finds_a_posterior(case: Case) -> None:
    target = case.logits(case.determined, dtype=torch.float32)
    options = () if case in MASSES else (0.5,)

    def model() -> None:
        pyro.sample("z", case.build(target, *options))

    def guide() -> None:
        pyro.sample("z", case.build(pyro.param("logits", torch.zeros_like(target)), *options))

    steps, particles = (200, 500) if case in MASSES else (100, 20)
    trained(model, guide, steps, particles=particles)
    found = pyro.param("logits").detach()
    if case in MASSES:  # their gradient is that of the score function
        start, end = (kl_divergence(case.build(logits), case.build(target)) for logits in (0 * target, found))
        assert end < 0.01 < 0.1 < start
        return
    if case.has_categories:
        found, target = found - found.mean(), target - target.mean()
    torch.testing.assert_close(found, target, rtol=0.2, atol=0.2)


@each(*MASSES)
def test_enumeration_of_a_program_is_exact(case: Case) -> None:
    logits, x = case.logits(4, batch=(3,)).requires_grad_(), torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)

    @pyro.infer.config_enumerate
    def model() -> None:
        with pyro.plate("batch", 3):
            z = pyro.sample("z", case.build(logits))
            place = z if not case.has_categories else place_of(z)
            pyro.sample("x", pyro.distributions.Normal(place, 1.0), obs=x)

    def place_of(z: Tensor) -> Tensor:
        return (z * torch.arange(1.0, z.shape[-1] + 1, dtype=z.dtype)).sum(-1)

    loss = pyro.infer.TraceEnum_ELBO(max_plate_nesting=1).differentiable_loss(model, lambda: None)
    mass = case.build(logits)
    states = mass.enumerate_support()
    place = states if not case.has_categories else place_of(states)
    joint = mass.log_prob(states) + torch.distributions.Normal(place, torch.ones_like(place)).log_prob(x)
    exact = -joint.logsumexp(0).sum()
    torch.testing.assert_close(loss, exact)
    torch.testing.assert_close(torch.autograd.grad(loss, logits), torch.autograd.grad(exact, logits))


GUIDES = ["AutoDelta", "AutoNormal", "AutoDiagonalNormal", "AutoMultivariateNormal"]


@pytest.mark.parametrize("name", GUIDES)
@each(*SCORED)
def test_automatic_guides_stay_in_the_support_and_learn(case: Case, name: str) -> None:
    relaxed = case.build(case.logits(case.determined, dtype=torch.float32), 2.0)

    def model() -> Tensor:
        return pyro.sample("z", relaxed)

    guide = getattr(pyro.infer.autoguide, name)(model)
    elbo = pyro.infer.Trace_ELBO()
    inference = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), loss=elbo)
    losses = torch.tensor([inference.step() for _ in range(60)])
    assert losses.isfinite().all()
    assert losses[-20:].mean() < losses[:20].mean() + 0.3
    for _ in range(5):
        assert relaxed.support.check(guide()["z"]).all()


@each(*TEMPERED)
def test_nuts_stays_in_the_support(case: Case) -> None:
    relaxed = case.build(case.logits(case.determined), 1.5)
    kernel = pyro.infer.NUTS(lambda: pyro.sample("z", relaxed), max_tree_depth=4)
    chain = pyro.infer.MCMC(kernel, num_samples=20, warmup_steps=60, disable_progbar=True)
    chain.run()
    value = chain.get_samples()["z"]
    assert value.shape == (20, *relaxed.event_shape)
    assert relaxed.support.check(value).all()
    assert len(value.unique(dim=0)) > 2


@pytest.mark.parametrize("family", [c.Logistic, c.BinaryConcrete, c.ExpConcrete, c.Concrete])
def test_nuts_draws_from_the_law_of_a_variable(family: type) -> None:
    logits = torch.tensor(0.8) if family in (c.Logistic, c.BinaryConcrete) else torch.tensor([1.0, 0.0, -0.5])
    variable = family(logits=logits.double(), temperature=2.0)
    chain = pyro.infer.MCMC(
        pyro.infer.NUTS(lambda: pyro.sample("z", variable)), num_samples=200, warmup_steps=100, disable_progbar=True
    )
    chain.run()
    value = chain.get_samples()["z"]
    # the sign, or the argmax, of a draw is the discrete state
    if logits.dim():
        hits, probability = value.argmax(-1) == 0, variable.probs[0]
    else:
        hits, probability = value > (0.5 if family is c.BinaryConcrete else 0.0), variable.probs
    effective = pyro.ops.stats.effective_sample_size(hits.double().unsqueeze(0)).item()
    error = (probability * (1 - probability) / effective).sqrt().item()
    assert hits.double().mean().item() == pytest.approx(probability.item(), abs=5 * error)
