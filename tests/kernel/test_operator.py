"""A batch of programs is an axis of members to operators, and what lies in one piece is not copied."""

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from concretely.kernel.bound import bound
from concretely.kernel.operator import NAMESPACE, Operator, attempted, has_triton, is_fast, launching, operator, rows


@pytest.fixture(scope="module")
def scaled() -> object:
    """An operator with two results, and an argument that is no tensor; it takes note of what it is given."""

    @operator("test_scaled")
    def scaled(x: Tensor, y: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        seen.append((x, y))
        return factor * x * y[:, None], y.clone()

    @scaled.register_fake
    def _(x: Tensor, y: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), torch.empty_like(y)

    seen: list[tuple[Tensor, Tensor]] = []
    scaled.seen = seen
    return scaled


def test_there_is_no_fast_path_on_a_cpu() -> None:
    assert not is_fast(torch.zeros(1))
    assert has_triton() in (True, False)


def test_operators_have_names_of_their_own() -> None:
    assert bound(torch.zeros(1, 2, 3)).shape == (1, 3)
    assert hasattr(torch.ops, NAMESPACE)
    assert torch.ops.concretely.bound(torch.zeros(1, 2, 3)).shape == (1, 3)


@pytest.mark.parametrize("dims", [(0, 0, None), (2, 1, None), (1, None, None), (None, 0, None)], ids=str)
@pytest.mark.parametrize("members", [1, 3])
def test_a_batch_runs_once_as_so_many_members(scaled: object, dims: tuple[int | None, ...], members: int) -> None:
    given = torch.randn(4, members, 5), torch.randn(4, members)
    moved = [each[0] if dim is None else each.movedim(0, dim) for each, dim in zip(given, dims[:2], strict=True)]
    scaled.seen.clear()
    found = vmap(scaled, dims)(*moved, 2.0)
    ((x, y),) = scaled.seen
    assert (len(x), len(y)) == (4 * members, 4 * members)
    for k in range(4):
        alone = scaled(*(each[0 if dim is None else k] for each, dim in zip(given, dims[:2], strict=True)), 2.0)
        for one, other in zip(found, alone, strict=True):
            assert torch.equal(one[k], other)


def test_batches_nest(scaled: object) -> None:
    x, y = torch.randn(2, 3, 1, 5), torch.randn(3, 1)
    found = vmap(vmap(scaled, (0, 0, None)), (0, None, None))(x, y, 2.0)[0]
    assert torch.equal(found, 2 * x * y[..., None])


def test_what_one_member_shares_with_a_batch_is_not_copied(scaled: object) -> None:
    shared = torch.randn(1, 5)
    scaled.seen.clear()
    vmap(scaled, (None, 0, None))(shared, torch.randn(4, 1), 2.0)
    ((x, _),) = scaled.seen
    assert x.stride(0) == 0
    assert x.data_ptr() == shared.data_ptr()


def test_rows_are_copied_only_where_a_member_is_in_pieces() -> None:
    tensor = torch.randn(3, 4, 5)
    for whole in (tensor, tensor[:1].expand(3, 4, 5), tensor[::2], tensor[:0], tensor[:, :0]):
        found = rows(whole)
        assert torch.equal(found, whole)
        assert found.data_ptr() == whole.data_ptr()
    for pieces in (tensor.mT, tensor[..., ::2], tensor[:, :1].expand(3, 4, 5), tensor[..., :1].expand(3, 4, 5)):
        found = rows(pieces)
        assert torch.equal(found, pieces)
        assert found[0].is_contiguous()


def test_an_attempt_fails_only_where_operators_cannot_be_differentiated() -> None:
    log_w = torch.randn(1, 2, 3)
    outcomes = []

    def run(log_w: Tensor) -> Tensor:
        found = attempted(lambda: bound(log_w))
        outcomes.append(found is not None)
        return log_w.sum() if found is None else found.sum()

    run(log_w)
    run(log_w.clone().requires_grad_()).backward()
    vmap(run)(log_w.unsqueeze(0))
    assert outcomes == [True, True, True]
    grad(run)(log_w)
    assert outcomes == [True, True, True, False]


def test_an_attempt_fails_in_forward_mode() -> None:
    log_w = torch.randn(1, 2, 3)
    outcomes = []
    jvp(lambda log_w: (outcomes.append(attempted(lambda: bound(log_w))), log_w)[1], (log_w,), (log_w,))
    assert outcomes == [None]


def test_an_attempt_hides_no_other_error() -> None:
    def fail() -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        attempted(fail)


class Seen(TorchDispatchMode):
    """Takes note of what passes torch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def doubled() -> Operator:
    """An operator with a gradient, of one of its results; the other has none."""

    @operator("test_doubled")
    def doubled(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return factor * x, x.detach().clone()

    @doubled.register_fake
    def _(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), torch.empty_like(x)

    def keep(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        ctx.factor = inputs[1]
        ctx.mark_non_differentiable(output[1])

    doubled.register_autograd(lambda ctx, by, _: (ctx.factor * by, None), setup_context=keep)
    return doubled


def test_a_plain_call_is_what_torch_makes_of_it(doubled: Operator) -> None:
    x = torch.randn(3, 2, requires_grad=True)
    calls = doubled, doubled.registered
    for found, other in (call(x, 2.0) for call in calls):
        assert torch.equal(found, 2 * x)
        assert not other.requires_grad
        (by,) = torch.autograd.grad(found.sin().sum(), x, create_graph=True)
        torch.testing.assert_close(by, 2 * (2 * x).cos())
        torch.testing.assert_close(torch.autograd.grad(by.sum(), x)[0], -4 * (2 * x).sin())
    with torch.no_grad():
        assert not doubled(x, 2.0)[0].requires_grad


def test_an_operator_without_a_gradient_says_so(scaled: Any) -> None:
    given = torch.randn(3, 2, requires_grad=True), torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="register_autograd"):
        scaled(*given, 2.0)[0].sum().backward()


def test_whoever_looks_on_sees_an_operator(doubled: Operator) -> None:
    x = torch.randn(3, 2)
    with Seen() as seen:
        doubled(x, 2.0)
    assert seen.names == ["concretely.test_doubled.default"]
    traced = make_fx(lambda x: doubled(x, 2.0)[0])(x)
    assert "concretely.test_doubled" in traced.code
    found = torch.compile(lambda x: doubled(x, 2.0)[0], fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(found, 2 * x)
    assert torch.equal(vmap(doubled, (0, None))(x.unsqueeze(-1), 2.0)[0].squeeze(-1), 2 * x)


@pytest.fixture(scope="module")
def weighed() -> Operator:
    """An operator of tensors in lists, which looks at which arguments need a gradient."""

    @operator("test_weighed")
    def weighed(x: Tensor, y: Tensor, others: list[Tensor]) -> Tensor:
        return x * y + sum(others)

    @weighed.register_fake
    def _(x: Tensor, y: Tensor, others: list[Tensor]) -> Tensor:
        return torch.empty_like(x)

    def keep(ctx: Any, inputs: tuple[Tensor, Tensor, list[Tensor]], output: Tensor) -> None:
        ctx.count = len(inputs[2])
        ctx.save_for_backward(*inputs[:2])

    def pull(ctx: Any, by: Tensor) -> tuple[Any, ...]:
        x, y = ctx.saved_tensors
        needs_x, needs_y, *_ = ctx.needs_input_grad
        return by * y if needs_x else None, by * x if needs_y else None, [by] * ctx.count

    weighed.register_autograd(pull, setup_context=keep)
    return weighed


@pytest.mark.parametrize("count", [0, 1, 3])
def test_rules_know_which_arguments_need_a_gradient_also_beside_lists(weighed: Operator, count: int) -> None:
    x, *others = (torch.randn(3, requires_grad=True) for _ in range(1 + count))
    y = torch.randn(3)
    leaves = [x, *others]
    expected = [y, *[torch.ones(3)] * count]
    for call in (weighed, weighed.registered):
        found = call(x, y, others)
        torch.testing.assert_close(found, x * y + sum(others))
        torch.testing.assert_close(list(torch.autograd.grad(found.sum(), leaves)), expected)
        (by,) = torch.autograd.grad(call(y, x, others).sum(), x)
        assert torch.equal(by, y)


@pytest.mark.parametrize(("starts", "current", "expected"), [(True, 1, True), (True, 0, False), (False, 0, True)])
def test_kernels_are_for_tensors_on_the_gpu_that_they_are_launched_on(
    starts: bool, current: int, expected: bool
) -> None:
    tensor = mock.Mock(spec=Tensor, is_cuda=True, device=torch.device("cuda:1"))  # there may be a single GPU here
    with (
        mock.patch("concretely.kernel.operator.has_triton", return_value=True),
        mock.patch("torch.cuda.is_initialized", return_value=starts),
        mock.patch("torch.cuda.current_device", return_value=current),
    ):
        assert is_fast(tensor) == expected


def test_kernels_are_launched_where_they_are_asked_to_be() -> None:
    with launching(torch.device("cpu")), mock.patch("torch.cuda.device") as device:
        assert launching(torch.device("cuda:1")) is device.return_value
    device.assert_called_once_with(torch.device("cuda:1"))
