"""Every variable takes its parameters by name, as logits or as probabilities, and refuses all else in one sentence."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

import concretely as c

PUBLIC = [getattr(c, name) for name in c.__all__]
FAMILIES = [kind for kind in PUBLIC if isinstance(kind, type) and issubclass(kind, Distribution) and kind != c.Gumbel]
MASSES = (c.Bernoulli, c.OneHotCategorical, c.Hypercube, c.Subset, c.Permutation)
SUBSETS = (c.Subset, c.SubsetConcrete)
BINARY = (c.Bernoulli, c.BinaryConcrete, c.Logistic, c.BinaryCircuit, c.CircuitNode, c.HardConcrete, *SUBSETS)

each = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)


def probs_of(family: type) -> Tensor:
    """Probabilities that the family takes."""
    rows = [[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]]
    if family in (c.Permutation, c.GumbelSinkhorn):
        rows = [[0.3, 0.7], [0.5, 0.5]]
    return torch.tensor(rows[0] if family in BINARY else rows, dtype=torch.float64)


def logits_of(family: type) -> Tensor:
    """The logits of the same variable."""
    probs = probs_of(family)
    return torch.logit(probs) if family in BINARY else probs.log()


def build(family: Any, **parameters: Any) -> Any:
    """A member of the family, at an ordinary temperature if it has one."""
    return family(**ordinary(family), **parameters)


def ordinary(family: Any) -> dict[str, Any]:
    """Parameters of the family that are neither logits nor probabilities."""
    return ({} if family in MASSES else {"temperature": 0.5}) | ({"k": 2} if family in SUBSETS else {})


@each
def test_logits_and_probabilities_describe_the_same_variable(family: type) -> None:
    one, other = build(family, probs=probs_of(family)), build(family, logits=logits_of(family))
    for variable in (one, other):
        torch.testing.assert_close(variable.probs, probs_of(family))
    drawn, again = (each.sample(generator=torch.Generator().manual_seed(0)) for each in (one, other))
    torch.testing.assert_close(drawn, again)


@pytest.mark.parametrize("family", [kind for kind in FAMILIES if hasattr(kind, "discretize")])
def test_a_relaxation_has_the_probabilities_of_its_discrete_variable(family: type) -> None:
    relaxed = build(family, probs=probs_of(family))
    torch.testing.assert_close(relaxed.probs, relaxed.discretize().probs)


def test_a_hypercube_may_have_one_probability_of_plus_one() -> None:
    probs = torch.tensor([[0.1], [0.7]], dtype=torch.float64)
    for family in (c.Hypercube, c.HypercubeConcrete, c.HypercubeLogisticNormal):
        torch.testing.assert_close(build(family, probs=probs).probs, probs)


@each
@pytest.mark.unchecked
def test_parameters_without_a_name_are_refused(family: type) -> None:
    name = re.escape(f"{family.__name__} must be given logits= or probs=")
    for positional in ((0.3,), (0.5, logits_of(family)), (logits_of(family), 0.5)):
        with pytest.raises(TypeError, match=rf"^{name}.*, got arguments without a name$"):
            family(*positional)
    with pytest.raises(TypeError, match=rf"^{name}.*, got neither$"):
        build(family)
    with pytest.raises(TypeError, match=rf"^{name}.*, got both$"):
        build(family, logits=logits_of(family), probs=probs_of(family))


@each
@pytest.mark.unchecked
@pytest.mark.parametrize("parameter", ["logits", "probs", "temperature"])
@pytest.mark.parametrize("bad", ["0.5", [0.5], True])
def test_what_is_no_number_is_refused(family: type, parameter: str, bad: Any) -> None:
    if parameter == "temperature":
        if family in MASSES:
            return
        parameters = ordinary(family) | {"logits": logits_of(family), "temperature": bad}
    else:
        parameters = ordinary(family) | {parameter: bad}
    with pytest.raises(TypeError, match=rf"^{parameter} must be .*number.*, got {type(bad).__name__}$"):
        family(**parameters)


@each
@pytest.mark.unchecked
@pytest.mark.parametrize("bad", [0, "0", torch.manual_seed])
def test_what_is_no_generator_is_refused(family: type, bad: Any) -> None:
    variable = build(family, logits=logits_of(family))
    draws = [variable.sample, variable.noise, variable.drawn]
    draws += [] if family in MASSES else [variable.rsample, variable.rsample_and_log_prob]
    for draw in draws:
        with pytest.raises(TypeError, match=rf"^generator must be a torch.Generator, .*, got {type(bad).__name__}$"):
            draw(generator=bad)


@pytest.mark.unchecked
def test_a_gumbel_names_its_location() -> None:
    assert c.Gumbel(loc=torch.zeros(3)).loc.shape == (3,)
    for bad, found in (("0", "str"), ([0.0], "list"), (torch.zeros(3, dtype=torch.long), "torch.int64")):
        with pytest.raises(TypeError, match=rf"^loc must be a floating tensor.*, got {found}"):
            c.Gumbel(loc=bad)
    with pytest.raises(ValueError, match=r"^loc must be finite, got inf at index 1$"):
        c.Gumbel(loc=torch.tensor([0.0, torch.inf]))
