"""Muon makes the singular values of momentum about one, moves as torch's own does, and leaves stopped members alone."""

import math
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from concretely.training import optimizer
from concretely.training.optimizer import ParameterState, StepSizes, muon_, orthogonal, polynomial
from tests.cases import exhaustive
from tests.kernel import DEVICE, PATHS, assert_precise, drift, kernel, on


def precise() -> Any:
    """Have kernels multiply in float32."""
    return mock.patch("torch.get_float32_matmul_precision", return_value="highest")


SHAPES = [(1, 1), (5, 5), (3, 20), (20, 3), (1, 7)]


def sizes_of(rates: list[float], decay: float = 0.0) -> StepSizes:
    """Members that move at rates of their own."""
    rate = torch.tensor(rates, dtype=torch.float64, device=DEVICE)
    one = torch.ones_like(rate)
    return StepSizes(rate, torch.full_like(rate, decay), one, one, torch.zeros_like(rate, dtype=torch.int64))


def state_of(parameter: Tensor) -> ParameterState:
    """A parameter before its first step."""
    return ParameterState(parameter.clone(), torch.zeros_like(parameter), torch.zeros_like(parameter))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_vectors_stay_and_singular_values_become_about_one(shape: tuple[int, int]) -> None:
    u, _, v = torch.linalg.svd(torch.randn(3, *shape, dtype=torch.float64), full_matrices=False)
    values = torch.rand(3, min(shape)).double() * 0.9 + 0.1
    found = orthogonal(100 * u @ torch.diag_embed(values) @ v)
    inner = u.mT @ found @ v.mT
    turned = torch.diagonal(inner, dim1=-2, dim2=-1)
    torch.testing.assert_close(inner, torch.diag_embed(turned))
    assert ((turned > 0.6) & (turned < 1.3)).all()


@kernel
@pytest.mark.parametrize("size", [1, 7, 40, 70])
def test_polynomials_are_those_of_the_definition(size: int) -> None:
    matrix = torch.randn(2, size, size + 3, device=DEVICE) / (2 * size)
    gram = torch.bmm(matrix, matrix.mT)
    with on("plain", "muon"):
        defined, truth = polynomial(gram), polynomial(gram.double())
    with on("fast", "muon"), precise():
        assert_precise(polynomial(gram), defined, truth, drift(gram, gram))


def test_what_is_zero_stays_zero() -> None:
    assert not orthogonal(torch.zeros(2, 3, 4)).any()


def test_steps_are_those_of_torch() -> None:
    starts = [torch.randn(size, dtype=torch.float64).to(DEVICE) for size in ((6, 4), (4, 6), (4, 4))]
    matrices = [torch.nn.Parameter(start) for start in starts]
    states = [state_of(matrix.detach().unsqueeze(0)) for matrix in matrices]
    theirs = torch.optim.Muon(matrices, lr=0.01, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        gradients = [torch.randn(start.shape, dtype=torch.float64).to(DEVICE) for start in starts]
        for matrix, gradient in zip(matrices, gradients, strict=True):
            matrix.grad = gradient.clone()
        theirs.step()
        muon_(states, [gradient.unsqueeze(0) for gradient in gradients], sizes_of([0.01]))
    for matrix, state in zip(matrices, states, strict=True):
        # theirs multiplies in bfloat16
        torch.testing.assert_close(state.parameter[0], matrix.detach(), rtol=0, atol=2e-3)


@PATHS
def test_members_do_not_affect_each_other_and_one_with_a_learning_rate_of_zero_stays_as_it_is(path: str) -> None:
    starts = [torch.randn(3, 4, 6, device=DEVICE), torch.randn(3, 6, 4, device=DEVICE)]
    slopes = [torch.randn_like(start) for start in starts]
    states = [state_of(start) for start in starts]
    alone = [[state_of(start[member : member + 1]) for start in starts] for member in (0, 2)]
    slopes[0][1, 2, 3] = math.nan
    for _ in range(2):
        with on(path, "muon"):
            muon_(states, slopes, sizes_of([0.1, 0.0, 0.2], decay=0.3))
        for member, own in zip((0, 2), alone, strict=True):
            muon_(own, [slope[member : member + 1] for slope in slopes], sizes_of([0.1 + 0.05 * member], decay=0.3))
    for k, (state, start) in enumerate(zip(states, starts, strict=True)):
        assert torch.equal(state.parameter[1], start[1])
        assert not state.first[1].any()
        for member, own in zip((0, 2), alone, strict=True):
            torch.testing.assert_close(state.parameter[member], own[k].parameter[0], rtol=1e-4, atol=1e-5)


@PATHS
@pytest.mark.parametrize("few", [0, *exhaustive(2**21)])
def test_matrices_of_all_shapes_move_as_the_definition_does(
    few: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer, "FEW", few)
    shapes = [(17, 20), (20, 17), (7, 7), (1, 5), (17, 18), (17, 17)]
    starts = [torch.randn(2, *shape, device=DEVICE) for shape in shapes]
    found, defined = ([state_of(start) for start in starts] for _ in range(2))
    for _ in range(2):
        slopes = [torch.randn_like(start) for start in starts]
        with on(path, "muon"):
            muon_(found, [slope.mT.contiguous().mT for slope in slopes], sizes_of([0.1, 0.02], decay=0.3))
        with on("plain", "muon"):
            for state, slope in zip(defined, slopes, strict=True):
                muon_([state], [slope], sizes_of([0.1, 0.02], decay=0.3))
    torch.testing.assert_close(found, defined, rtol=1e-3, atol=1e-4)


@PATHS
def test_weights_decay(path: str) -> None:
    start = torch.eye(3, device=DEVICE).unsqueeze(0)
    state = state_of(start)
    with on(path, "muon"):
        muon_([state], [torch.zeros_like(start)], sizes_of([0.01], decay=1.0))
    assert (state.parameter.diagonal(dim1=1, dim2=2) < 1).all()
