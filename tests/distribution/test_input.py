"""Bad input gets one sentence with the value and the place."""

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

import concretely as c
from concretely.distribution.check import are_bits, mark_bits
from tests.cases import CONTINUOUS, MASSES, TEMPERED, Case, each

pytestmark = pytest.mark.unchecked

BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: c.Logistic(logits=torch.zeros(3), temperature=-0.5),
        ValueError,
        "temperature must be positive, or 0 for the discrete limit, got -0.5",
    ),
    (
        lambda: c.BinaryConcrete(logits=torch.zeros(3), temperature=math.nan),
        ValueError,
        "temperature must be positive, or 0 for the discrete limit, got nan",
    ),
    (
        lambda: c.Concrete(logits=torch.zeros(2, 3), temperature=torch.tensor([0.5, -1.0])),
        ValueError,
        "temperature must be positive, or 0 for the discrete limit, got -1 at index 1",
    ),
    (
        lambda: c.ExpConcrete(logits=torch.zeros(2, 3), temperature=math.inf),
        ValueError,
        "temperature must be positive, or 0 for the discrete limit, got inf",
    ),
    (
        lambda: c.Logistic(logits=torch.zeros(3), temperature="1"),
        TypeError,
        "temperature must be a number or a floating tensor, got str",
    ),
    (
        lambda: c.Logistic(logits=torch.zeros(3), temperature=torch.tensor(1)),
        TypeError,
        "temperature must be a number or a floating tensor, got torch.int64",
    ),
    (
        lambda: c.Concrete(logits=torch.zeros(2, 3), temperature=torch.ones(3)),
        ValueError,
        "temperature must broadcast with batch_shape (2,), got shape (3,)",
    ),
    (
        lambda: c.OneHotCategorical(logits=torch.tensor([[0.0, 1.0], [math.nan, 0.0]])),
        ValueError,
        "logits must be numbers, got nan at index (1, 0)",
    ),
    (
        lambda: c.OneHotCategorical(logits=torch.tensor([0.0, math.inf])),
        ValueError,
        "logits must be below infinity, got inf at index 1",
    ),
    (
        lambda: c.Concrete(logits=torch.tensor([0.0, -math.inf]), temperature=0.5),
        ValueError,
        "logits must be finite to be relaxed, got -inf at index 1",
    ),
    (
        lambda: c.Bernoulli(logits=torch.tensor([1, 0])),
        TypeError,
        "logits must be a floating tensor, got torch.int64; convert with logits.float()",
    ),
    (lambda: c.Bernoulli(logits=[0.0]), TypeError, "logits must be a floating tensor or a number, got list"),
    (
        lambda: c.OneHotCategorical(logits=torch.tensor(0.0)),
        ValueError,
        "logits must have a last axis of at least 2 categories, got shape ()",
    ),
    (
        lambda: c.Concrete(logits=torch.zeros(5, 1), temperature=0.5),
        ValueError,
        "logits must have a last axis of at least 2 categories, got shape (5, 1)",
    ),
    (
        lambda: c.Hypercube(logits=torch.zeros(4, 6)),
        ValueError,
        "logits must have a last axis of n states with n a power of two, or of 1 for a single log-odds, "
        "got shape (4, 6)",
    ),
    (
        lambda: c.HypercubeConcrete(logits=torch.zeros(4, 3), temperature=0.5),
        ValueError,
        "logits must have a last axis of n states with n a power of two, or of 1 for a single log-odds, "
        "got shape (4, 3)",
    ),
    (
        lambda: c.BinaryCircuit(logits=torch.zeros(2), temperature=0.5, noise="norml"),
        ValueError,
        "unknown noise 'norml'; did you mean 'normal'?",
    ),
    (
        lambda: c.BinaryCircuit(
            logits=torch.zeros(2), temperature=0.5, noise=torch.distributions.Normal(torch.zeros(2), 1.0)
        ),
        ValueError,
        "noise must be a distribution of single numbers, got batch and event shapes (2,) and ()",
    ),
    (
        lambda: c.Bernoulli(probs=torch.tensor([0.5, 1.5])),
        ValueError,
        "probs must lie between 0 and 1, got 1.5 at index 1",
    ),
    (
        lambda: c.Bernoulli(logits=torch.zeros(2)).log_prob(torch.tensor([0.0, 0.5])),
        ValueError,
        "value must lie in the support of Bernoulli, got 0.5 at index 1: draw bits from grey values, as by "
        "torch.bernoulli(x)",
    ),
    (
        lambda: c.Concrete(logits=torch.zeros(2), temperature=0.5).log_prob(torch.tensor([[0.5, 0.5], [0.5, 0.75]])),
        ValueError,
        "value must lie in the support of Concrete, got [0.5, 0.75] at index 1",
    ),
    (
        lambda: c.Concrete(logits=torch.zeros(3), temperature=0.5).log_prob(torch.zeros(2)),
        ValueError,
        "value must end in event_shape (3,), got shape (2,)",
    ),
    (
        lambda: c.Logistic(logits=torch.zeros(3), temperature=0.5).log_prob(torch.zeros(2)),
        ValueError,
        "value must broadcast with shape (3,), got shape (2,)",
    ),
    (
        lambda: c.Logistic(logits=torch.zeros(3), temperature=0.5).log_prob(0.5),
        TypeError,
        "value must be a tensor, got float",
    ),
    (
        lambda: c.Logistic(logits=torch.zeros(2), temperature=0.5).log_prob(torch.tensor([0.0, math.nan])),
        ValueError,
        "value must lie in the support of Logistic, got nan at index 1",
    ),
    (
        lambda: c.BinaryConcrete(logits=torch.zeros(2), temperature=0.0).log_prob(torch.tensor([0.5, 0.5])),
        ValueError,
        "temperature must be positive to have a density, got 0: score the discrete variable instead",
    ),
    (
        lambda: c.Logistic(logits=torch.zeros(2), temperature=0.5).icdf(torch.tensor([0.5, 1.5])),
        ValueError,
        "value must lie between 0 and 1, got 1.5 at index 1",
    ),
    (
        lambda: c.Logistic(logits=torch.zeros(2), temperature=0.5).push(torch.zeros(3)),
        ValueError,
        "noise must broadcast with shape (2,), got shape (3,)",
    ),
    (
        lambda: c.HypercubeConcrete(logits=torch.zeros(4), temperature=0.5).log_prob(torch.zeros(2)),
        ValueError,
        "a point of the hypercube with 4 states does not determine its node and cannot be scored: "
        "use rsample_and_log_prob, or draw and score the variable's node",
    ),
    (
        lambda: c.OneHotCategorical(logits=torch.full((2,), -math.inf)),
        ValueError,
        "logits must leave at least one category possible, got -inf at index 0",
    ),
    (
        lambda: c.Concrete(logits=torch.zeros(3), temperature=0.0).rsample_and_log_prob(),
        ValueError,
        "temperature must be positive to have a density, got 0: score the discrete variable instead",
    ),
    (
        lambda: c.Logistic(logits=torch.zeros(3), temperature=torch.zeros(())).entropy(),
        ValueError,
        "temperature must be positive to have a density, got 0: score the discrete variable instead",
    ),
    (
        lambda: torch.distributions.kl_divergence(
            *(c.BinaryConcrete(logits=torch.zeros(3), temperature=0.0) for _ in range(2))
        ),
        ValueError,
        "temperature must be positive to have a density, got 0: score the discrete variable instead",
    ),
    (
        lambda: torch.distributions.kl_divergence(
            c.OneHotCategorical(logits=torch.zeros(3)), c.OneHotCategorical(logits=torch.zeros(4))
        ),
        ValueError,
        "event shapes must be equal, got (3,) and (4,)",
    ),
    (
        lambda: c.monte_carlo_kl(c.Bernoulli(logits=0.0), c.Bernoulli(logits=0.0)),
        TypeError,
        "p and q must have densities, got Bernoulli and Bernoulli: kl_divergence is exact for discrete variables",
    ),
    (
        lambda: c.BinaryCircuit(logits=torch.zeros(2), temperature=0.5, noise=3),
        TypeError,
        "noise must be a name, a distribution or a family, got int",
    ),
    (
        lambda: c.Logistic(logits=torch.zeros(2), temperature=0.5).icdf(0.5),
        TypeError,
        "value must be a tensor, got float",
    ),
    (
        lambda: c.Concrete(logits=torch.zeros(2), temperature=0.5).log_prob(torch.tensor([1, 0])),
        TypeError,
        "value must be a floating tensor, got torch.int64",
    ),
    (
        lambda: c.Bernoulli(logits=torch.zeros(2)).rsample(),
        NotImplementedError,
        "Bernoulli has no pathwise gradient: draw from Bernoulli(...).relax(temperature) instead",
    ),
]


