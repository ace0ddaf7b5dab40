"""The drop-in functions draw by the exact law, in every dtype, with torch's arguments."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import gumbel_softmax as torch_gumbel_softmax

import concretely as c
from concretely.functional import gumbel_softmax as functional
from concretely.functional.noise import gumbel
from tests.budget import assert_frequency
from tests.cases import grid

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
SIZES = pytest.mark.parametrize("rows", [50, 5000])
"""A tensor that takes the path of few elements, and one that does not."""
DRAWS: dict[str, Callable[..., Tensor]] = {
    "softmax": c.gumbel_softmax,
    "hard softmax": partial(c.gumbel_softmax, hard=True),
    "straight-through": c.straight_through,
    "hard sigmoid": partial(c.gumbel_sigmoid, hard=True),
    "sigmoid": c.gumbel_sigmoid,
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_it_has_the_arguments_of_torch_in_their_order() -> None:
    logits = torch.randn(3, 4)
    for function in (torch_gumbel_softmax, c.gumbel_softmax):
        assert function(logits, 0.5, True, 1e-10, 0).sum(0).tolist() == [1.0] * 4


@DTYPES
@SIZES
def test_hard_draws_are_one_hot_to_the_bit(dtype: torch.dtype, rows: int) -> None:
    value = c.gumbel_softmax(torch.randn(rows, 7, dtype=dtype, requires_grad=True), 0.1, hard=True)
    assert value.dtype == dtype
    assert ((value == 0) | (value == 1)).all()
    assert (value.sum(-1) == 1).all()


@DTYPES
@SIZES
@pytest.mark.parametrize("tau", [1e-3, 0.7, 10.0])
def test_values_and_gradients_are_finite(dtype: torch.dtype, rows: int, tau: float) -> None:
    logits = torch.linspace(-1e4, 1e4, 8).to(dtype).repeat(rows, 1).requires_grad_()
    for hard in (False, True):
        value = c.gumbel_softmax(logits, tau, hard=hard)
        (slope,) = torch.autograd.grad(value[..., 0].sum(), logits)
        assert value.isfinite().all()
        assert slope.isfinite().all()
        torch.testing.assert_close(value.double().sum(-1), torch.ones(rows).double(), rtol=0, atol=0.02)


@DTYPES
@SIZES
@pytest.mark.parametrize("tau", [1e-29, 0.1, 1.0, 1e29])
def test_logits_of_any_size_have_finite_values_and_gradients(dtype: torch.dtype, rows: int, tau: float) -> None:
    most = torch.finfo(dtype).max
    logits = torch.tensor([most / 2, 0.0, -most / 2], dtype=dtype).repeat(rows, 1).requires_grad_()
    for given in (logits, logits - most / 2):
        for hard in (False, True):
            value = c.gumbel_softmax(given, tau, hard=hard)
            (slope,) = torch.autograd.grad(value[..., 0].sum(), logits)
            assert value.isfinite().all()
            assert slope.isfinite().all()


@SIZES
@pytest.mark.parametrize("hard", [False, True])
def test_the_gradient_is_that_of_the_relaxed_value_on_the_same_noise(rows: int, hard: bool) -> None:
    logits = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True)
    by = torch.randn(rows, 5, dtype=torch.float64)
    value = c.gumbel_softmax(logits, 0.5, hard=hard, generator=seeded())
    soft = c.gumbel_softmax(logits, 0.5, generator=seeded()).detach()
    expected = (by * soft - soft * (by * soft).sum(-1, keepdim=True)) / 0.5
    torch.testing.assert_close(torch.autograd.grad(value, logits, by)[0], expected)
    assert torch.equal(value.argmax(-1), soft.argmax(-1))


@SIZES
def test_second_derivatives_are_those_of_the_softmax(rows: int) -> None:
    logits = torch.randn(rows, 3, dtype=torch.float64, requires_grad=True)
    value = c.gumbel_softmax(logits, 0.7)
    cold = (0.7 * value.detach().log()).requires_grad_()  # noisy logits with this value
    seconds = []
    for soft, given in ((value, logits), ((cold / 0.7).softmax(-1), cold)):
        (slope,) = torch.autograd.grad((soft**3).sum(), given, create_graph=True)
        seconds.append(torch.autograd.grad((slope**2).sum(), given)[0])
    torch.testing.assert_close(*seconds)


@SIZES
@pytest.mark.parametrize("tau", [0.3, 1])
def test_the_argmax_is_a_draw_of_the_categorical_variable(rows: int, tau: float) -> None:
    logits, repeats = torch.tensor([2.0, 0.0, -1.0, -4.0]), 2_000_000 // rows
    counts = torch.zeros(4, dtype=torch.float64)
    for seed in range(repeats):
        counts += c.gumbel_softmax(logits.repeat(rows, 1), tau, generator=seeded(seed)).argmax(-1).bincount(minlength=4)
    for hits, probability in zip(counts.tolist(), logits.double().softmax(-1).tolist(), strict=True):
        assert_frequency(int(hits), of=rows * repeats, probability=probability)


@DTYPES
def test_a_gradient_does_not_change_the_category(dtype: torch.dtype) -> None:
    logits = torch.full((2000, 1000), -0.0155).to(dtype)
    logits[:, 0] = 7.0  # beside it, half precision would round the other logits
    drawn = [
        c.gumbel_softmax(given, hard=True, generator=seeded()) for given in (logits, logits.clone().requires_grad_())
    ]
    assert torch.equal(*drawn)


@SIZES
@pytest.mark.parametrize("tau", [20.0, 1e6, 1e20, 1e300, torch.tensor(1e8)], ids=str)
def test_the_temperature_does_not_change_the_category(rows: int, tau: float | Tensor) -> None:
    logits, repeats = torch.tensor([2.0, 0.0, -1.0, -4.0]).repeat(rows, 1), 50_000 // rows
    for given in (logits, logits.clone().requires_grad_()):
        counts = torch.zeros(4, dtype=torch.float64)
        for seed in range(repeats):
            counts += c.gumbel_softmax(given, tau, hard=True, generator=seeded(seed)).detach().double().sum(0)
        for hits, probability in zip(counts.tolist(), logits[0].double().softmax(-1).tolist(), strict=True):
            assert_frequency(int(hits), of=rows * repeats, probability=probability)


@SIZES
@pytest.mark.parametrize("tau", [0.5, 1.0])
@pytest.mark.parametrize("hard", [False, True])
def test_a_constant_in_all_logits_of_a_row_does_not_change_the_draw(rows: int, tau: float, hard: bool) -> None:
    logits, large = torch.arange(4.0).expand(rows, 4), -(2.0**22 if rows > 100 else 2.0**7)
    drawn, beside = (c.gumbel_softmax(logits + constant, tau, hard, generator=seeded()) for constant in (0.0, large))
    torch.testing.assert_close(beside, drawn, rtol=1e-4, atol=1e-6)


def test_a_temperature_for_each_row_is_that_of_the_row() -> None:
    logits, tau = torch.randn(2, 5, 3, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64) + 0.1
    noise = gumbel(logits.shape, torch.float64)
    for given in (tau, tau.unsqueeze(-1)):
        value = c.gumbel_softmax(logits, given, generator=seeded())
        assert value.shape == logits.shape
    expected = ((logits + noise) / tau.unsqueeze(-1)).softmax(-1)
    torch.testing.assert_close(functional.push(logits, tau.unsqueeze(-1), noise), expected)
    moved = c.gumbel_softmax(logits.movedim(-1, 0), tau, dim=0, generator=seeded())
    torch.testing.assert_close(moved.movedim(0, -1), c.gumbel_softmax(logits, tau, generator=seeded()))


def test_a_learned_temperature_has_a_finite_gradient_beside_impossible_categories() -> None:
    logits, tau = torch.tensor([[0.0, -math.inf, 1.0]]), torch.tensor([0.5], requires_grad=True)
    value = c.gumbel_softmax(logits, tau)
    value[0, 0].backward()
    assert value[0, 1] == 0
    assert tau.grad is not None
    assert tau.grad.isfinite().all()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("draw", [c.gumbel_softmax, c.gumbel_sigmoid])
def test_a_learned_temperature_has_a_finite_gradient_beside_the_lowest_logit(
    draw: Callable[..., Tensor], hard: bool
) -> None:
    logits = torch.tensor([[0.0, 1.0, torch.finfo(torch.float32).min]], requires_grad=True)
    tau = torch.tensor([[0.5]], requires_grad=True)
    value = draw(logits, tau, hard)
    assert value[0, 2] < 1e-30
    for slope in torch.autograd.grad(value[0, 0], (logits, tau)):
        assert slope.isfinite().all()
        assert slope.any()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("tau", [[0.5], [1.0, 0.5, 2.0]], ids=str)
def test_a_learned_temperature_has_a_finite_gradient_beside_certain_bits(tau: list[float], hard: bool) -> None:
    logits, learned = torch.tensor([math.inf, -math.inf, 0.0]), torch.tensor(tau, requires_grad=True)
    value = c.gumbel_sigmoid(logits, learned, hard=hard)
    assert value[:2].tolist() == [1, 0]
    (slope,) = torch.autograd.grad(value.sum(), learned)
    assert slope.isfinite().all()
    assert slope[-1] != 0


@SIZES
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("tau", [0, 0.5, torch.tensor(0.5)], ids=str)
def test_draws_over_any_axis_are_contiguous_as_those_of_torch(rows: int, hard: bool, tau: float | Tensor) -> None:
    logits = torch.randn(rows, 6, 2, 2)
    for given in (logits, logits.requires_grad_(), logits.to(memory_format=torch.channels_last)):
        for dim in (0, 1, 2, -1):
            value = c.gumbel_softmax(given, tau, hard, dim=dim)
            assert value.is_contiguous()
            torch.testing.assert_close(value.sum(dim), torch.ones_like(value).mean(dim))


@DTYPES
@SIZES
def test_relaxed_draws_may_be_modified_in_place_but_not_before_the_backward_pass(dtype: torch.dtype, rows: int) -> None:
    logits = torch.randn(rows, 6, dtype=dtype, requires_grad=True)
    value = c.gumbel_softmax(logits)
    value[value < 0.1] = 0
    if dtype.itemsize > 2:  # else the value is a copy of the result
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.sum().backward()
    assert not c.gumbel_softmax(logits).detach_().requires_grad


@SIZES
def test_temperature_zero_is_the_discrete_limit_without_a_gradient(rows: int) -> None:
    logits = torch.randn(rows, 4, requires_grad=True)
    value = c.gumbel_softmax(logits, 0)
    assert not value.requires_grad
    assert (value.sum(-1) == 1).all()
    mixed = c.gumbel_softmax(logits, torch.cat([torch.zeros(rows // 2), torch.ones(rows - rows // 2)]))
    assert ((mixed[: rows // 2] == 0) | (mixed[: rows // 2] == 1)).all()


@DTYPES
@SIZES
@pytest.mark.parametrize("hard", [False, True])
def test_impossible_categories_are_never_drawn_and_an_impossible_row_is_refused(
    dtype: torch.dtype, rows: int, hard: bool
) -> None:
    logits = torch.randn(rows, 4).to(dtype)
    logits[:, 2] = -math.inf
    logits.requires_grad_()
    value = c.gumbel_softmax(logits, 0.5, hard=hard)
    assert (value[:, 2] == 0).all()
    assert torch.autograd.grad(value[:, 0].sum(), logits)[0].isfinite().all()
    with torch.no_grad():
        logits[1] = -math.inf
    with pytest.raises(ValueError, match=r"leave at least one category possible, got .* in row \(1,\)"):
        c.gumbel_softmax(logits, 0.5, hard=hard)


@SIZES
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("wrong", [[-math.inf] * 3, [0.0, math.inf, 0.0], [0.0, math.nan, 0.0]], ids=str)
def test_temperature_zero_refuses_what_others_refuse(wrong: list[float], rows: int, hard: bool) -> None:
    logits = torch.zeros(rows, 3)
    logits[1] = torch.tensor(wrong)
    for tau in (0, torch.tensor(0.0), torch.zeros(rows), torch.arange(rows).float(), 1.0):
        with pytest.raises(ValueError, match=r"logits must .* in row \(1,\)"):
            c.gumbel_softmax(logits, tau, hard=hard)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tau": -0.5}, "tau must be positive, or 0 for one-hot draws, got -0.5"),
        ({"tau": torch.tensor([-1.0, 1.0, 1.0])}, "tau must be positive, or 0 for one-hot draws, got -1"),
        ({"tau": math.nan}, "tau must be positive"),
        ({"tau": "warm"}, "tau must be a number or a floating tensor, got str"),
        (
            {"tau": torch.ones(4)},
            r"tau must have one temperature for each row, of shape \(3,\) or \(3, 1\), got shape \(4,\)",
        ),
        ({"dim": 2}, r"dim must be an axis of the logits, got 2 for logits of shape \(3, 4\)"),
        ({"logits": torch.zeros(3, 4, dtype=torch.int64)}, "logits must be a floating tensor, got torch.int64"),
        ({"logits": torch.full((3, 4), math.nan)}, "logits must be numbers, got .* in row"),
        ({"logits": torch.full((3, 4), math.inf)}, "logits must be below infinity, got .* in row"),
        ({"logits": torch.full((3, 400), math.nan)}, r"logits must be numbers, got [^.]{60} \.\.\. in row \(0,\)$"),
        ({"logits": torch.zeros(3, 0)}, r"logits must have at least one category, got shape \(3, 0\)"),
        ({"dim": "last"}, r"dim must be an axis of the logits, got 'last' for logits of shape \(3, 4\)"),
        ({"dim": 0.5}, r"dim must be an axis of the logits, got 0.5 for logits of shape \(3, 4\)"),
        ({"tau": 1e-40}, "tau must be at least 1.2e-30, or 0 for one-hot draws, got 1e-40"),
        ({"tau": 1e-320}, "tau must be at least 1.2e-30, or 0 for one-hot draws, got 9.99988867e-321"),
        ({"tau": torch.tensor(2.0**-120)}, "tau must be at least 1.2e-30, or 0 for one-hot draws, got 7.52316385e-37"),
        ({"generator": 5}, "generator must be a torch.Generator"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(change: dict[str, object], sentence: str) -> None:
    given = {"logits": torch.zeros(3, 4), **change}
    with pytest.raises((ValueError, TypeError), match=sentence):
        c.gumbel_softmax(**given)


@grid(name=list(DRAWS), rows=[50, 5000], dtype=[torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.unchecked
def test_they_work_compiled_vmapped_and_under_autocast(name: str, rows: int, dtype: torch.dtype) -> None:
    draw = DRAWS[name]
    logits = torch.randn(rows, 4, dtype=dtype, requires_grad=True)
    compiled = torch.compile(draw, backend="aot_eager", fullgraph=True)(logits)
    mapped = torch.vmap(draw, randomness="different")(logits)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = draw(logits)
    for value in (compiled, mapped, cast):
        assert value.shape == logits.shape
        assert ((value >= 0) & (value <= 1)).all()
        value.sum().backward()
    slope = torch.func.grad(lambda logits: draw(logits)[0, 0])(logits.detach())
    assert slope.isfinite().all()


@DTYPES
@SIZES
def test_gates_are_bits_or_lie_between(dtype: torch.dtype, rows: int) -> None:
    logits = torch.tensor([-1e4, -1.0, 0.0, 1e4]).to(dtype).repeat(rows, 1).requires_grad_()
    hard, soft = (c.gumbel_sigmoid(logits, 0.5, hard=hard, generator=seeded()) for hard in (True, False))
    assert ((hard == 0) | (hard == 1)).all()
    assert (hard[:, 0] == 0).all()
    assert (hard[:, -1] == 1).all()
    assert ((soft > 0) & (soft < 1)).all()
    assert (soft[hard == 1] >= 0.5).all()  # rounding may give one half
    assert (soft[hard == 0] <= 0.5).all()
    by = torch.randn_like(hard)
    slopes = [torch.autograd.grad(value, logits, by)[0] for value in (hard, soft)]
    torch.testing.assert_close(*slopes)


def test_a_gate_is_open_with_the_probability_of_its_logit() -> None:
    logits, number = torch.tensor([-3.0, 0.5]), 2_000_000
    drawn = c.gumbel_sigmoid(logits.expand(number, 2), hard=True, generator=seeded()).double().sum(0)
    for hits, probability in zip(drawn.tolist(), logits.double().sigmoid().tolist(), strict=True):
        assert_frequency(int(hits), of=number, probability=probability)


@pytest.mark.unchecked
def test_a_gate_refuses_a_temperature_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"tau must broadcast to the logits' shape \(3,\), got shape \(2, 3\)"):
        c.gumbel_sigmoid(torch.zeros(3), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"tau must broadcast to the logits' shape \(3,\), got shape \(2,\)"):
        c.gumbel_sigmoid(torch.zeros(3), torch.ones(2))


@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1), (6, 6, 1), (1, 1, 1), (1,), ()])
def test_temperatures_broadcast_as_in_torch(shape: tuple[int, ...]) -> None:
    logits, tau = torch.randn(6, 6, 8), torch.logspace(-2, 2, math.prod(shape)).view(shape)
    found, expected = (c.gumbel_softmax(logits, own, generator=seeded()) for own in (tau, tau.broadcast_to(6, 6, 1)))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(6, 1), (1, 6), (6,)])
def test_temperatures_that_torch_would_take_for_others_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"tau must have one temperature for each row, of shape \(6, 6\) or \(6, 6, 1\)"
    ):
        c.gumbel_softmax(torch.zeros(6, 6, 8), torch.ones(shape))


@pytest.mark.parametrize("hard", [False, True])
def test_a_gate_of_nan_is_refused(hard: bool) -> None:
    with pytest.raises(ValueError, match="logits must be numbers, got nan"):
        c.gumbel_sigmoid(torch.tensor([0.0, math.nan]), hard=hard)


@pytest.mark.parametrize("hard", [False, True])
def test_draws_without_data_have_shapes(hard: bool) -> None:
    logits = torch.zeros(3, 4, device="meta")
    for draw in (c.gumbel_softmax, c.gumbel_sigmoid):
        value = draw(logits, 0.5, hard=hard)
        assert (value.shape, value.device.type) == (logits.shape, "meta")


@pytest.mark.parametrize("name", list(DRAWS))
@pytest.mark.parametrize("tau", [1.0, 0.5])
@SIZES
def test_draws_are_recorded_as_graphs_and_run_on_fake_tensors(name: str, tau: float, rows: int) -> None:
    draw = DRAWS[name] if name == "straight-through" else partial(DRAWS[name], tau=tau)
    logits = torch.zeros(rows, 4)
    graph = make_fx(lambda logits: draw(logits))(logits)
    assert not torch.equal(graph(logits), graph(logits))
    graph = make_fx(lambda logits: draw(logits), tracing_mode="symbolic")(logits)
    assert graph(torch.zeros(rows + 1, 4)).shape == (rows + 1, 4)
    with FakeTensorMode():
        assert draw(torch.zeros(rows, 4)).shape == logits.shape
