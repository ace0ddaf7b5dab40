"""The bound is that of the library, on either path, batched and compiled."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from concretely.functional import bound as operation
from concretely.functional.bound import Terms
from concretely.functional.signal import Method, score_function_loss, signal_of
from tests.kernel import DEVICE, PATHS, assert_precise, kernel, on, opcheck

SIZES = [(1, 1, 1), (3, 2, 33), (1, 17, 5), (3, 1, 70), (2, 35, 1), (1, 3, 129)]
"""Members, samples and data points."""
INF, NAN = math.inf, math.nan
WEIGHTS = [[-INF, 0.0, 1.0], [0.0, -INF, -INF], [-INF] * 3, [NAN, 0.0, 1.0], [0.0, 1.0, NAN], [-INF, NAN, -INF]]
INFINITE = [[INF, 0.0, 1.0], [0.0, INF, -INF], [INF, INF, INF], [INF, NAN, 0.0], [-INF, -INF, INF]]


def true_bound(log_w: Tensor) -> Tensor:
    """The bound in float64."""
    return log_w.double().logsumexp(1) - math.log(log_w.shape[1])


def saved(by: Tensor, bound: Tensor) -> Tensor:
    """How far a gradient may be off that is the exponential of a log-weight less a saved bound, which was rounded."""
    return by.abs() * (torch.finfo(torch.float32).eps / 2) * bound.detach().abs().unsqueeze(1)


def bound(log_w: Tensor) -> Tensor:
    """The bound of every member."""
    return operation.bound(log_w, 1)


def loss(
    log_p: Terms, log_q: Terms, signal: Terms = (), baseline: Terms = (), *, averages: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of every member."""
    return operation.loss(log_p, log_q, signal, baseline, averages, 1)


def log_weights(*shape: int) -> Tensor:
    """Log-weights that differ by much."""
    return 10 * torch.randn(shape, device=DEVICE) - 100


@kernel
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_kernel_is_its_definition(shape: tuple[int, int, int]) -> None:
    log_w = log_weights(*shape)
    for given in (log_w, log_w[:1].expand_as(log_w), log_w.mT.contiguous().mT):
        wide = given.double().requires_grad_()
        truth = true_bound(wide)
        leaf = given.detach().requires_grad_()
        defined = bound(leaf)
        with on("fast", "bound"):
            found = bound(leaf)
        assert_precise(found.detach(), defined.detach(), truth.detach())
        by = torch.randn(shape[::2], device=DEVICE)
        ones = torch.ones((), device=DEVICE).expand_as(by)
        for one in (by, by[:1].expand_as(by), by.T.contiguous().T, ones):
            (true,) = torch.autograd.grad((one * truth).sum(), wide, retain_graph=True)
            with on("fast", "bound"):
                pairs = [torch.autograd.grad(each, leaf, one, retain_graph=True)[0] for each in (found, defined)]
            assert_precise(*pairs, true, saved(true, truth))


@PATHS
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_bound_is_that_of_the_library(shape: tuple[int, int, int], path: str) -> None:
    log_w = log_weights(*shape).requires_grad_()
    with on(path, "bound"):
        found = bound(log_w)
        (by,) = torch.autograd.grad(found.sum(), log_w)
    truth = true_bound(log_w)
    torch.testing.assert_close(found.double(), truth, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(by, torch.autograd.grad(truth.sum(), log_w)[0], rtol=1e-4, atol=1e-6)


@PATHS
def test_weights_that_are_no_numbers_are_treated_as_by_the_library(path: str) -> None:
    log_w = torch.tensor(WEIGHTS + INFINITE, device=DEVICE).T.unsqueeze(0).contiguous()
    with on(path, "bound"):
        for given in (log_w, log_w[:, :1], log_w.flip(1)):
            found, truth = bound(given), true_bound(given)
            torch.testing.assert_close(found.double(), truth, equal_nan=True)
    assert found.isneginf().any()
    assert found.isposinf().any()


@PATHS
def test_a_weight_of_zero_has_no_gradient(path: str) -> None:
    log_w = torch.tensor([[[-INF, 0.0], [0.0, 0.0], [1.0, -INF]]], device=DEVICE, requires_grad=True)
    with on(path, "bound"):
        (found,) = torch.autograd.grad(bound(log_w).sum(), log_w)
    torch.testing.assert_close(found, log_w.detach().softmax(1))


@PATHS
@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 2)], ids=str)
def test_nothing_has_a_loss(shape: tuple[int, int, int], path: str) -> None:
    added, subtracted = terms((2, 1), *shape)
    with on(path, "bound"):
        found, bounds, log_w = loss(added, subtracted)
        by = torch.autograd.grad(found.sum(), added)
    assert (found.shape, bounds.shape, log_w.shape) == (shape[:1], shape[::2], shape)
    assert [each.shape for each in by] == [shape, shape]


