"""A value is scored by itself alone: inside the support at the value, on the edge by its cell."""

import copy
import io
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from scipy.integrate import simpson
from torch import Tensor

import concretely as c
from concretely.functional.edge import near_one, near_zero
from concretely.functional.squashing import EdgeWarning
from tests.cases import DTYPES, RELAXATIONS, Case, each, named

pytestmark = pytest.mark.filterwarnings("ignore::concretely.functional.squashing.EdgeWarning")
INVERTIBLE = tuple(case for case in RELAXATIONS if "Hypercube" not in case.name)
ON_INTERVAL = tuple(case for case in INVERTIBLE if not case.has_categories)
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def floats(low: float, high: float, dtype: torch.dtype) -> Tensor:
    """All numbers of a half dtype in an interval, in their order."""
    everything = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    inside = everything[(everything >= low) & (everything <= high)]
    return inside.double().unique().to(dtype)


def cells(value: Tensor) -> Tensor:
    """The width of what rounds to each number."""
    borders = torch.cat([value[:1].double(), (value[1:].double() + value[:-1].double()) / 2, value[-1:].double()])
    return borders.diff()


@HALVES
@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("logit", [-3.0, 0.0, 2.0])
@each(*ON_INTERVAL)
def test_rounded_law_on_the_unit_interval_sums_to_one(
    case: Case, logit: float, temperature: float, dtype: torch.dtype
) -> None:
    value = floats(0.0, 1.0, dtype)
    variable = case.build(torch.tensor(logit, dtype=dtype), temperature)
    wide = case.build(torch.tensor(logit, dtype=dtype).double(), temperature)
    mass = (scored(variable, value) + cells(value).log()).exp()
    # the edge cells are exact
    low, high = near_zero(dtype).border, near_one(dtype).border
    assert mass[value.double() <= low].sum().item() == pytest.approx(
        wide.cdf(torch.tensor(low).double()).item(), rel=1e-6
    )
    upper = 1 - wide.cdf(torch.tensor(1 - high).double()).item()
    assert mass[value.double() >= 1 - high].sum().item() == pytest.approx(upper, rel=1e-5, abs=1e-12)
    # where the density has no inflection, the midpoint rule errs by less than it differs from the trapezoid
    inside = (value.double() > low) & (value.double() < 1 - high)
    middle, width = value.double()[inside], cells(value)[inside]
    borders = wide.log_prob(torch.stack([middle - width / 2, middle + width / 2])).exp()
    slack = (borders.mean(0) * width - mass[inside]).abs().sum().item()
    assert mass.sum().item() == pytest.approx(1, abs=slack + 1e-6)
    assert slack < 0.05


def scored(variable: c.BinaryConcrete, value: Tensor) -> Tensor:
    """Scores that are not rounded to half a dtype."""
    score = variable._score(value)
    return score.log_density - score.log_abs_det_jacobian


ON_SIMPLEX = tuple(case for case in INVERTIBLE if case.has_categories)


def below_border(case: Case, temperature: float, points: int) -> Tensor:
    """Logarithms of entries below the border of a float16, as far down as the density of the logarithm reaches."""
    reach = (60 if case.name == "Concrete" else 8) / temperature
    border = math.log(near_zero(torch.float16).border)
    return torch.linspace(border - reach, border, points, dtype=torch.float64)


def log_density(case: Case, logits: Tensor, temperature: float, node: Tensor) -> Tensor:
    """The density of nodes in float64."""
    law = case.build(logits.double(), temperature).node.law
    return law.log_density(node, logits.double(), temperature)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 2.0])
