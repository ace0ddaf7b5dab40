"""The contract of all layers: what changes state, what draws, what decides, and under which transforms."""

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from concretely import layer
from concretely.functional.noise import Keys
from concretely.layer import advance, base, decide, penalty, report
from tests.cases import exhaustive
from tests.layer.case import CASES, Case, inputs, value

ALL = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def state(layer: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in layer.state_dict().items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def slopes(layer: nn.Module, x: Tensor, output: Any, *, seed: int = 3) -> list[Tensor]:
    """The gradients of the inputs and of all parameters for a fixed gradient of the value, with the penalty."""
    found = value(output)
    by = torch.randn(found.shape, generator=seeded(seed), dtype=torch.float64).to(found.dtype)
    total = (found * by).sum() + penalty(layer)
    leaves = [x, *(each for each in layer.parameters() if each.requires_grad)]
    given = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if each is None else each for leaf, each in zip(leaves, given, strict=True)]


@ALL
def test_forward_never_changes_the_state(case: Case) -> None:
    layer = case.scheduled()
    before = state(layer)
    for mode in (True, False, True):
        layer.train(mode)
        layer(inputs())
        layer.sample(inputs())
    penalty(layer).backward() if penalty(layer).requires_grad else None
    report(layer)
    decide(layer)
    assert_same(before, state(layer))