@pytest.mark.parametrize(("call", "error", "sentence"), BAD, ids=[sentence for _, _, sentence in BAD])
def test_bad_input_gets_one_sentence(call: Callable[[], object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == sentence


@each(*MASSES, *TEMPERED)
def test_checks_can_be_turned_off(case: Case) -> None:
    options = () if case in MASSES else (-0.5,)
    logits = torch.full_like(case.logits(4, batch=(2,)), math.nan)
    case.build(logits, *options, validate_args=False)
    with pytest.raises(ValueError, match="got nan at index" if case in MASSES else "got"):
        case.build(logits, *options, validate_args=True)


def test_checks_outlive_the_compilation_of_a_program() -> None:
    torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2))  # after which those of torch are off
    with pytest.raises(ValueError, match="logits must be numbers, got nan"):
        c.Logistic(logits=torch.tensor(math.nan), temperature=1.0)


def test_interface_of_pyro_is_absent_without_pyro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyro.distributions.torch_distribution", None)
    with pytest.raises(AttributeError, match=r"Bernoulli\.to_event is pyro's, which is not installed"):
        c.Bernoulli(logits=torch.zeros(2)).to_event(1)
    assert not hasattr(c.Bernoulli(logits=torch.zeros(2)), "mask")


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert c.Logistic(logits=torch.zeros(2), temperature=np.float32(0.5)).temperature == 0.5
    assert c.Bernoulli(probs=1).sample() == 1