@PATHS
@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 2)], ids=str)
def test_nothing_has_a_bound(shape: tuple[int, int, int], path: str) -> None:
    log_w = log_weights(*shape).requires_grad_()
    with on(path, "bound"):
        found = bound(log_w)
        (by,) = torch.autograd.grad(found.sum(), log_w)
    assert found.shape == shape[::2]
    assert by.shape == shape


@PATHS
@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 4, 2)], ids=str)
def test_one_program_needs_no_axis_of_members(shape: tuple[int, ...], path: str) -> None:
    log_w, log_q = log_weights(*shape), log_weights(*shape)
    with on(path, "bound"):
        found = operation.loss([log_w], [log_q])
        members = loss([log_w.reshape(1, 3, -1)], [log_q.reshape(1, 3, -1)])
        torch.testing.assert_close(operation.bound(log_w - log_q), found[1])
    assert [each.shape for each in found] == [(), shape[1:], shape]
    for one, other in zip(found, members, strict=True):
        torch.testing.assert_close(one, other.view_as(one))


@PATHS
def test_a_batch_of_programs_is_a_loop_over_them(path: str) -> None:
    log_w = log_weights(4, 2, 5, 3).requires_grad_()
    with on(path, "bound"):
        alone = torch.stack([bound(each) for each in log_w])
        for together in (vmap(bound)(log_w), vmap(bound, 3)(log_w.movedim(0, 3))):
            torch.testing.assert_close(together, alone)
            by = [torch.autograd.grad(each.sin().sum(), log_w, retain_graph=True) for each in (together, alone)]
            torch.testing.assert_close(*by)


@PATHS
def test_gradients_can_be_differentiated(path: str) -> None:
    log_w = torch.randn(2, 5, 3, device=DEVICE, requires_grad=True)

    def curvature(found: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = torch.autograd.grad(found.sin().sum(), by, create_graph=True)
        return grad, torch.autograd.grad(grad.square().sum(), by)[0]

    with on(path, "bound"):
        found = curvature(bound(log_w), log_w)
    wide = log_w.detach().double().requires_grad_()
    for one, other in zip(found, curvature(true_bound(wide), wide), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.unchecked
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("path", ["plain", "fast"])
def test_the_bound_compiles(path: str) -> None:
    log_w = log_weights(2, 5, 3).requires_grad_()
    compiled = torch.compile(bound, fullgraph=True, backend="aot_eager")
    with on(path, "bound"):
        torch.testing.assert_close(*(torch.autograd.grad(each(log_w).sum(), log_w) for each in (bound, compiled)))


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)], ids=str)
def test_the_bound_is_an_operator_however_its_weights_lie(order: tuple[int, int, int], path: str) -> None:
    log_w = log_weights(4, 4, 4).permute(order)
    with on(path, "bound"):
        opcheck(operation.bound, (log_w.detach().requires_grad_(), 1))


TERMS = [(1, 1), (3, 2)]
"""How many terms are added to log-weights, and how many subtracted."""


