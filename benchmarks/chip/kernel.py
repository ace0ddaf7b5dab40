"""How far the kernels of this library lie from their definitions on the same keys, in value and in gradient."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from concretely.kernel import (
    affine,
    bernoulli,
    bound,
    discrete,
    exp_concrete,
    exp_logistic_normal,
    logistic,
    nvil,
    observed,
    vimco,
)
from concretely.kernel import likelihood as bits_likelihood
from concretely.training.optimizer import orthogonal

LIMIT = 1e-4
"""Of numbers whose size is about one, in float32: a hundred times what rounding does, a hundredth of what is wrong."""

PRODUCTS = {"highest": 1e-5, "high": 4e-3, "medium": 3e-2}
"""The same for sums of products, by their precision."""

FLIPPED = 1e-3
"""The share of states that rounding may flip."""

MEMBERS, SAMPLES, UNITS, N = 2, 3, 333, 8
LENGTH = 111
"""The units of a row."""
ROWS = (64, 300)
"""Of a map; with more of them, other kernels are used."""


def distances(device: torch.device, products: str) -> Iterator[tuple[str, float, float]]:
    """The name of each operation, how far it lies from its definition, and how far it may."""
    with precise("highest"):  # or definitions that multiply would be the ones that are off
        yield from _nodes(device)
        yield "log likelihood", _log_likelihood(device), LIMIT
        yield "bound", _bound(device), LIMIT
        yield "loss", _loss(device), LIMIT
        yield "signal of VIMCO", _signal(device), LIMIT
        yield "signal of NVIL", _normalized(device), LIMIT
        yield "orthogonal momentum", _orthogonal(device), LIMIT
    for rows in ROWS:
        yield f"affine, {rows} rows, {products}", _affine(device, rows), PRODUCTS[products]
    yield f"observed, {products}", _observed(device), PRODUCTS[products]


@contextmanager
def precise(precision: str) -> Iterator[None]:
    """Have products of a precision for a while."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _nodes(device: torch.device) -> Iterator[tuple[str, float, float]]:
    temperature = torch.tensor([0.4, 1.1], dtype=torch.float64, device=device)
    key = torch.randint(-(2**62), 2**62, (MEMBERS, 2), device=device)
    on_simplex = ((each, (UNITS, N), "cube") for each in (exp_concrete, exp_logistic_normal))
    for operation, shape, squash in ((logistic, (UNITS,), "corner"), *on_simplex):
        name, logits = operation.__name__.rpartition(".")[2], 3 * torch.randn(MEMBERS, *shape, device=device)
        for kind in ("none", squash):
            yield f"{name} draw, {kind}", _draw(operation, logits, temperature, key, kind), LIMIT
        yield f"{name} draw, {squash}, rows", _rows(operation, logits, temperature, key, squash), LIMIT
        yield f"{name} score", _score(operation, logits, temperature, key), LIMIT
    for operation, shape in ((bernoulli, (UNITS,)), (discrete, (UNITS, N))):
        name, logits = operation.__name__.rpartition(".")[2], 3 * torch.randn(MEMBERS, *shape, device=device)
        yield f"{name} states", _states(operation, logits, key), FLIPPED
        yield f"{name} score", _masses(operation, logits, key), LIMIT


def distance(found: Tensor, defined: Tensor, *, relative_to: float = 1.0) -> float:
    """The largest difference, relative to a size or to numbers that exceed it; infinite where it is not known.

    >>> distance(torch.tensor([1.0, 11.0]), torch.tensor([0.5, 10.0]))
    0.5
    """
    if found.shape != defined.shape:
        return float("inf")
    found, defined = found.detach().double(), defined.detach().double()
    apart = (found - defined).abs() / defined.abs().clamp(min=relative_to)
    return float(apart.nan_to_num(nan=float("inf")).max()) if apart.numel() else 0.0


def _largest(found: Sequence[Tensor], defined: Sequence[Tensor]) -> float:
    return max(distance(*pair) for pair in zip(found, defined, strict=True))


