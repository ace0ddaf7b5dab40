"""How far the kernels of this library lie from their definitions on the same keys, in value and in gradient."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from concretely.functional import bernoulli, categorical, exp_concrete, exp_logistic_normal, logistic
from concretely.functional.affine import affine
from concretely.functional.bound import bound, loss
from concretely.functional.likelihood import affine_log_likelihood, log_likelihood
from concretely.functional.signal import normalize, vimco
from concretely.kernel.operator import Operator, disabled
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
        yield from _weights(device)
        matrix = torch.randn(MEMBERS, 200, UNITS, device=device)
        yield "orthogonal momentum", distance(orthogonal(matrix), orthogonal(matrix.double())), LIMIT
    weight = torch.randn(MEMBERS, UNITS, 200, device=device) / 200**0.5
    bias, bits = torch.randn(MEMBERS, UNITS, device=device), torch.rand(MEMBERS, 100, UNITS, device=device) < 0.5
    for rows in ROWS:
        x = torch.randn(MEMBERS, rows, 200, device=device)
        found = compared(affine, x, weight, bias, True, leaves=[0, 1, 2], wide=True)
        yield f"affine, {rows} rows, {products}", found, PRODUCTS[products]
    state = torch.randn(MEMBERS, SAMPLES, 100, 200, device=device)
    found = compared(affine_log_likelihood, state, weight, bias, bits.float(), leaves=[0, 1, 2], results=1, wide=True)
    yield f"observed, {products}", found, PRODUCTS[products]


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
    for family, shape, squash in ((logistic, (UNITS,), "corner"), *on_simplex):
        name, logits = family.__name__.rpartition(".")[2], 3 * torch.randn(MEMBERS, *shape, device=device)
        for kind in ("none", squash):
            yield f"{name} draw, {kind}", compared(family.draw, logits, temperature, key, SAMPLES, kind, 1), LIMIT
        # rows whose log densities are summed, of which there are four times as many as samples
        rows = compared(family.draw, logits, temperature, key, 4, squash, LENGTH, leaves=[])
        yield f"{name} draw, {squash}, rows", rows, LIMIT
        node = family.draw(logits, temperature, key, SAMPLES, "none")[0] + 0.1
        yield f"{name} score", compared(family.score, node, logits, temperature, 1, leaves=[0, 1]), LIMIT
    for family, shape in ((bernoulli, (UNITS,)), (categorical, (UNITS, N))):
        name, logits = family.__name__.rpartition(".")[2], 3 * torch.randn(MEMBERS, *shape, device=device)
        value = family.draw(logits, key, SAMPLES, "corner")[0]
        with disabled(family.draw.name):
            flipped = (value != family.draw(logits, key, SAMPLES, "corner")[0]).double().mean()
        yield f"{name} states", float(flipped), FLIPPED
        yield f"{name} score", compared(family.score, value, logits, "corner", 1, leaves=[1]), LIMIT


def _weights(device: torch.device) -> Iterator[tuple[str, float, float]]:
    logits = torch.randn(MEMBERS, SAMPLES, 17, UNITS, device=device)
    bits = torch.randint(2, (MEMBERS, 17, UNITS), device=device).float()
    yield "log likelihood", compared(log_likelihood, logits, bits, 1, 1), LIMIT
    log_w, *terms = (10 * torch.randn(MEMBERS, 50, 17, device=device) for _ in range(6))
    yield "bound", compared(bound, log_w, 1), LIMIT
    losses = [
        compared(loss, terms[:3], terms[3:], [log_w / 10] * count, [], averages, 1, leaves=[0, 1])
        for count, averages in ((0, False), (2, False), (2, True))
    ]
    yield "loss", max(losses), LIMIT
    means = [compared(vimco, log_w, mean, 1, leaves=[]) for mean in ("geometric", "arithmetic")]
    yield "signal of VIMCO", max(means), LIMIT
    mean, variance = torch.rand(2, MEMBERS, device=device)
    yield "signal of NVIL", compared(normalize, log_w, mean, variance, 0.8, True, True, 1, leaves=[]), LIMIT


def compared(
    operation: Operator[..., Any],
    *arguments: Any,
    leaves: Sequence[int] = (0,),
    results: int | None = None,
    wide: bool = False,
) -> float:
    """How far a kernel lies from its definition in its first results, and in the gradients of arguments at some places.

    If wide, the definition is run in float64 and numbers are compared by the size of the largest.
    """
    given = tree_map_only(Tensor, torch.clone, list(arguments))
    found = _with_gradients(operation, given, leaves, results)
    known = tree_map_only(Tensor, lambda tensor: tensor.double() if wide else tensor, list(arguments))
    with disabled(operation.name):
        defined = _with_gradients(operation, known, leaves, results)
    sizes = (other.abs().max().item() if wide else 1.0 for other in defined)
    return max(distance(one, other, relative_to=size) for one, other, size in zip(found, defined, sizes, strict=True))


def _with_gradients(
    operation: Operator[..., Any], given: list[Any], leaves: Sequence[int], results: int | None
) -> list[Tensor]:
    """The results of an operator, and gradients of its arguments by the same random numbers at every call."""
    given = tree_map_only(Tensor, Tensor.detach, given)
    wanted = [tensor.requires_grad_() for place in leaves for tensor in tree_leaves(given[place])]
    found = tree_leaves(operation(*given))[:results]
    heads = [result for result in found if result.requires_grad]
    if not heads:
        return found
    source = torch.Generator(heads[0].device).manual_seed(0)
    by = [torch.randn(head.shape, device=head.device, generator=source).to(head.dtype) for head in heads]
    return [*found, *torch.autograd.grad(heads, wanted, by)]


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
