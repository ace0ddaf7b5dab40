"""Variables work under torch.compile, vmap, func.grad, autocast and a generator."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Never
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch._subclasses.fake_tensor import FakeTensorMode

import concretely as c
from concretely.kernel.library import NAMESPACE
from tests.budget import assert_frequency, assert_mean
from tests.cases import CONTINUOUS, DEVICES, EDGE, GUMBEL, LOG_SPACE, MASSES, NODES, RELAXATIONS, Case, each, exhaustive

pytestmark = EDGE

OWN = ("BinaryConcrete", "Concrete", "BinaryCircuit-normal")
TRACED = [
    GUMBEL,
    *(case for case in RELAXATIONS if case.name in OWN),
    *exhaustive(*NODES, *(case for case in RELAXATIONS if case.name not in OWN)),
]
"""Variables to compile: relaxations draw their nodes; others have other noise, or squash once more."""


def drawn(case: Case, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Everything that a training step asks of a variable."""
    variable = case.build(logits, 0.5)
    value, log_prob = variable.rsample_and_log_prob((3,))
    return value, log_prob, variable.log_prob(value)


@pytest.mark.unchecked
@pytest.mark.parametrize("case", TRACED, ids=lambda case: case.name)
def test_variable_is_one_graph_under_compile(case: Case) -> None:
    logits = case.logits(case.determined, batch=(5,), dtype=torch.float32).requires_grad_()
    compiled = torch.compile(lambda logits: drawn(case, logits), fullgraph=True, backend="aot_eager")
    value, log_prob, scored = compiled(logits)
    assert case.build(logits, 0.5).support.check(value).all()
    torch.testing.assert_close(scored, case.build(logits, 0.5).log_prob(value), rtol=1e-4, atol=1e-4)
    if case not in RELAXATIONS:  # a squashed value was rounded since it was drawn
        torch.testing.assert_close(log_prob, scored, rtol=1e-4, atol=1e-4)
    (gradient,) = torch.autograd.grad(value.sum() + scored.sum(), logits)
    assert gradient.isfinite().all()


@pytest.mark.unchecked
@pytest.mark.parametrize("case", TRACED[:3], ids=lambda case: case.name)
def test_variable_is_one_graph_in_float16(case: Case) -> None:
    logits = case.logits(case.determined, batch=(5,), dtype=torch.float16).requires_grad_()
    value, log_prob, scored = torch.compile(partial(drawn, case), fullgraph=True, backend="aot_eager")(logits)
    assert {value.dtype, log_prob.dtype, scored.dtype} == {torch.float16}
    assert torch.autograd.grad(value.sum() + scored.sum(), logits)[0].isfinite().all()


@pytest.mark.unchecked
@each(*MASSES)
def test_mass_is_one_graph_under_compile(case: Case) -> None:
    logits = case.logits(4, batch=(5,), dtype=torch.float32)
    compiled = torch.compile(
        lambda logits: case.build(logits).sample_and_log_prob((3,)), fullgraph=True, backend="aot_eager"
    )
    value, log_prob = compiled(logits)
    torch.testing.assert_close(case.build(logits).log_prob(value), log_prob)


@pytest.mark.unchecked
@pytest.mark.parametrize("device", DEVICES)
def test_compiled_program_draws_the_right_law(device: str) -> None:
    logits = torch.tensor([7.0, *[0.0] * 1023], device=device)
    probability = c.OneHotCategorical(logits=logits.double()).probs[0].item()
    compiled = torch.compile(
        lambda logits: c.ExpConcrete(logits=logits, temperature=0.5).rsample_and_log_prob((4000,)), fullgraph=True
    )
    value, log_prob = compiled(logits)
    assert_frequency(int((value.argmax(-1) == 0).sum()), of=4000, probability=probability)
    assert_mean(-log_prob, c.ExpConcrete(logits=logits, temperature=0.5).entropy().item())
    torch.testing.assert_close(
        c.ExpConcrete(logits=logits, temperature=0.5).log_prob(value), log_prob, rtol=1e-4, atol=1e-4
    )


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "draw",
    [
        lambda logits: c.Logistic(logits=logits, temperature=0.5).rsample_and_log_prob(),
        lambda logits: c.ExpConcrete(logits=logits, temperature=0.5).rsample_and_log_prob(),
        lambda logits: c.BinaryConcrete(logits=logits, temperature=0.5).rsample(),
        lambda logits: c.Bernoulli(logits=logits).sample_and_log_prob(),
        lambda logits: c.OneHotCategorical(logits=logits).sample_and_log_prob(),
        lambda logits: c.Logistic(logits=logits, temperature=0.5).log_prob(logits),
        lambda logits: c.gumbel_softmax(logits, tau=0.5),
    ],
    ids=["logistic", "exp-concrete", "binary-concrete", "bernoulli", "one-hot", "score", "gumbel-softmax"],
)
def test_a_program_compiled_for_a_gpu_has_nothing_that_its_compiler_cannot_fuse(draw: Callable[[Tensor], Any]) -> None:
    called = list[str]()

    def keep(graph: torch.fx.GraphModule, inputs: object) -> Never:
        called.extend(str(node.target) for node in graph.graph.nodes)
        raise NotImplementedError("nothing runs here")

    with FakeTensorMode():
        logits = torch.empty(4, 5, device="cuda")
    with mock.patch("concretely.kernel.operator._finds_triton", return_value=True), suppress(BackendCompilerFailed):
        torch.compile(draw, fullgraph=True, backend=keep)(logits)
    assert len(called) > 2
    assert not [name for name in called if NAMESPACE in name]