def _draw(operation: ModuleType, logits: Tensor, temperature: Tensor, key: Tensor, squash: str) -> float:
    """A draw, and the gradient of the logits by node and value."""
    leaf = logits.clone().requires_grad_()
    node, value, log_density = operation.draw(leaf, temperature, key, SAMPLES, squash)
    expected = operation.naive.draw(logits, temperature, key, SAMPLES, squash)
    by = [torch.randn_like(node), None if squash == "none" else torch.randn_like(value)]
    outputs = [node] if squash == "none" else [node, value]
    (slope,) = torch.autograd.grad(outputs, leaf, [each for each in by if each is not None])
    pulled = operation.naive.draw_backward(*by, expected[0], temperature, squash, logits.dtype)
    values = [] if squash == "none" else [(value, expected[1])]
    pairs = [(node, expected[0]), *values, (log_density, expected[2]), (slope, pulled)]
    return _largest(*zip(*pairs, strict=True))


def _rows(operation: ModuleType, logits: Tensor, temperature: Tensor, key: Tensor, squash: str) -> float:
    """A draw whose log densities are summed over rows, of which there are four times as many as samples."""
    found = operation.draw(logits, temperature, key, 4, squash, LENGTH)
    return _largest(found, operation.naive.draw(logits, temperature, key, 4, squash, LENGTH))


def _score(operation: ModuleType, logits: Tensor, temperature: Tensor, key: Tensor) -> float:
    """The log density of nodes, and its gradients."""
    node = operation.naive.draw(logits, temperature, key, SAMPLES, "none")[0]
    leaves = [(node + 0.1).requires_grad_(), logits.clone().requires_grad_()]
    found = operation.score(*leaves, temperature)
    by = torch.randn_like(found)
    slopes = torch.autograd.grad(found, leaves, by)
    node, logits = (leaf.detach() for leaf in leaves)
    expected = operation.naive.score(node, logits, temperature)
    pulled = operation.naive.score_backward(by, node, logits, temperature, True, True)
    return _largest([found, *slopes], [expected, *pulled])


def _states(operation: ModuleType, logits: Tensor, key: Tensor) -> float:
    """The share of states that are not those of the definition."""
    found, _ = operation.draw(logits, key, SAMPLES, "corner")
    expected, _ = operation.naive.draw(logits, key, SAMPLES, "corner")
    return float((found != expected).double().mean())


def _masses(operation: ModuleType, logits: Tensor, key: Tensor) -> float:
    """The log mass of states, and its gradient."""
    value, _ = operation.naive.draw(logits, key, SAMPLES, "corner")
    leaf = logits.clone().requires_grad_()
    found = operation.score(value, leaf, "corner")
    by = torch.randn_like(found)
    slope = torch.autograd.grad(found, leaf, by)
    pull: Any = operation.naive.backward if operation is bernoulli else operation.naive.score_backward
    expected = operation.naive.score(value, logits, "corner")
    return _largest([found, *slope], [expected, pull(by, value, logits, "corner")])


def _log_likelihood(device: torch.device) -> float:
    logits = torch.randn(MEMBERS, SAMPLES, 17, UNITS, device=device, requires_grad=True)
    bits = torch.randint(2, (MEMBERS, 17, UNITS), device=device).float()
    found = bits_likelihood.log_likelihood(logits, bits)
    by = torch.randn_like(found)
    slope = torch.autograd.grad(found, logits, by)
    known = logits.detach()
    naive = bits_likelihood.naive
    return _largest([found, *slope], [naive.log_likelihood(known, bits), naive.backward(by, known, bits)])


def _bound(device: torch.device) -> float:
    log_w = (10 * torch.randn(MEMBERS, 50, 17, device=device)).requires_grad_()
    found = bound.bound(log_w)
    by = torch.randn_like(found)
    slope = torch.autograd.grad(found, log_w, by)
    known = log_w.detach()
    expected = bound.naive.bound(known)
    return _largest([found, *slope], [expected, bound.naive.backward(by, known, expected)])