@each(*ON_SIMPLEX)
def test_score_of_a_lost_entry_is_its_average_density(case: Case, temperature: float) -> None:
    logits, cell = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float16), near_zero(torch.float16)
    value = torch.tensor([cell.last, 0.25, 0.75], dtype=torch.float16)
    y = below_border(case, temperature, 200_001)
    node = torch.stack([y, torch.full_like(y, math.log(0.25)), torch.log(0.75 - y.exp())], -1)
    density = (log_density(case, logits, temperature, node) - node[:, 1:].sum(-1)).exp()
    average = torch.trapezoid(density, y) / cell.border
    assert scored(case.build(logits, temperature), value).item() == pytest.approx(average.log().item(), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@each(*ON_SIMPLEX)
def test_score_of_two_lost_entries_is_their_average_density(case: Case, temperature: float) -> None:
    logits, cell = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float16), near_zero(torch.float16)
    value = torch.tensor([cell.last, cell.last, 1.0], dtype=torch.float16)
    y = below_border(case, temperature, 601)
    one, other = torch.meshgrid(y, y, indexing="ij")
    node = torch.stack([one, other, torch.log1p(-one.exp() - other.exp())], -1)
    logarithm = log_density(case, logits, temperature, node) - node[..., 2]
    scale = logarithm.max()
    average = float(simpson(simpson((logarithm - scale).exp(), x=y), x=y))
    expected = math.log(average) + scale.item() - 2 * math.log(cell.border)
    assert scored(case.build(logits, temperature), value).item() == pytest.approx(expected, abs=2e-3)


