"""The laws of torch's own tests of distributions, over all variables."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
    biject_to,
    constraints,
    kl_divergence,
    transform_to,
)
from torch.distributions.transforms import AffineTransform

import concretely as c
from concretely.distribution.constraint import LogSoftmaxTransform
from tests.budget import assert_mean
from tests.cases import CONTINUOUS, EDGE, GATE, GUMBEL, MASSES, NODES, RELAXATIONS, TEMPERED, Case, each

pytestmark = [
    EDGE,
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning"),
]
ALL = (*MASSES, *CONTINUOUS)
WITH_ENTROPY = (*MASSES, *NODES, GUMBEL)
WITH_MOMENTS = tuple(
    case for case in (*MASSES, *NODES, GUMBEL) if not case.name.startswith("Exp") and "cauchy" not in case.name
)
BATCHES = ((), (0,), (3,), (2, 1, 3))


def build(case: Case, batch: tuple[int, ...] = (), *, flip: bool = False, **options: Any) -> Any:
    """A variable of ordinary logits, at an ordinary temperature if it has one."""
    logits = case.logits(case.determined, batch=batch)
    logits = -0.5 * logits if flip else logits
    return case.build(logits, *(() if case in MASSES else (0.8,)), **options)


@each(*ALL)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_samples_and_scores_have_the_shapes_of_torch(case: Case, batch: tuple[int, ...]) -> None:
    variable = build(case, batch)
    assert variable.batch_shape == batch
    for sample_shape in ((), (5,), (2, 4), (0,)):
        value = variable.sample(torch.Size(sample_shape))
        assert value.shape == variable._extended_shape(torch.Size(sample_shape))
        assert value.dtype == torch.float64
        assert variable.log_prob(value).shape == (*sample_shape, *batch)
        assert variable.support.check(value).shape == (*sample_shape, *batch)
        assert variable.support.check(value).all()
    assert variable.support.event_dim == len(variable.event_shape)


@each(*ALL)
def test_only_draws_with_a_pathwise_gradient_require_one(case: Case) -> None:
    logits = case.logits(case.determined, batch=(3,)).requires_grad_()
    variable = case.build(logits, *(() if case in MASSES else (0.8,)))
    assert variable.has_rsample == (case not in MASSES)
    assert variable.has_enumerate_support == variable.support.is_discrete == (case in MASSES)
    assert not variable.sample().requires_grad
    if case in MASSES:
        with pytest.raises(NotImplementedError, match="has no pathwise gradient"):
            variable.rsample()
    else:
        assert variable.rsample().requires_grad
    assert variable.log_prob(variable.sample()).requires_grad


@each(*ALL)
def test_parameters_satisfy_their_constraints_and_build_the_variable_again(case: Case) -> None:
    variable = build(case, (3,))
    own = {name: getattr(variable, name) for name in variable.arg_constraints}
    for name, constraint in variable.arg_constraints.items():
        assert constraint.check(own[name]).all()
        has_vectors = case.has_categories and name == "logits"
        assert constraint.event_dim == has_vectors
        if has_vectors:
            assert constraint is constraints.real_vector
    noise = {"noise": variable._noise} if isinstance(variable, c.BinaryCircuit) else {}
    noise = {"noise": variable.family} if isinstance(variable, c.CircuitNode) else noise
    size = {"k": variable.k} if isinstance(variable, c.Subset) else {}
    again = type(variable)(**own, **noise, **size)
    value = variable.sample((5,))
    torch.testing.assert_close(again.log_prob(value), variable.log_prob(value), rtol=0, atol=0)


@each(*ALL)
def test_unconstrained_parameters_are_mapped_to_allowed_ones(case: Case) -> None:
    variable = build(case, (3,))
    for name, constraint in variable.arg_constraints.items():
        for registry in (biject_to, transform_to):
            raw = torch.randn(getattr(variable, name).shape, dtype=torch.float64)
            assert constraint.check(registry(constraint)(raw)).all()


@each(*ALL)
@pytest.mark.parametrize("registry", [biject_to, transform_to])
def test_support_is_reached_from_unconstrained_values(case: Case, registry: Any) -> None:
    variable = build(case, (3,))
    if case in MASSES:
        return
    transform = registry(variable.support)
    assert transform.codomain.event_dim == len(variable.event_shape)
    value = variable.sample((50,))
    raw = transform.inv(value.clamp(-1 + 1e-9, 1 - 1e-9) if "Hypercube" in case.name else value)
    # a draw that was rounded to the edge is the image of no finite number
    finite = raw.isfinite().flatten(2).all(-1) if raw.dim() > 2 else raw.isfinite()
    back = transform(raw.where(raw.isfinite(), 0))
    assert finite.double().mean() > 0.8
    torch.testing.assert_close(back[finite], value[finite], rtol=1e-6, atol=1e-6)
    random = transform(4 * torch.randn(raw.shape, dtype=torch.float64))
    assert variable.support.check(random).all()
    assert variable.log_prob(random).isfinite().all()


@each(*CONTINUOUS)
def test_bijection_to_the_support_has_the_determinant_of_its_jacobian(case: Case) -> None:
    variable = build(case)
    bijection = biject_to(variable.support)
    raw = torch.randn(bijection.inverse_shape(variable.event_shape), dtype=torch.float64)
    jacobian = torch.func.jacrev(bijection)(raw)
    value = bijection(raw)
    if case.has_categories and "Hypercube" not in case.name:
        jacobian = jacobian[:-1]  # the last entry follows from the others
    expected = torch.linalg.slogdet(jacobian.reshape(raw.numel(), raw.numel())).logabsdet
    if case.name.startswith("Exp"):
        expected = expected - value[-1]  # the base measure of these densities
    torch.testing.assert_close(bijection.log_abs_det_jacobian(raw, value).sum(), expected)


def test_transform_to_the_log_simplex_neither_underflows_nor_overflows() -> None:
    transform = transform_to(c.ExpConcrete.support)
    assert transform == LogSoftmaxTransform()
    raw = torch.tensor([1e4, 0.0, -1e4]).requires_grad_()
    value = transform(raw)
    assert value.isfinite().all()
    assert c.ExpConcrete.support.check(value)
    torch.testing.assert_close(transform(transform.inv(value)), value)
    assert torch.autograd.grad(value[0], raw)[0].isfinite().all()


@each(*ALL)
def test_copies_draw_and_score_alike(case: Case) -> None:
    variable = build(case, (3,))
    value = variable.sample((5,))
    copies = [copy.copy(variable), copy.deepcopy(variable), pickle.loads(pickle.dumps(variable))]
    for each_copy in (*copies, variable.expand((3,))):
        assert torch.equal(each_copy.log_prob(value), variable.log_prob(value))
        drawn, again = (one.sample(generator=torch.Generator().manual_seed(1)) for one in (variable, each_copy))
        assert torch.equal(drawn, again)


@each(*ALL)
def test_expanded_parameters_are_independent_draws(case: Case) -> None:
    variable = build(case, (1,))
    larger = variable.expand((4, 50))
    value = larger.sample()
    assert value.shape == (4, 50, *variable.event_shape)
    assert len(value.flatten(0, 1).unique(dim=0)) > 1
    for name in variable.arg_constraints:
        broadcast = getattr(larger, name)
        assert broadcast.shape == () or broadcast.shape[:2] == (4, 50)
    with pytest.raises(RuntimeError):
        build(case, (3,)).expand((4,))


@each(*MASSES)
def test_enumerated_support_is_all_of_it(case: Case) -> None:
    variable = build(case, (3, 2))
    states = variable.enumerate_support()
    small = variable.enumerate_support(expand=False)
    assert states.shape == (variable.states, 3, 2, *variable.event_shape)
    assert small.shape == (variable.states, 1, 1, *variable.event_shape)
    assert torch.equal(small.expand_as(states), states)
    assert len(states[:, 0, 0].unique(dim=0)) == variable.states
    assert variable.support.check(states).all()
    probability = variable.log_prob(states).exp()
    torch.testing.assert_close(probability.sum(0), torch.ones(3, 2, dtype=torch.float64))
    weight = probability.reshape(*probability.shape, *(1 for _ in variable.event_shape))
    mean = (weight * states).sum(0)
    torch.testing.assert_close(variable.mean, mean)
    torch.testing.assert_close(variable.variance, (weight * (states - mean).square()).sum(0))
    best = probability.argmax(0)
    mode = states.flatten(1, 2)[best.flatten(), torch.arange(6)].view(3, 2, *variable.event_shape)
    assert torch.equal(variable.mode, mode)
    torch.testing.assert_close(variable.entropy(), -(probability * probability.log()).sum(0))


@each(*WITH_ENTROPY)
def test_entropy_has_the_batch_shape(case: Case) -> None:
    for batch in BATCHES:
        assert build(case, batch).entropy().shape == batch


@pytest.mark.exhaustive
@each(*WITH_ENTROPY)
def test_entropy_is_minus_the_mean_score(case: Case) -> None:
    variable = build(case, (3,))
    scores = variable.log_prob(variable.sample((20_000,)))
    for column, entropy in zip(scores.T, variable.entropy(), strict=True):
        assert_mean(-column, entropy.item(), case.name)


@pytest.mark.exhaustive
@each(*WITH_MOMENTS)
def test_mean_and_variance_are_those_of_draws(case: Case) -> None:
    variable = build(case, (3,))
    value = variable.sample((20_000,)).flatten(1)
    mean, variance = variable.mean.flatten(), variable.variance.flatten()
    for column, centre, spread in zip(value.T, mean, variance, strict=True):
        assert_mean(column, centre.item(), case.name)
        assert_mean((column - centre).square(), spread.item(), case.name)


def has_divergence(case: Case) -> bool:
    """Whether an exact divergence between two variables of the case is known."""
    return case != GATE and ("Circuit" not in case.name or case.name.endswith("normal"))


@each(*filter(has_divergence, ALL))
def test_divergence_has_the_shape_of_both_and_is_zero_of_one(case: Case) -> None:
    p, q = build(case, (4, 1)), build(case, (3,), flip=True)
    assert kl_divergence(p, q).shape == (4, 3)
    assert (kl_divergence(p, q) >= 0).all()
    torch.testing.assert_close(kl_divergence(p, p), torch.zeros(4, 1, dtype=torch.float64), rtol=0, atol=1e-9)
    empty = build(case, (0,))
    assert kl_divergence(empty, empty).shape == (0,)
    if not case.has_categories:
        together = kl_divergence(Independent(build(case, (2, 3)), 1), Independent(build(case, (2, 3), flip=True), 1))
        assert together.shape == (2,)


@pytest.mark.exhaustive
@each(*filter(has_divergence, ALL))
def test_divergence_is_the_mean_of_the_log_ratio_of_draws(case: Case) -> None:
    p, q = build(case, (3,)), build(case, (3,), flip=True)
    exact = kl_divergence(p, q)
    if case in CONTINUOUS:
        ratio = c.monte_carlo_kl(p.expand((20_000, 3)), q)
    else:
        value = p.sample((20_000,))
        ratio = p.log_prob(value) - q.log_prob(value)
    for column, mean in zip(ratio.T, exact, strict=True):
        assert_mean(column, mean.item(), case.name)


@each(*ALL)
def test_validation_can_be_turned_off(case: Case) -> None:
    variable = build(case, (3,), validate_args=False)
    value = torch.full((3, *variable.event_shape), torch.nan, dtype=torch.float64)
    variable.log_prob(value)  # no error
    with pytest.raises(ValueError, match=f"^value must lie in the support of {type(variable).__name__}, got"):
        build(case, (3,), validate_args=True).log_prob(value)


@each(*ALL)
def test_incompatible_shapes_are_refused(case: Case) -> None:
    variable = build(case, (3,))
    with pytest.raises(ValueError, match=r"^value must broadcast with shape \(3, ?\d?\), got shape \(2, ?\d?\)$"):
        variable.log_prob(variable.sample().new_zeros((2, *variable.event_shape)))
    if case in TEMPERED:
        with pytest.raises(ValueError, match=r"^temperature must broadcast with batch_shape \(3,\), got shape \(2,\)$"):
            case.build(case.logits(case.determined, batch=(3,)), torch.ones(2))


@pytest.mark.unchecked
@each(*ALL)
def test_traced_scores_and_properties_follow_the_parameters(case: Case) -> None:
    logits, value = case.logits(case.determined, batch=(3,)), build(case, (3,)).sample((5,))
    temperature = () if case in MASSES else (0.8,)

    def properties(logits: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        variable = case.build(logits, *temperature)
        found = [variable.log_prob(value), variable.probs] if case != GUMBEL else [variable.log_prob(value)]
        if case in MASSES:
            found += [variable.mean, variable.variance, variable.entropy(), variable.enumerate_support()]
        return tuple(found)

    traced = torch.jit.trace(properties, (logits, value), check_trace=False)
    for scale in (1.0, -0.3):
        torch.testing.assert_close(traced(scale * logits, value), properties(scale * logits, value))


@each(*ALL)
def test_scores_in_float32_are_those_in_float64(case: Case) -> None:
    logits = case.logits(case.determined, batch=(3,), dtype=torch.float32)
    temperature = () if case in MASSES else (0.8,)
    value = case.build(logits, *temperature).sample((50,))
    wide = case.build(logits.double(), *temperature, validate_args=False).log_prob(value.double())
    narrow = case.build(logits, *temperature).log_prob(value)
    precise = torch.ones_like(narrow, dtype=torch.bool)
    if case in RELAXATIONS:  # a float32 stands for many float64 numbers near an edge
        weight = (1 + value) / 2 if "Hypercube" in case.name else value
        distance = torch.minimum(weight, 1 - weight).unsqueeze(-1).flatten(2).amin(-1)
        precise = distance > 1e-3
    assert precise.any()
    torch.testing.assert_close(narrow[precise].double(), wide[precise], rtol=1e-4, atol=1e-4)


@each(*CONTINUOUS)
def test_variables_are_parts_of_other_distributions_of_torch(case: Case) -> None:
    variable = build(case, (3,))
    mixture = MixtureSameFamily(Categorical(logits=torch.zeros(3, dtype=torch.float64)), variable)
    value = mixture.sample((5,))
    score = mixture.log_prob(value)
    expected = torch.logsumexp(variable.log_prob(value.unsqueeze(1)), 1) - torch.log(torch.tensor(3.0))
    torch.testing.assert_close(score, expected)
    if variable.support is constraints.real:
        moved = TransformedDistribution(variable, [AffineTransform(1.0, 2.0)])
        value = moved.rsample((5,))
        torch.testing.assert_close(
            moved.log_prob(value), variable.log_prob((value - 1) / 2) - torch.log(torch.tensor(2.0))
        )


@pytest.mark.parametrize("infinity", [torch.inf, -torch.inf])
def test_a_hypercube_of_one_bit_may_be_certain(infinity: float) -> None:
    variable = c.Hypercube(logits=torch.tensor([infinity, 0.0]).unsqueeze(-1))
    certain = 1.0 if infinity > 0 else -1.0
    assert (variable.sample((9,))[:, 0] == certain).all()
    assert variable.mean[0].item() == variable.mode[0].item() == certain
    assert variable.variance[0].item() == variable.entropy()[0].item() == 0
    assert variable.log_prob(torch.full((2, 1), certain))[0].item() == 0
    assert variable.log_prob(torch.full((2, 1), -certain))[0].item() == -torch.inf
    with pytest.raises(ValueError, match=r"^logits must be finite to be relaxed"):
        variable.relax(0.5)
    with pytest.raises(ValueError, match=r"^logits must be below infinity"):
        c.Hypercube(logits=torch.tensor([torch.inf, 0.0, 0.0, 0.0]))
