"""The registry chooses between a definition and its kernel, and both are the same function to all of torch.

The kernel here is a module of Python functions, which says when it is called, so that a CPU can run it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from concretely.kernel.library import NAMESPACE
from concretely.kernel.operator import (
    Operator,
    disabled,
    operator,
)

CALLS: list[str] = []
SEEN: list[tuple[Any, ...]] = []


def scaled(x: Tensor, y: Tensor, factor: float, tag: str) -> tuple[Tensor, Tensor]:
    CALLS.append("scaled")
    SEEN.append((x, y, factor, tag))
    return factor * x.sin() * y[:, None], x.sum(1)


def scaled_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Tensor | None, ...]:
    CALLS.append("scaled_backward")
    (by_found, _), (x, y, factor, _) = by, inputs
    assert len(needs) == 4
    assert len(outputs) == 2
    slope = factor * by_found
    return slope * x.cos() * y[:, None] if needs[0] else None, (slope * x.sin()).sum(1)


def total(terms: list[Tensor], weight: Tensor, others: list[Tensor]) -> Tensor:
    CALLS.append("total")
    return sum(terms) * weight[:, None] + sum(others)


def total_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Any, ...]:
    CALLS.append("total_backward")
    (by,), (terms, weight, others) = by, inputs
    each = by * weight[:, None]
    return [each] * len(terms), (by * sum(terms)).sum(1), [by] * len(others) if needs[2] else None


def tripled(x: Tensor) -> Tensor:
    CALLS.append("tripled")
    return x**3


@pytest.fixture(scope="module", autouse=True)
def toy() -> ModuleType:
    """A module of kernels."""
    module = ModuleType("concretely.kernel.toy")
    for function in (scaled, scaled_backward, total, total_backward, tripled):
        setattr(module, function.__name__, function)
    sys.modules[module.__name__] = module
    return module


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    SEEN.clear()


@contextmanager
def launchable(answer: bool = True) -> Iterator[None]:
    """Have kernels run on a CPU, or not."""

    def is_launchable(tensor: Tensor) -> bool:  # a function, as the compiler traces it
        return answer

    with mock.patch("concretely.kernel.operator.is_launchable", is_launchable):
        yield


def _scaled(
    x: Float[Tensor, "members units"], y: Float[Tensor, " members"], factor: float, tag: str = "plain"
) -> tuple[Float[Tensor, "members units"], Float[Tensor, " members"]]:
    """The definition of the toy."""
    return factor * x.sin() * y.unsqueeze(1), x.detach().sum(1)


_scaled.__name__ = "scaled"
SCALED = operator(
    "test_scaled",
    kernel="toy",
    eligible=lambda x, *_: x.shape[1] < 100,
    arrange=lambda x, y, factor, _: ((x, y, factor, f"{x.shape[1]} units"), (), ()),
    nondifferentiable=[1],
)(_scaled)


@operator("test_total", kernel="toy")
def total_of(terms: list[Float[Tensor, "members units"]], weight: Tensor, others: list[Tensor]) -> Tensor:
    """Lists of tensors."""
    return sum(terms) * weight.unsqueeze(1) + sum(others)


total_of.__name__ = "total"


@operator("test_tripled", kernel="toy")
def cube(x: Tensor) -> Tensor:
    """A kernel without a gradient of its own."""
    return x.pow(3)


cube.__name__ = "tripled"


def given(members: int = 3, units: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(members, units, requires_grad=True), torch.randn(members, requires_grad=True)


def test_the_definition_runs_where_no_kernel_can_be_launched() -> None:
    x, y = given()
    found, other = SCALED(x, y, 2.0)
    assert not CALLS
    assert torch.equal(found, 2 * x.sin() * y[:, None])
    assert not other.requires_grad
    assert torch.equal(SCALED(x, y, factor=2.0)[0], found)
    assert SCALED.__doc__ == "The definition of the toy."


def test_an_eligible_kernel_is_one_node_and_has_its_own_arguments() -> None:
    x, y = given()
    with launchable():
        found, other = SCALED(x, y, 2.0)
        assert CALLS == ["scaled"]
        assert SEEN[0][2:] == (2.0, "5 units")
        assert type(found.grad_fn).__name__ == "KernelBackward"
        assert not other.requires_grad
        by = torch.autograd.grad(found.square().sum(), [x, y])
    assert CALLS == ["scaled", "scaled_backward"]
    torch.testing.assert_close(by, torch.autograd.grad(SCALED(x, y, 2.0)[0].square().sum(), [x, y]))


@pytest.mark.parametrize("reason", ["float64", "condition", "operator off", "kernel off", "forward mode", "jvp"])
def test_the_definition_runs_where_its_kernel_is_not_eligible(reason: str) -> None:
    x, y = given(units=200 if reason == "condition" else 5)
    if reason == "float64":
        x, y = x.double(), y.double()
    with launchable():
        if reason == "forward mode":
            with forward_ad.dual_level():
                SCALED(x, y, 2.0)
        elif reason == "jvp":
            _, tangent = jvp(lambda x: SCALED(x, y, 2.0)[0], (x,), (torch.ones_like(x),))
            torch.testing.assert_close(tangent, 2 * x.cos() * y[:, None])
        elif reason.endswith("off"):
            with disabled("test_scaled" if reason == "operator off" else "toy"):
                SCALED(x, y, 2.0)
        else:
            SCALED(x, y, 2.0)
    assert not CALLS


def test_a_kernel_is_on_again_after_it_was_off() -> None:
    with launchable():
        with disabled("toy"), disabled("toy"):
            pass
        SCALED(*given(), 2.0)
    assert CALLS == ["scaled"]


@pytest.mark.parametrize("transform", ["grad", "jacrev", "vmap of grad"])
def test_torch_func_differentiates_the_definition(transform: str) -> None:
    x, y = (each.detach() for each in given())

    def run(x: Tensor) -> Tensor:
        return SCALED(x, y, 2.0)[0].sum()

    transforms = {"grad": grad(run), "jacrev": jacrev(run), "vmap of grad": vmap(grad(run))}
    batched = transform.startswith("vmap")
    with launchable():
        found = transforms[transform](x.unsqueeze(0) if batched else x)
    assert not CALLS
    torch.testing.assert_close(found.squeeze(0) if batched else found, 2 * x.cos() * y[:, None])


def test_gradients_are_differentiated_by_the_definition_and_not_through_each_other() -> None:
    x, y = given()

    def curvature(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        found = SCALED(x.tanh(), x.tanh().sum(1) * y, 2.0)[0]  # one argument depends on the other
        by = torch.autograd.grad(found.square().sum(), [x, y], create_graph=True)
        return *by, *torch.autograd.grad(sum(each.square().sum() for each in by), [x, y])

    with launchable():
        found = curvature(x, y)
    torch.testing.assert_close(found, curvature(x, y))


def test_a_kernel_without_a_gradient_has_that_of_its_definition() -> None:
    x, _ = given()
    with launchable():
        (by,) = torch.autograd.grad(cube(x).sum(), x)
    assert CALLS == ["tripled"]
    torch.testing.assert_close(by, 3 * x.square())


def test_gradients_that_nobody_needs_are_not_asked_for() -> None:
    x, y = given()
    with launchable():
        found = SCALED(x.detach(), y, 2.0)[0]
        (by,) = torch.autograd.grad(found.sum(), y)
        assert not SCALED(x.detach(), y.detach(), 2.0)[0].requires_grad
        with torch.no_grad():
            assert not SCALED(x, y, 2.0)[0].requires_grad
        with torch.inference_mode():
            assert torch.equal(SCALED(x, y, 2.0)[0], found)
    torch.testing.assert_close(by, 2 * x.sin().sum(1))


@pytest.mark.parametrize("counts", [(1, 0), (2, 3)], ids=str)
def test_arguments_may_be_lists_of_tensors(counts: tuple[int, int]) -> None:
    terms, others = ([torch.randn(3, 5, requires_grad=True) for _ in range(count)] for count in counts)
    weight = torch.randn(3, requires_grad=True)
    leaves = [*terms, weight, *others]
    expected = torch.autograd.grad(total_of(terms, weight, others).sin().sum(), leaves)
    assert not CALLS
    with launchable():
        for call in (total_of, total_of.registered):
            by = torch.autograd.grad(call(terms, weight, others).sin().sum(), leaves)
            torch.testing.assert_close(by, expected)
        fixed = [each.detach() for each in others]
        by = torch.autograd.grad(total_of(tuple(terms), weight, fixed).sin().sum(), terms)
        torch.testing.assert_close(by, expected[: counts[0]])
    assert CALLS.count("total") == CALLS.count("total_backward") == 3


@pytest.mark.parametrize("dims", [(0, 0), (1, 1), (1, None), (None, 0)], ids=str)
@pytest.mark.parametrize("members", [1, 3])
def test_a_batch_runs_once_as_so_many_members(dims: tuple[int | None, ...], members: int) -> None:
    full = torch.randn(4, members, 5, requires_grad=True), torch.randn(4, members, requires_grad=True)
    moved = [each[0] if dim is None else each.movedim(0, dim) for each, dim in zip(full, dims, strict=True)]

    def run(x: Tensor, y: Tensor) -> Tensor:
        return SCALED(x, y, 2.0)[0]

    with launchable():
        found = vmap(run, dims)(*moved)
        ((x, y, _, tag),) = SEEN
        by = torch.autograd.grad(found.square().sum(), full)
    assert (len(x), len(y), tag) == (4 * members, 4 * members, "5 units")
    assert CALLS == ["scaled", "scaled_backward"]
    expected = vmap(run, dims)(*moved)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(by, torch.autograd.grad(expected.square().sum(), full))


def test_batches_nest() -> None:
    x, y = torch.randn(2, 3, 1, 5), torch.randn(3, 1)
    with launchable():
        found = vmap(vmap(SCALED, (0, 0, None)), (0, None, None))(x, y, 2.0)[0]
    assert CALLS == ["scaled"]
    torch.testing.assert_close(found, 2 * x.sin() * y[..., None])


def test_lists_are_batched_too() -> None:
    terms, shared = [torch.randn(4, 3, 5, requires_grad=True) for _ in range(2)], torch.randn(3, 5, requires_grad=True)
    weight = torch.randn(4, 3)

    def run(one: Tensor, two: Tensor, weight: Tensor) -> Tensor:
        return total_of([one, two, shared], weight, [])

    expected = vmap(run)(*terms, weight)
    with launchable():
        found = vmap(run)(*terms, weight)
        by = torch.autograd.grad(found.sin().sum(), [*terms, shared])
    assert CALLS == ["total", "total_backward"]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(by, torch.autograd.grad(expected.sin().sum(), [*terms, shared]))


def test_gradients_are_batched_too() -> None:
    x, y = given(4)

    def slope(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, [full_x, full_y], x * y[:, None], retain_graph=True)

    with launchable():
        full_x, full_y = (each.detach().requires_grad_() for each in (x, y))
        out = SCALED(full_x, full_y, 2.0)[0]
        found = vmap(slope)(torch.stack([x, 2 * x]).detach(), torch.stack([y, y]).detach())
        assert CALLS == ["scaled", "scaled_backward"]
        for k in range(2):
            torch.testing.assert_close(
                tuple(each[k] for each in found),
                torch.autograd.grad(out, [full_x, full_y], (k + 1) * x * y[:, None], retain_graph=True),
            )


def test_what_one_member_shares_with_a_batch_is_not_copied() -> None:
    shared = torch.randn(1, 5)
    with launchable():
        vmap(SCALED, (None, 0, None))(shared, torch.randn(4, 1), 2.0)
    x = SEEN[0][0]
    assert x.stride(0) == 0
    assert x.data_ptr() == shared.data_ptr()


class Seen(TorchDispatchMode):
    """Takes note of what passes torch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_modes_and_tracers_see_an_operator() -> None:
    x, y = (each.detach() for each in given())
    assert hasattr(torch.ops, NAMESPACE)
    with launchable():
        with Seen() as seen:
            SCALED(x, y, 2.0)
        assert seen.names == ["concretely.test_scaled.default"]
        assert "concretely.test_scaled" in make_fx(lambda x: SCALED(x, y, 2.0)[0])(x).code


