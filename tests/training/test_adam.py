"""Adam is torch's own on either path, each member has its own step size, and the guard stops members one by one."""

import math

import pytest
import torch
from torch import Tensor

from concretely.training.optimizer import (
    ParameterState,
    StepLog,
    StepSizes,
    _fused_adam_,
    _plain_adam_,
    adam_,
    corrections,
    guard_,
    muon_,
)
from tests.kernel import DEVICE, PATHS, assert_precise, kernel, on

SHAPES = [(7,), (5, 9), (1,), (1_100,), (3, 2, 4)]
MEMBERS = pytest.mark.parametrize("members", [1, 3])
DECAY = 0.1


def sizes_of(members: int, step: int) -> StepSizes:
    """Rates and decays that differ between members."""
    rate = torch.linspace(3e-3, 1e-3, members, dtype=torch.float64)
    decay = torch.linspace(DECAY, 0, members, dtype=torch.float64)
    mean, spread = (torch.full_like(rate, each) for each in corrections(step + 1))
    return StepSizes(*(each.to(DEVICE) for each in (rate, decay, mean, spread, torch.full((members,), step))))


def state_of(parameter: Tensor) -> ParameterState:
    """A parameter that has not moved yet."""
    return ParameterState(parameter.clone(), torch.zeros_like(parameter), torch.zeros_like(parameter))


def true_adam(parameter: Tensor, gradients: list[Tensor], *, decays: bool) -> Tensor:
    """Where every member gets by torch's optimiser in float64."""
    ends = []
    sizes = sizes_of(len(parameter), 0)
    for k, start in enumerate(parameter.double()):
        leaf = start.clone().requires_grad_()
        decay = sizes.decay[k].item() if decays else 0
        optimiser = torch.optim.Adam([leaf], lr=sizes.rate[k].item(), weight_decay=decay)
        for gradient in gradients:
            leaf.grad = gradient[k].double()
            optimiser.step()
        ends.append(leaf.detach())
    return torch.stack(ends)


def moved(members: int, path: str) -> list[tuple[Tensor, Tensor]]:
    """Where parameters get in a few steps, and where they should."""
    starts = [torch.randn(members, *shape, device=DEVICE) for shape in SHAPES]
    slopes = [[10**k * torch.randn_like(start) for start in starts] for k in (0, -2, 1, -4)]
    slopes[1][1] = slopes[1][1].mT.contiguous().mT
    slopes[2][0] = slopes[2][0][:1].expand_as(starts[0])
    slopes[3][1] = torch.ones((), device=DEVICE).expand_as(starts[1])
    decays = [len(shape) > 1 for shape in SHAPES]
    states = [state_of(start) for start in starts]
    with on(path, "adam"):
        for k, each in enumerate(slopes):
            adam_(states, each, sizes_of(members, k), decays=decays)
    ends = [
        true_adam(start, list(each), decays=decay)
        for start, each, decay in zip(starts, zip(*slopes, strict=True), decays, strict=True)
    ]
    return [(state.parameter, end) for state, end in zip(states, ends, strict=True)]


@PATHS
@MEMBERS
def test_steps_are_those_of_torch(members: int, path: str) -> None:
    for found, truth in moved(members, path):
        torch.testing.assert_close(found.double(), truth, rtol=1e-6, atol=1e-6)


@kernel
@MEMBERS
def test_kernel_is_its_definition(members: int) -> None:
    torch.manual_seed(0)
    defined = moved(members, "plain")
    torch.manual_seed(0)
    for (found, truth), (other, _) in zip(moved(members, "fast"), defined, strict=True):
        assert_precise(found, other, truth)


@PATHS
def test_a_member_with_a_learning_rate_of_zero_does_not_move_whatever_its_gradient(path: str) -> None:
    states = [ParameterState(*torch.rand(3, 3, *shape, device=DEVICE)) for shape in ((2,), (5, 7))]
    before = [ParameterState(*(tensor.clone() for tensor in state)) for state in states]
    slopes = [torch.randn_like(state.parameter) for state in states]
    for slope in slopes:
        slope[1] = math.nan
    slopes[1][1] = math.inf
    sizes = sizes_of(3, 4)
    sizes = sizes._replace(rate=sizes.rate * torch.tensor([1.0, 0.0, 1.0], device=DEVICE))
    with on(path, "adam"):
        adam_(states, slopes, sizes, decays=[True, False])
    for state, old in zip(states, before, strict=True):
        for tensor, was in zip(state, old, strict=True):
            assert torch.equal(tensor[1], was[1])
            assert tensor.isfinite().all()
            assert (tensor[::2] != was[::2]).all()


def log_of(members: int) -> StepLog:
    """The log of four steps, all finite."""
    sums = torch.tensor([-3.0, 4.0, 5.0, 6.0], dtype=torch.float64).repeat(members, 1)
    return StepLog(sums.to(DEVICE), torch.full((members,), -1, device=DEVICE))


def tensors_of(members: int) -> list[Tensor]:
    """Tensors that end within blocks and fill them, one in pieces and one that members share."""
    shapes = [(1,), (3, 700), (1_024,), (2,)]
    first, second, third, last = (torch.randn(members, *shape, device=DEVICE) for shape in shapes)
    return [first, second.mT.contiguous().mT, third, last[:1].expand_as(last)]


