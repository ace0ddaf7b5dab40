"""Variables without data: on the meta device, with fake tensors, and in `torch.jit.trace`."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.cases import CONTINUOUS, EDGE, MASSES, Case, each

pytestmark = [
    EDGE,
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning"),
]


def options(case: Case) -> tuple[float, ...]:
    """The temperature, for variables with one."""
    return () if case in MASSES else (0.5,)


@each(*MASSES, *CONTINUOUS)
def test_variable_on_the_meta_device_has_shapes(case: Case) -> None:
    real = case.build(case.logits(case.determined, batch=(3,)), *options(case))
    variable = case.build(case.logits(case.determined, batch=(3,)).to("meta"), *options(case))
    value = variable.sample((5,))
    assert value.is_meta
    assert value.shape == (5, 3, *real.event_shape)
    assert variable.log_prob(value).shape == (5, 3)
    if case not in MASSES:
        value, log_prob = variable.rsample_and_log_prob((5,))
        assert value.is_meta
        assert log_prob.is_meta
    assert repr(variable) == repr(real)


@each(*MASSES, *CONTINUOUS)
def test_variable_of_fake_tensors_has_shapes_and_a_text(case: Case) -> None:
    for batch in ((), (3,)):
        logits = case.logits(4, batch=batch)
        with FakeTensorMode(allow_non_fake_inputs=False) as mode:
            variable = case.build(mode.from_tensor(logits), *options(case))
            assert variable.sample().shape == (*batch, *variable.event_shape)
        text = repr(variable)
        assert text.startswith(f"{type(variable).__name__}(")
        assert str(tuple(logits.shape)) in text


@pytest.mark.unchecked
@each(*MASSES, *CONTINUOUS)
def test_traced_draw_draws_anew(case: Case) -> None:
    for n in {case.determined, 2, 4} if case.has_categories else {2}:
        logits = case.logits(n, batch=(50,))
        traced = torch.jit.trace(
            lambda logits: case.build(logits, *options(case)).sample(), (logits,), check_trace=False
        )
        first, second = traced(logits), traced(logits)
        variable = case.build(logits, *options(case))
        assert first.shape == second.shape == variable.sample().shape
        assert not torch.equal(first, second)
        assert variable.support.check(first).all()


@pytest.mark.unchecked
@each(*MASSES)
def test_traced_draw_of_a_single_state_draws_anew(case: Case) -> None:
    logits = torch.zeros_like(case.logits(4))
    traced = torch.jit.trace(lambda logits: case.build(logits).sample(), (logits,), check_trace=False)
    draws = torch.stack([traced(logits) for _ in range(64)])
    assert len(draws.reshape(64, -1).unique(dim=0)) == case.build(logits).states