@ALL
def test_evaluation_between_changes_nothing(case: Case) -> None:
    layer = case.made()
    results = []
    for visits in (False, True):
        torch.manual_seed(0)
        first = value(layer.train()(inputs()))
        if visits:
            with torch.random.fork_rng():
                layer.eval()(inputs())
                layer.sample(inputs())
        results.append((first, value(layer.train()(inputs())), penalty(layer)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@ALL
def test_evaluation_is_deterministic_and_training_is_not(case: Case) -> None:
    layer = case.made()
    first, second = (value(layer.eval()(inputs())) for _ in range(2))
    assert torch.equal(first, second)
    drawn = torch.stack([value(layer.train()(inputs())) for _ in range(20)])
    assert (drawn != drawn[0]).any()


@ALL
def test_samples_follow_the_generator_in_either_mode_without_a_gradient(case: Case) -> None:
    layer = case.made()
    one = value(layer.train().sample(inputs(), generator=seeded()))
    other = value(layer.eval().sample(inputs(), generator=seeded()))
    assert torch.equal(one, other)
    assert not one.requires_grad
    many = [value(layer.sample(inputs(), generator=seeded(seed))) for seed in range(20)]
    assert any(not torch.equal(one, each) for each in many)


@ALL
def test_draws_follow_the_generator(case: Case) -> None:
    layer = case.made()
    assert torch.equal(*(value(layer(inputs(), generator=seeded())) for _ in range(2)))


@ALL
def test_the_state_dict_restores_the_temperature_the_step_and_the_statistics(case: Case) -> None:
    layer = case.scheduled()
    for _ in range(3):
        layer(inputs())
        advance(layer)
    stream = io.BytesIO()
    torch.save(layer.state_dict(), stream)
    stream.seek(0)
    other = case.scheduled()
    other.load_state_dict(torch.load(stream, weights_only=True))
    assert_same(state(layer), state(other))
    assert other.step.item() == 3
    if case.anneals:
        assert other.temperature.item() == pytest.approx(0.1**0.3)
    if case.counts:
        assert other.counts.sum() > 0
    for each in (layer, other):
        each(inputs(), generator=seeded())
        advance(each)
    assert_same(state(layer), state(other))
    torch.testing.assert_close(report(layer), report(other))


@ALL
def test_a_conversion_keeps_the_dtype_of_the_statistics(case: Case) -> None:
    layer = case.scheduled()
    layer(inputs())
    advance(layer)
    before = {name: tensor.clone() for name, tensor in layer.named_buffers()}
    layer.bfloat16()
    for name, buffer in layer.named_buffers():
        if name in layer._buffers:
            assert torch.equal(buffer, before[name])
            assert buffer.dtype == before[name].dtype


@ALL
def test_a_copy_after_a_forward_has_the_same_state_and_penalty(case: Case) -> None:
    layer = case.made()
    layer(inputs(), generator=seeded())
    other = copy.deepcopy(layer)
    assert_same(state(layer), state(other))
    other(inputs(), generator=seeded())
    assert torch.equal(penalty(layer), penalty(other))


@ALL
def test_a_frozen_layer_has_a_penalty_without_a_gradient(case: Case) -> None:
    layer = case.made().requires_grad_(False)
    layer(inputs())
    assert not penalty(layer).requires_grad


@ALL
def test_a_shared_layer_is_penalised_and_advanced_once(case: Case) -> None:
    layer = case.made()
    model = nn.ModuleDict({"one": layer, "nested": nn.Sequential(layer)})
    layer(inputs())
    assert torch.equal(penalty(model), layer.penalty())
    advance(model)
    assert layer.step.item() == 1
    assert list(report(model)) == ["one"]


@ALL
def test_activation_checkpointing_equals_a_plain_forward(case: Case) -> None:
    found = []
    for wraps in (False, True):
        layer = case.made()
        torch.manual_seed(0)
        x = inputs().requires_grad_()
        output = checkpoint(layer, x, use_reentrant=False) if wraps else layer(x)
        gradients = slopes(layer, x, output)
        advance(layer)
        found.append((value(output), *gradients, *layer.buffers()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


QUICK, SLOW = ([case for case in CASES if case.compiles == compiles] for compiles in (True, False))


@pytest.mark.unchecked
@pytest.mark.parametrize("case", [*QUICK, *exhaustive(*SLOW)], ids=lambda case: case.name)
def test_a_compiled_layer_equals_the_eager_one(case: Case) -> None:
    layer, keys = case.made(), torch.randint(2**62, (4, 2))

    def forward(x: Tensor, keys: Tensor) -> Tensor:
        return value(layer(x, generator=Keys(keys)))

    compiled = torch.compile(forward, backend="aot_eager", fullgraph=True)
    found = []
    for each in (forward, compiled):
        x = inputs().requires_grad_()
        output = each(x, keys)
        found.append((output, penalty(layer), *slopes(layer, x, output)))
    torch.testing.assert_close(*found)
    layer.eval()
    torch.testing.assert_close(compiled(inputs(), keys), forward(inputs(), keys))


@pytest.mark.unchecked
@ALL
def test_layers_work_under_vmap_and_autocast(case: Case) -> None:
    layer = case.made()
    x = torch.stack([inputs(), inputs() + 1])
    mapped = value(torch.vmap(layer, randomness="different")(x))
    assert mapped.shape == (2, *value(layer(inputs())).shape)
    assert mapped.isfinite().all()
    one = inputs().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(one)
    assert value(output).isfinite().all()
    assert all(each.isfinite().all() for each in slopes(layer, one, output))


@ALL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_values_and_gradients_are_finite_in_every_dtype(case: Case, dtype: torch.dtype) -> None:
    layer = case.made(dtype=dtype)
    for scale in (1, 30):
        x = (scale * inputs(dtype=dtype)).requires_grad_()
        output = layer(x)
        assert value(output).dtype == dtype
        assert value(output).isfinite().all()
        assert penalty(layer).dtype in (torch.float32, torch.float64)
        assert all(each.isfinite().all() for each in slopes(layer, x, output))


@ALL
def test_an_empty_batch_has_a_value_a_gradient_a_penalty_and_counts(case: Case) -> None:
    layer = case.made()
    for mode in (True, False):
        x = inputs()[:0].requires_grad_()
        output = layer.train(mode)(x)
        assert len(value(output)) == 0
        if mode:
            assert all(each.isfinite().all() for each in slopes(layer, x, output))
    advance(layer)
    assert all(buffer.isfinite().all() for buffer in layer.buffers())
    assert len(value(layer.sample(inputs()[:0]))) == 0


@pytest.mark.parametrize("case", [case for case in CASES if "Choice" not in case.name], ids=lambda case: case.name)
def test_a_layer_without_data_returns_shapes_and_counts_after_a_move(case: Case) -> None:
    layer = case.made()
    shape = value(layer(inputs())).shape
    found = value(layer.to("meta")(inputs().to("meta")))
    assert (found.shape, found.device.type) == (shape, "meta")
    advance(layer)


@ALL
def test_diagnostics_have_no_gradient(case: Case) -> None:
    layer = case.made()
    layer(inputs())
    advance(layer)
    for tensor in layer.report():
        assert not tensor.requires_grad


@ALL
def test_a_forgotten_advance_and_a_forgotten_penalty_warn_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PATIENCE", 3)
    for advances, penalises in ((False, True), (True, False), (True, True)):
        layer = case.scheduled()
        moved = "schedule" if case.anneals else layer.follows
        expected = [f"has a {moved} but advance was never called in 3 training"] if moved and not advances else []
        expected += (
            [] if penalises or not case.penalises else ["has a penalty but it was never used in 3 training forwards"]
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(8):
                layer(inputs())
                if penalises:
                    penalty(layer)
                if advances:
                    advance(layer)
                layer.eval()(inputs())
                layer.train()
        assert len(caught) == len(expected)
        assert all(part in str(each.message) for part, each in zip(expected, caught, strict=True))
        assert "forwards" not in " ".join(layer.state_dict())


OF_DATA = pytest.mark.parametrize(
    "case", [case for case in CASES if case.counts or case.data], ids=lambda case: case.name
)


@OF_DATA
def test_a_penalty_of_data_needs_a_forward_with_gradients(case: Case) -> None:
    layer = case.made()
    with pytest.raises(RuntimeError, match="needs a training forward before it, got none: call the model first"):
        penalty(layer)
    layer.eval()(inputs())
    assert penalty(layer) == 0  # as where `fit` measures a program in evaluation mode
    with torch.no_grad():
        layer.train()(inputs())
        penalty(layer)
    if [*layer.parameters()]:
        with pytest.raises(RuntimeError, match="use checkpoint with use_reentrant=False"):
            penalty(layer)


@pytest.mark.parametrize("case", [case for case in CASES if case.counts], ids=lambda case: case.name)
def test_a_penalty_of_a_result_is_that_of_its_forward(case: Case) -> None:
    layer = case.made()
    first = layer(inputs())
    expected = layer.penalty()
    layer(inputs() + 1)
    assert torch.equal(layer.penalty(first), expected)
    assert not torch.equal(layer.penalty(), expected)


def test_a_penalty_of_data_is_zero_in_evaluation_before_any_training_forward() -> None:
    for own, x in ((layer.Codebook(6, 8), torch.randn(6)), (layer.Router(6, 4, 2), torch.randn(5, 6))):
        own.eval()
        result = own(x)
        assert own.penalty() == 0
        own.train()(x)
        assert own.eval().penalty() > 0
        if isinstance(own, layer.Codebook):
            assert own.penalty(result) == 0


def test_one_vector_is_quantised_in_training() -> None:
    assert layer.Codebook(6, 8)(torch.randn(6)).value.shape == (6,)
    assert layer.Levels((8, 5), entropy=1.0)(torch.randn(2)).value.shape == (2,)


@pytest.mark.parametrize(
    "call",
    [
        lambda scores: layer.Choose(2)(scores),
        lambda scores: layer.Choose(2).eval()(scores),
        lambda scores: layer.gumbel_top_k(scores, 2),
        lambda scores: layer.Permute(3)(scores.expand(3, 3)),
        lambda scores: layer.Levels((8, 5)).values(torch.tensor([40])),
    ],
)
def test_what_is_impossible_is_refused_with_a_sentence(call: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        call(torch.tensor([0.0, -torch.inf, -torch.inf]))