def _loss(device: torch.device) -> float:
    """Minus the mean bound of three terms less two, and the gradient of each, with credit and without."""
    worst = 0.0
    for count, averages in ((0, False), (2, False), (2, True)):
        terms = [(10 * torch.randn(MEMBERS, 50, 17, device=device)).requires_grad_() for _ in range(5)]
        credit = [torch.randn(MEMBERS, 50, 17, device=device) for _ in range(count)]
        found, *rest = bound.loss(terms[:3], terms[3:], credit, averages=averages)
        by = torch.randn_like(found)
        slopes = torch.autograd.grad(found, terms, by)
        known = [term.detach() for term in terms]
        expected = bound.naive.loss(known[:3], known[3:], averages)
        added, *subtracted = bound.naive.loss_backward(by, expected[2], expected[1], credit, averages)
        pulled = [*[added] * 3, *(subtracted if count else subtracted * 2)]
        worst = max(worst, _largest([found, *rest, *slopes], [*expected, *pulled]))
    return worst


def _signal(device: torch.device) -> float:
    log_w = 10 * torch.randn(MEMBERS, 50, 17, device=device)
    return max(distance(vimco.vimco(log_w, mean), vimco.naive.vimco(log_w, mean)) for mean in (True, False))


def _normalized(device: torch.device) -> float:
    signal, (mean, variance) = 10 * torch.randn(MEMBERS, 50, 17, device=device), torch.rand(2, MEMBERS, device=device)
    found, defined = (each.normalized(signal, mean, variance, 0.8, True, True) for each in (nvil, nvil.naive))
    return _largest(found, defined)


def _orthogonal(device: torch.device) -> float:
    matrix = torch.randn(MEMBERS, 200, UNITS, device=device)
    return distance(orthogonal(matrix), orthogonal(matrix.double()))


def _affine(device: torch.device, rows: int) -> float:
    """A map with tanh behind it and its gradients, against float64; sums are compared by their own size."""
    x, weight, bias = (
        torch.randn(MEMBERS, *shape, device=device).div_(size).requires_grad_()
        for shape, size in (((rows, 200), 1.0), ((UNITS, 200), 200**0.5), ((UNITS,), 1.0))
    )
    found = affine.affine(x, weight, bias, True)
    by = torch.randn_like(found)
    slopes = torch.autograd.grad(found, (x, weight, bias), by)
    wide = [each.detach().double() for each in (x, weight, bias)]
    expected = affine.naive.affine(*wide, True)
    pulled = affine.naive.affine_backward(by.double(), wide[0], wide[1], expected, True)
    pairs = zip([found, *slopes], [expected, *pulled], strict=True)
    return max(distance(own, truth, relative_to=truth.abs().max().item()) for own, truth in pairs)


def _observed(device: torch.device) -> float:
    """The log likelihood of bits without their logits, and its gradients, against float64."""
    state, weight, bias = (
        torch.randn(MEMBERS, *shape, device=device).div_(size).requires_grad_()
        for shape, size in (((SAMPLES, 100, 200), 1.0), ((UNITS, 200), 200**0.5), ((UNITS,), 1.0))
    )
    bits = torch.randint(2, (MEMBERS, 100, UNITS), device=device).float()
    found = observed.log_likelihood(state, weight, bias, bits)
    by = torch.randn_like(found)
    slopes = torch.autograd.grad(found, (state, weight, bias), by)
    wide = [each.detach().double().requires_grad_() for each in (state, weight, bias)]
    logits = (wide[0] @ wide[1].mT.unsqueeze(1)) + wide[2].view(MEMBERS, 1, 1, -1)
    expected = torch.where(bits.unsqueeze(1) > 0, 1, -1).mul(logits).neg().exp().log1p().neg().sum(-1)
    pulled = torch.autograd.grad(expected, wide, by.double())
    pairs = zip([found, *slopes], [expected, *pulled], strict=True)
    return max(distance(own, truth, relative_to=truth.abs().max().item()) for own, truth in pairs)