def terms(counts: tuple[int, int], *shape: int) -> tuple[list[Tensor], list[Tensor]]:
    """Terms of log-weights, with gradients."""
    added, subtracted = ([log_weights(*shape).requires_grad_() for _ in range(count)] for count in counts)
    return added, subtracted


def by_terms(found: Tensor, added: list[Tensor], subtracted: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of all terms, of members that count differently."""
    weight = torch.arange(1, found.numel() + 1, device=DEVICE).view(found.shape)
    return torch.autograd.grad((found * weight).sum(), [*added, *subtracted], retain_graph=True)


@PATHS
@pytest.mark.parametrize("counts", TERMS, ids=str)
@pytest.mark.parametrize("shape", [*SIZES, (1, 2, 1500)], ids=str)
def test_the_loss_is_minus_the_mean_bound(shape: tuple[int, int, int], counts: tuple[int, int], path: str) -> None:
    added, subtracted = terms(counts, *shape)
    with on(path, "bound"):
        found, bounds, log_w = loss(added, subtracted)
        by = by_terms(found, added, subtracted)
    weights = sum(each.double() for each in added) - sum(each.double() for each in subtracted)
    truth = true_bound(weights)
    torch.testing.assert_close(log_w.double(), weights.detach(), rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(bounds.double(), truth.detach(), rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(found.double(), -truth.mean(1), rtol=1e-6, atol=1e-4)
    assert not bounds.requires_grad
    assert not log_w.requires_grad
    true = by_terms(-truth.mean(1), added, subtracted)
    torch.testing.assert_close(by, true, rtol=1e-3, atol=1e-6)


@kernel
@pytest.mark.parametrize("counts", TERMS, ids=str)
def test_the_kernel_of_the_loss_is_its_definition(counts: tuple[int, int]) -> None:
    shape = (3, 5, 33)
    added, subtracted = terms(counts, *shape)
    added[0] = added[0].detach()[:1].requires_grad_().expand(shape)  # members share it
    signals = [], [subtracted[0].detach()[:1].expand(shape), *(each.detach() for each in subtracted[1:])]
    for averages in (False, True):
        for signal in signals:
            wide = [[each.detach().double().requires_grad_() for each in side] for side in (added, subtracted)]
            truth = loss(*wide, [each.double() for each in signal], averages=averages)
            defined = loss(added, subtracted, signal, averages=averages)
            with on("fast", "bound"):
                found = loss(added, subtracted, signal, averages=averages)
            for one, other, true in zip(found, defined, truth, strict=True):
                assert_precise(one.detach(), other.detach(), true.detach())
            for by in (torch.randn(3, device=DEVICE), torch.ones(1, device=DEVICE).expand(3)):
                (one, other), true = (
                    [torch.autograd.grad(each[0], leaves, by.to(each[0]), retain_graph=True) for each in sides]
                    for leaves, sides in (([*added, *subtracted], (found, defined)), ([*wide[0], *wide[1]], (truth,)))
                )
                for each in zip(one, other, *true, strict=True):
                    assert_precise(*each, saved(each[2], truth[1]))


@PATHS
def test_losses_of_a_batch_of_programs_are_a_loop_over_them(path: str) -> None:
    added, subtracted = terms((2, 1), 4, 2, 5, 3)
    shared = log_weights(2, 5, 3).requires_grad_()

    def program(one: Tensor, two: Tensor, other: Tensor) -> Tensor:
        return loss([one, two, shared], [other])[0]

    with on(path, "bound"):
        alone = torch.stack([program(*each) for each in zip(*added, *subtracted, strict=True)])
        together = vmap(program)(*added, *subtracted)
        torch.testing.assert_close(together, alone)
        by = [by_terms(each, [*added, shared], subtracted) for each in (together, alone)]
    torch.testing.assert_close(*by)


@PATHS
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_members_have_any_number_of_axes_in_any_order(axis: int, path: str) -> None:
    shape = (2, 3, 4, 5)
    leaves = [log_weights(*shape).requires_grad_() for _ in range(4)]
    given = leaves[0], leaves[1].mT.contiguous().mT, leaves[2][:1].expand(shape), leaves[3]
    signal = log_weights(*shape).movedim(0, -1).contiguous().movedim(-1, 0)

    def outcome(call: Any, terms: Sequence[Tensor], *more: Any) -> tuple[Tensor, ...]:
        found = call(terms[:2], terms[2:], *more, axis)
        by = torch.linspace(1, 2, found[0].numel(), device=DEVICE).view_as(found[0])
        return *found, *torch.autograd.grad(found[0], leaves, by)

    for call, more in ((operation.loss, ([signal] * 2, [], False)), (score_function_loss, ("geometric", False))):
        with on(path, "bound"):
            found = outcome(call, given, *more)
        torch.testing.assert_close(found, outcome(call.definition, given, *more), rtol=1e-4, atol=1e-4)


@PATHS
def test_gradients_of_the_loss_can_be_batched(path: str) -> None:
    added, subtracted = terms((2, 1), 5, 3)
    with on(path, "bound"):
        for found, *_ in (operation.loss(added, subtracted), score_function_loss(added, subtracted, "reinforce")):
            by, leaves = torch.randn(4, device=DEVICE), [*added, *subtracted]
            pull = partial(torch.autograd.grad, found, leaves, retain_graph=True)
            alone = [pull(grad_outputs=each) for each in by]
            together = vmap(lambda each, pull=pull: pull(grad_outputs=each))(by)
            torch.testing.assert_close(together, tuple(map(torch.stack, zip(*alone, strict=True))))


@PATHS
def test_gradients_of_the_loss_can_be_differentiated(path: str) -> None:
    added, subtracted = ([torch.randn(2, 5, 3, device=DEVICE, requires_grad=True)] for _ in range(2))

    def curvature(found: Tensor) -> tuple[Tensor, ...]:
        grads = torch.autograd.grad(found.sin().sum(), [*added, *subtracted], create_graph=True)
        return torch.autograd.grad(sum(each.pow(3).sum() for each in grads), [*added, *subtracted])

    with on(path, "bound"):
        found = curvature(loss(added, subtracted)[0])
    true = curvature(-true_bound(added[0] - subtracted[0]).mean(1))
    torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-5)


@pytest.mark.unchecked
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("path", ["plain", "fast"])
def test_the_loss_compiles(path: str) -> None:
    added, subtracted = terms((2, 1), 2, 5, 3)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    with on(path, "bound"):
        found = [by_terms(each(added, subtracted)[0], added, subtracted) for each in (loss, compiled)]
    torch.testing.assert_close(*found)


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
def test_the_loss_is_an_operator(path: str) -> None:
    added, subtracted = terms((2, 1), 3, 4, 5)
    with on(path, "bound"):
        signal = [log_weights(3, 4, 5)]
        for given in ((), signal):
            opcheck(operation.loss, (added, subtracted, list(given), [], False, 1))
        opcheck(operation.loss, (added, subtracted, signal, subtracted, True, 1))


@PATHS
@pytest.mark.parametrize("averages", [False, True])
def test_a_signal_multiplies_gradients_and_changes_nothing_else(averages: bool, path: str) -> None:
    shape = (2, 5, 9)
    added, subtracted = terms((2, 2), *shape)
    signal = [torch.randn(shape, device=DEVICE) for _ in subtracted]
    baseline = [torch.randn(shape, device=DEVICE, requires_grad=True) for _ in subtracted] if averages else []
    leaves = [*added, *subtracted, *baseline]
    with on(path, "bound"):
        found, bounds, log_w = loss(added, subtracted, signal, baseline, averages=averages)
        by = by_terms(found, added, [*subtracted, *baseline])
    held = [each.detach() if averages else each for each in subtracted]
    weights = sum(each.double() for each in added) - sum(each.double() for each in held)
    value = weights.mean(1) if averages else true_bound(weights)
    pairs = [*zip(signal, subtracted, strict=True), *zip(signal, baseline, strict=False)]
    score = sum((own * each.double()).sum(1) for own, each in pairs)
    truth = -(value + score - score.detach()).mean(1)
    torch.testing.assert_close(found.double(), truth, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(bounds.double(), value.detach(), rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(log_w.double(), weights.detach(), rtol=1e-6, atol=1e-4)
    true = by_terms(truth, leaves, [])
    torch.testing.assert_close(by, true, rtol=1e-3, atol=1e-6)


METHODS: list[tuple[Method, bool]] = [
    ("reinforce", False),
    ("reinforce", True),
    ("leave-one-out", True),
    ("geometric", False),
    ("arithmetic", False),
]
"""How signals follow from log-weights, and whether the objective is the mean of these."""


@kernel
@pytest.mark.parametrize(("method", "averages"), METHODS)
@pytest.mark.parametrize("shape", [(3, 2, 33), (1, 17, 5), (2, 35, 1), (1, 3, 1500)], ids=str)
def test_the_kernel_of_a_score_function_loss_is_its_definition(
    shape: tuple[int, int, int], method: Method, averages: bool
) -> None:
    added, subtracted = terms((2, 2), *shape)
    added[0] = added[0].detach()[:1].requires_grad_().expand(shape)  # members share it
    wide = [[each.detach().double().requires_grad_() for each in side] for side in (added, subtracted)]
    by = torch.randn(shape[0], device=DEVICE)

    def outcome(call: Any, log_p: Terms, log_q: Terms) -> tuple[Tensor, ...]:
        found = call(log_p, log_q, method, averages, 1)
        return *found, *torch.autograd.grad(found[0], [*log_p, *log_q], by.to(found[0]))

    defined, truth = (outcome(score_function_loss.definition, *each) for each in ((added, subtracted), wide))
    with on("fast", "bound"):
        found = outcome(score_function_loss, added, subtracted)
    for one, other, true in zip(found, defined, truth, strict=True):
        torch.testing.assert_close(one.double(), true, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@PATHS
@pytest.mark.parametrize(("method", "averages"), METHODS)
def test_a_score_function_loss_is_the_loss_with_the_signal_of_its_weights(
    method: Method, averages: bool, path: str
) -> None:
    added, subtracted = terms((2, 2), 2, 5, 9)
    with on(path, "bound"):
        *found, signal = score_function_loss(added, subtracted, method, averages, 1)
        expected = loss(added, subtracted, [signal] * 2, averages=averages)
        by = [by_terms(each[0], added, subtracted) for each in (found, expected)]
    torch.testing.assert_close(tuple(found), expected)
    torch.testing.assert_close(*by)
    objective = operation.average if averages else operation.bound
    torch.testing.assert_close(signal, signal_of(found[2], method, objective, 1), rtol=1e-5, atol=2e-5)
    assert not any(each.requires_grad for each in (*found[1:], signal))


@PATHS
@pytest.mark.parametrize(("method", "averages"), METHODS)
def test_score_function_losses_of_a_batch_of_programs_are_a_loop_over_them(
    method: Method, averages: bool, path: str
) -> None:
    added, subtracted = terms((1, 1), 4, 5, 3)

    def program(one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return score_function_loss([one], [other], method, averages)

    with on(path, "bound", "vimco"):
        pairs = zip(*added, *subtracted, strict=True)
        alone = [torch.stack(each) for each in zip(*(program(*each) for each in pairs), strict=True)]
        together = vmap(program)(*added, *subtracted)
        torch.testing.assert_close(together, tuple(alone))
        by = [by_terms(each[0], added, subtracted) for each in (together, alone)]
    torch.testing.assert_close(*by)


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize(("method", "averages"), METHODS)
def test_a_score_function_loss_is_an_operator(method: Method, averages: bool, path: str) -> None:
    added, subtracted = terms((2, 1), 3, 4, 5)
    with on(path, "bound"):
        opcheck(score_function_loss, (added, subtracted, method, averages, 1))