@PATHS
@MEMBERS
def test_minus_losses_are_logged_and_finite_members_go_on(members: int, path: str) -> None:
    log, sizes, loss = log_of(members), sizes_of(members, 4), torch.randn(members, device=DEVICE)
    with on(path, "adam"):
        found = guard_(log, tensors_of(members), loss, sizes)
        for one, other in zip(found, sizes, strict=True):
            assert torch.equal(one, other)
        guard_(log, tensors_of(members), loss[:1].expand_as(loss), sizes_of(members, 5))
    expected = log_of(members).sums
    expected[:, 0] -= loss.double() + loss[0].double()
    expected[:, 1] += 2
    torch.testing.assert_close(log.sums, expected)
    assert (log.first_nonfinite == -1).all()


PLACES = [(0, 0), (1, 0), (1, 1_023), (1, 1_024), (1, 2_099), (2, 0), (2, 1_023), (3, 1)]
"""A tensor and an entry of it: the ends of tensors and of blocks."""


@PATHS
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_what_is_not_finite_is_found_wherever_it_is(place: tuple[int, int], path: str) -> None:
    which, entry = place
    sizes = sizes_of(3, 7)
    with on(path, "adam"):
        for value in (math.nan, math.inf, -math.inf):
            log, tensors = log_of(3), [each.contiguous() for each in tensors_of(3)]
            tensors[which].view(3, -1)[1, entry] = value
            found = guard_(log, tensors, torch.zeros(3, device=DEVICE), sizes)
            assert log.first_nonfinite.tolist() == [-1, 7, -1]
            assert found.rate.tolist() == [sizes.rate[0].item(), 0, sizes.rate[2].item()]


@PATHS
def test_the_first_step_that_is_not_finite_is_kept_and_the_other_members_go_on(path: str) -> None:
    log, sizes, loss = log_of(3), sizes_of(3, 0), torch.tensor([1.0, 3.0, 2.0], device=DEVICE)
    rates = []
    with on(path, "adam"):
        for step, faulty in enumerate(([], [1], [], [0, 1], [])):
            tensors = [torch.zeros(3, 5, device=DEVICE), torch.zeros(3, 2, 3, device=DEVICE)]
            tensors[step % 2][faulty] = math.nan
            rates.append(guard_(log, tensors, loss, sizes_of(3, step)).rate.tolist())
    assert log.first_nonfinite.tolist() == [3, 1, -1]
    one, two, three = sizes.rate.tolist()
    assert rates == [[one, two, three], [one, 0, three], [one, 0, three], [0, 0, three], [0, 0, three]]
    assert log.sums[:, :2].tolist() == [[-8, 9], [-18, 9], [-13, 9]]
    assert torch.equal(log.sums[:, 2:], log_of(3).sums[:, 2:])


@PATHS
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_its_member(value: float, path: str) -> None:
    log, loss = log_of(3), torch.tensor([1.0, value, 2.0], device=DEVICE)
    with on(path, "adam"):
        found = guard_(log, [torch.zeros(3, 5, device=DEVICE)], loss, sizes_of(3, 7))
    assert log.first_nonfinite.tolist() == [-1, 7, -1]
    assert (found.rate != 0).tolist() == [True, False, True]
    assert log.sums[::2, 0].tolist() == [-4, -5]


@PATHS
def test_the_given_step_sizes_are_left_as_they_are(path: str) -> None:
    sizes, before = sizes_of(2, 0), sizes_of(2, 0)
    with on(path, "adam"):
        slopes = [torch.full((2, 3), math.nan, device=DEVICE)]
        guard_(log_of(2), slopes, torch.zeros(2, device=DEVICE), sizes)
    for one, other in zip(sizes, before, strict=True):
        assert torch.equal(one, other)


@PATHS
def test_a_step_of_a_member_that_is_stopped_moves_nothing(path: str) -> None:
    start = torch.randn(2, 5, device=DEVICE)
    state, slope = state_of(start), torch.randn(2, 5, device=DEVICE)
    slope[0, 3] = math.inf
    with on(path, "adam"):
        sizes = guard_(log_of(2), [slope], torch.zeros(2, device=DEVICE), sizes_of(2, 0))
        adam_([state], [slope], sizes, decays=[True])
    assert torch.equal(state.parameter[0], start[0])
    assert (state.parameter[1] != start[1]).all()


@MEMBERS
def test_steps_without_the_host_are_the_fused_ones(members: int) -> None:
    starts = [torch.randn(members, *shape) for shape in SHAPES]
    decays = [len(shape) > 1 for shape in SHAPES]
    plain, fused = ([state_of(start) for start in starts] for _ in range(2))
    for step in range(5):
        slopes = [torch.randn_like(start) for start in starts]
        sizes = StepSizes(*(each.cpu() for each in sizes_of(members, step)))
        if step == 2:  # the last member rests
            sizes.rate[-1] = 0
            slopes[1][-1] = math.nan
        _plain_adam_(plain, slopes, sizes, decays)
        _fused_adam_(fused, slopes, sizes, decays)
    torch.testing.assert_close(plain, fused, rtol=1e-5, atol=1e-6)


def test_definitions_read_nothing_on_the_host() -> None:
    states = [state_of(torch.empty(2, *shape, device="meta")) for shape in ((3, 5), (5, 3))]
    slopes = [torch.empty_like(state.parameter) for state in states]
    log, sizes = (type(each)(*(part.to("meta") for part in each)) for each in (log_of(2), sizes_of(2, 3)))
    sizes = guard_(log, slopes, torch.empty(2, device="meta"), sizes)  # a read of what has no content is an error
    adam_(states, slopes, sizes, decays=[True, False])
    muon_(states, slopes, sizes)