def copies(value: Tensor) -> dict[str, Tensor]:
    """The same value by other ways."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return {
        "detached": value.detach(),
        "cloned": value.clone(),
        "sliced": torch.cat([value, value])[: len(value)],
        "deep copy": copy.deepcopy(value.detach()),
        "saved": torch.load(file),
        "NumPy": torch.from_numpy(value.detach().numpy().copy()),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("temperature", [0.02, 0.5, 2.0])
@each(*RELAXATIONS)
def test_score_of_a_copy_is_that_of_the_original_bit_for_bit(
    case: Case, temperature: float, dtype: torch.dtype
) -> None:
    variable = case.build(case.logits(2, batch=(40,), dtype=dtype), temperature)
    value = variable.rsample((30,))
    score = variable.log_prob(value)
    assert score.isfinite().all()
    for name, other in copies(value).items():
        assert torch.equal(variable.log_prob(other), score), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each(*RELAXATIONS)
def test_score_of_a_value_does_not_depend_on_those_beside_it(case: Case, dtype: torch.dtype) -> None:
    logits = case.logits(2, batch=(), dtype=dtype)
    variable = case.build(logits, 0.5)
    # whole vectors of instructions, as torch may round what is left of them differently in the last bit
    edge, inside = (case.build(logits, temperature).sample((256,)) for temperature in (1e-3, 2.0))
    with pytest.warns(EdgeWarning):
        together = variable.log_prob(torch.cat([edge, inside]))
    assert torch.equal(together[256:], variable.log_prob(inside))
    assert torch.equal(together[:256], variable.log_prob(edge))


@pytest.mark.unchecked
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("build", [named(c.BinaryConcrete), named(c.Concrete)])
def test_traces_of_torch_hold_neither_a_value_nor_where_its_edge_is(build: Callable[..., c.Concrete]) -> None:
    logits = torch.linspace(-2, 2, 12).view(4, 3)
    cold, other = build(logits, 0.05), build(logits, 0.5)
    score = torch.jit.trace(cold.log_prob, (torch.full((4, 3), 1 / 3),), check_trace=False)
    draw = torch.jit.trace(lambda logits: build(logits, 0.05).rsample(), (logits,), check_trace=False)
    for _ in range(20):
        value = draw(logits)
        torch.testing.assert_close(score(value), cold.log_prob(value), rtol=1e-6, atol=1e-6)
        assert torch.equal(other.log_prob(value), other.log_prob(value.clone()))
    assert not torch.equal(draw(logits), draw(logits))


@pytest.mark.unchecked
@pytest.mark.parametrize("build", [named(c.BinaryConcrete), named(c.Concrete)])
def test_values_drawn_and_scored_in_compiled_programs_are_scored_as_elsewhere(build: Callable[..., c.Concrete]) -> None:
    logits = torch.linspace(-2, 2, 12).view(3, 4)
    drawn = torch.compile(lambda logits: build(logits, 0.3).rsample(), backend="aot_eager", fullgraph=True)(logits)
    score = torch.compile(lambda value: build(logits, 0.3).log_prob(value), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(score(drawn), build(logits, 0.3).log_prob(drawn), rtol=1e-6, atol=1e-6)
    edited = drawn.clone()
    edited[0] = edited[1]
    torch.testing.assert_close(score(edited), build(logits, 0.3).log_prob(edited), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each(*(case for case in RELAXATIONS))
def test_every_value_in_the_closed_support_has_a_finite_score_and_gradient(case: Case, dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    if "Hypercube" in case.name:
        value = torch.tensor([[-1.0], [1.0], [0.0], [0.9999]], dtype=dtype)
        logits = torch.tensor([0.3], dtype=dtype)
    elif case.has_categories:
        value = torch.tensor([[1, 0, 0], [0, 1, 0], [tiny, 1, 0], [0.5, 0.5, 0], [1, tiny, tiny]], dtype=dtype)
        logits = torch.tensor([0.3, -2.0, 1.0], dtype=dtype)
    else:
        value, logits = torch.tensor([0, 1, tiny, 0.5], dtype=dtype), torch.tensor(0.3, dtype=dtype)
    for temperature in (1e-3, 0.1, 1.0, 10.0):
        moving, leaf = value.clone().requires_grad_(), logits.clone().requires_grad_()
        score = case.build(leaf, temperature).log_prob(moving)
        assert score.isfinite().all(), temperature
        for gradient in torch.autograd.grad(score.sum(), (moving, leaf)):
            assert gradient.isfinite().all(), temperature


def test_largest_entry_is_known_from_the_others() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0])
    others = torch.tensor([3e-9, 2e-12])
    value = torch.cat([torch.ones(1), others])  # 1 - 3e-9 rounds to 1 in float32
    exact = torch.cat([1 - others.double().sum().view(1), others.double()])
    expected = c.Concrete(logits=logits.double(), temperature=0.4).log_prob(exact)
    torch.testing.assert_close(
        c.Concrete(logits=logits, temperature=0.4).log_prob(value).double(), expected, rtol=1e-6, atol=0
    )


def test_draw_converted_to_a_wider_dtype_keeps_the_cell_it_was_rounded_to() -> None:
    relaxed = c.BinaryConcrete(logits=torch.tensor(8.0), temperature=0.05)
    value = relaxed.sample((100,))
    torch.testing.assert_close(relaxed.log_prob(value.double()), relaxed.log_prob(value))


@pytest.mark.parametrize("size", [1, 4])
def test_graphs_score_draws_by_their_nodes(size: int) -> None:
    logits, other = torch.full((6, size), 9.0), torch.zeros(6, size)
    mode = c.mode.Relaxed(0.05)
    trace = c.run(lambda draw: draw("z", c.Hypercube(logits=logits)), mode=mode, samples=50)
    replayed = c.run(lambda draw: draw("z", c.Hypercube(logits=other)), mode=c.mode.Replay(trace, mode))
    node = trace["z"].node
    assert node is not None
    exact = c.Hypercube(logits=other).relax(0.05).node.log_prob(node)
    torch.testing.assert_close(replayed["z"].unit_log_prob, exact)
    assert not hasattr(trace["z"].value, "node")


def test_many_values_on_the_edge_give_a_warning_and_few_do_not() -> None:
    with pytest.warns(EdgeWarning, match="more than 1 % of the scored values"):
        c.BinaryConcrete(logits=torch.tensor(8.0), temperature=0.05).log_prob(torch.ones(10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c.BinaryConcrete(logits=torch.tensor(0.0), temperature=0.5).log_prob(
            torch.cat([torch.ones(1), torch.full((256,), 0.5)])
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_log_probabilities_of_bits_are_right_at_infinite_logits(dtype: torch.dtype) -> None:
    logits = torch.tensor([[math.inf, -math.inf, 2.0], [-1.0, math.inf, 0.5]], dtype=dtype, requires_grad=True)
    value = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], dtype=dtype)
    total = c.Bernoulli(logits=logits).summed_log_prob(value, 1)
    torch.testing.assert_close(total, c.Bernoulli(logits=logits.detach()).log_prob(value).sum(-1))
    (gradient,) = torch.autograd.grad(total.sum(), logits)
    torch.testing.assert_close(gradient, value - torch.sigmoid(logits.detach()))
