"""Variables are sites of pyro programs. Needs the extra `pyro`."""

import pytest
import torch

import concretely as c
from tests.cases import EDGE, MASSES, TEMPERED, Case, each

pytestmark = [
    pytest.mark.unchecked,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    EDGE,
]
pyro = pytest.importorskip("pyro", reason="needs the extra 'pyro'")


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