@pytest.mark.unchecked
def test_compiled_program_takes_changing_shapes_and_temperatures() -> None:
    compiled = torch.compile(
        lambda logits, temperature: c.Logistic(logits=logits, temperature=temperature).rsample(),
        fullgraph=True,
        backend="aot_eager",
    )
    for size, temperature in ((4, 0.5), (5, 0.6)):
        assert compiled(torch.zeros(size), temperature).shape == (size,)
    for size in (4, 5):
        assert compiled(torch.zeros(size), torch.tensor(0.5)).shape == (size,)


@each(*CONTINUOUS)
def test_vmap_is_a_loop(case: Case) -> None:
    logits = case.logits(case.determined, batch=(6, 5))
    noise = case.build(logits, 0.5).noise()

    def program(logits: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        variable = case.build(logits, 0.5)
        value = variable.push(noise)
        return value, variable.log_prob(value)

    value, log_prob = torch.func.vmap(program)(logits, noise)
    for row in range(6):
        torch.testing.assert_close((value[row], log_prob[row]), program(logits[row], noise[row]))


@each(*CONTINUOUS, *MASSES)
def test_a_batch_of_gradients_is_a_loop(case: Case) -> None:
    logits = case.logits(case.determined, batch=(5,)).requires_grad_()
    if case in MASSES:
        variable = case.build(logits)
        results = [variable.log_prob(variable.sample())]
    else:
        results = [result for result in drawn(case, logits) if result.requires_grad]
    for result in results:
        weights = torch.randn(3, *result.shape, dtype=result.dtype)
        (batch,) = torch.autograd.grad(result, logits, weights, is_grads_batched=True, retain_graph=True)
        rows = [torch.autograd.grad(result, logits, own, retain_graph=True)[0] for own in weights]
        torch.testing.assert_close(batch, torch.stack(rows))


@each(*CONTINUOUS)
def test_vmap_draws_differ_or_not_as_asked(case: Case) -> None:
    logits = case.logits(case.determined, batch=(5,))
    logits = logits.expand(6, *logits.shape)
    for randomness, distinct in (("different", 6), ("same", 1)):
        value = torch.func.vmap(lambda logits: drawn(case, logits)[0], randomness=randomness)(logits)
        # the last entries of a tensor, which do not fill a vector of the processor, may be rounded otherwise
        assert len(value.flatten(1).round(decimals=12).unique(dim=0)) == distinct


@each(*CONTINUOUS)
def test_functional_gradient_is_that_of_autograd(case: Case) -> None:
    logits = case.logits(case.determined, batch=(5,)).requires_grad_()
    noise = case.build(logits, 0.5).noise((3,)).detach()

    def loss(logits: torch.Tensor) -> torch.Tensor:
        variable = case.build(logits, 0.5)
        value = variable.push(noise)
        return value.square().sum() + variable.log_prob(value).square().sum()

    (expected,) = torch.autograd.grad(loss(logits), logits)
    torch.testing.assert_close(torch.func.grad(loss)(logits.detach()), expected)


@each(*LOG_SPACE)
def test_forward_and_reverse_derivatives_agree(case: Case) -> None:
    logits = case.logits(4, batch=(5,), dtype=torch.float32)
    noise = case.build(logits, 0.5).noise()

    def score(logits: torch.Tensor) -> torch.Tensor:
        return case.build(0.5 * logits, 0.5).log_prob(case.build(logits, 0.5).push(noise)).sum()

    torch.testing.assert_close(torch.func.jacfwd(score)(logits), torch.func.grad(score)(logits))


@each(*CONTINUOUS)
def test_autocast_changes_nothing(case: Case) -> None:
    logits = case.logits(case.determined, batch=(5,), dtype=torch.float32)
    variable = case.build(logits, 0.5)
    noise = variable.noise()
    plain = variable.push(noise)
    score = variable.log_prob(plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = variable.push(noise)
        assert torch.equal(variable.log_prob(cast), score)
    assert torch.equal(cast, plain)


@each(*MASSES, *CONTINUOUS)
def test_generator_repeats_a_draw_and_leaves_the_global_one_alone(case: Case) -> None:
    options = () if case in MASSES else (0.5,)
    variable = case.build(case.logits(4, batch=(5,)), *options)
    state = torch.get_rng_state()
    first, second = (variable.sample((9,), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, variable.sample((9,), generator=torch.Generator().manual_seed(4)))
    torch.manual_seed(5)
    drawn = variable.sample((9,))
    torch.manual_seed(5)
    assert torch.equal(drawn, variable.sample((9,)))