@pytest.mark.unchecked
@pytest.mark.parametrize("path", ["definition", "kernel"])
def test_compiled_programs_have_its_values_and_gradients(path: str) -> None:
    x, y = given()
    expected = SCALED(x, y, 2.0)[0]
    expected = expected, *torch.autograd.grad(expected.square().sum(), [x, y])

    def run(x: Tensor, y: Tensor) -> Tensor:
        return SCALED(x, y, 2.0)[0]

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    with launchable(path == "kernel"):
        found = compiled(x, y)
        found = found, *torch.autograd.grad(found.square().sum(), [x, y])
    assert len(CALLS) == (2 if path == "kernel" else 0)
    torch.testing.assert_close(found, expected)


@pytest.mark.unchecked
def test_what_torch_func_differentiates_is_compiled_by_its_definition() -> None:
    x, y = (each.detach() for each in given())
    compiled = torch.compile(grad(lambda x: SCALED(x, y, 2.0)[0].sum()), fullgraph=True, backend="aot_eager")
    with launchable():
        found = compiled(x)
    assert not CALLS
    torch.testing.assert_close(found, 2 * x.cos() * y[:, None])


@pytest.mark.parametrize("path", ["definition", "kernel"])
def test_rules_of_the_operator_hold(path: str) -> None:
    x, y = given()
    terms = [torch.randn(3, 5, requires_grad=True) for _ in range(2)]
    with launchable(path == "kernel"):
        torch.library.opcheck(SCALED.registered, (x, y, 2.0, "tag"))
        torch.library.opcheck(SCALED.registered, (x.detach(), y, 2.0, "tag"))
        torch.library.opcheck(total_of.registered, (terms, y, terms[:1]))
        torch.library.opcheck(cube.registered, (x,))


def test_rules_of_the_gradient_hold() -> None:
    x, y = (each.detach() for each in given())
    with launchable():
        outputs = SCALED(x, y, 2.0)
        for needs in ([True, True, False, False], [False, True, False, False]):
            torch.library.opcheck(SCALED.backward, ([x, None], x, y, 2.0, "tag", list(outputs), needs))
        needs = [True, True, False, True]
        torch.library.opcheck(total_of.backward, ([x], [x, 2 * x], y, [x], [total_of([x, 2 * x], y, [x])], needs))


def test_an_operator_is_an_operator() -> None:
    assert isinstance(SCALED, Operator)