def test_compiled_program_refuses_a_generator() -> None:
    generator = torch.Generator()

    def program() -> torch.Tensor:
        return c.Logistic(logits=torch.zeros(2), temperature=0.5).sample(generator=generator)

    with pytest.raises(Exception, match="draw the noise outside and push it inside"):
        torch.compile(program, fullgraph=True, backend="aot_eager")()
    # where torch may fall back on plain Python, the generator is obeyed
    drawn = torch.compile(program, backend="aot_eager")
    assert torch.equal(*(drawn() for _ in range(2) if generator.manual_seed(0)))


def test_edges_of_the_unit_interval_have_their_probabilities() -> None:
    relaxed = c.BinaryConcrete(logits=torch.tensor(1.0), temperature=0.5)
    assert relaxed.cdf(torch.tensor([0.0, 1.0])).tolist() == [0, 1]


def test_classes_are_at_most_two_deep_under_a_distribution_of_torch() -> None:
    for variable in (*MASSES, *CONTINUOUS):
        options = () if variable in MASSES else (0.5,)
        kinds = type(variable.build(variable.logits(2), *options)).__mro__
        assert sum(issubclass(kind, torch.distributions.Distribution) for kind in kinds) - 1 <= 2, variable.name


def test_marked_bits_are_checked_again_once_they_change() -> None:
    variable, bits = c.Bernoulli(logits=torch.zeros(3)), torch.tensor([0.0, 1.0, 1.0])
    mark_bits(bits)
    assert are_bits(bits)
    bits[1] = 0.5
    assert not are_bits(bits)
    with pytest.raises(ValueError, match=r"got 0\.5 at index 1"):
        variable.log_prob(bits)
    assert not are_bits(torch.full((3,), 0.5))
