"""Compare the kernels of this library with their definitions on the same keys, in value and in gradient."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from concretely.functional import bernoulli, categorical, exp_concrete, exp_logistic_normal, logistic
from concretely.functional.arithmetic import affine
from concretely.functional.bernoulli import affine_log_likelihood, log_likelihood
from concretely.functional.bound import bound, loss
from concretely.functional.signal import normalize, score_function_loss, vimco
from concretely.training.optimizer import orthogonal

LIMIT = 1e-4
"""The largest distance in float32 of numbers of about size one: far above rounding errors, far below real errors."""

PRODUCTS = {"highest": 1e-5, "high": 4e-3, "medium": 3e-2}
"""The largest distance of sums of products, by their precision."""

FLIPPED = 1e-3
"""The share of states that rounding may flip."""

MEMBERS, SAMPLES, UNITS, N = 2, 3, 333, 8
LENGTH = 111
"""The units of a row."""
ROWS = (64, 300)
"""The rows of a map; with more of them, other kernels are used."""


def distances(device: torch.device, precision: str) -> Iterator[tuple[str, float, float]]:
    """Yield the name of every operation, its distance from its definition, and the largest distance allowed."""
    with precise("highest"):  # or definitions that multiply would be the ones that are off
        yield from _nodes(device)
        yield "log likelihood", _log_likelihood(device), LIMIT
        yield "bound", _apart(bound, 10 * torch.randn(MEMBERS, 50, 17, device=device), 1), LIMIT
        yield "loss", _loss(device), LIMIT
        yield "signal of VIMCO", _signal(device), LIMIT
        yield "signal of NVIL", _normalized(device), LIMIT
        yield "orthogonal momentum", _orthogonal(device), LIMIT
    for rows in ROWS:
        yield f"affine, {rows} rows, {precision}", _affine(device, rows), PRODUCTS[precision]
    yield f"observed, {precision}", _observed(device), PRODUCTS[precision]


@contextmanager
def precise(precision: str) -> Iterator[None]:
    """Set the precision of matrix products inside this context."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _nodes(device: torch.device) -> Iterator[tuple[str, float, float]]:
    temperature = torch.tensor([0.4, 1.1], dtype=torch.float64, device=device)
    key = torch.randint(-(2**62), 2**62, (MEMBERS, 2), device=device)
    on_simplex = ((law, (UNITS, N), "cube") for law in (exp_concrete, exp_logistic_normal))
    for law, shape, squash in ((logistic, (UNITS,), "corner"), *on_simplex):
        name, logits = law.__name__.rpartition(".")[2], 3 * torch.randn(MEMBERS, *shape, device=device)
        given = logits, temperature, key
        for kind in ("none", squash):
            yield f"{name} draw, {kind}", _apart(law.draw, *given, SAMPLES, kind, 1), LIMIT
        # with rows, of which there are four times as many as samples, the log densities are summed
        yield f"{name} draw, {squash}, rows", _apart(law.draw, *given, 4, squash, LENGTH), LIMIT
        node = law.draw.definition(*given, SAMPLES, "none", 1)[0] + 0.1
        yield f"{name} score", _apart(law.score, node, logits, temperature, 1), LIMIT
    for law, shape in ((bernoulli, (UNITS,)), (categorical, (UNITS, N))):
        name, logits = law.__name__.rpartition(".")[2], 3 * torch.randn(MEMBERS, *shape, device=device)
        yield f"{name} states", _states(law, logits, key), FLIPPED
        value = law.draw.definition(logits, key, SAMPLES, "corner", 1)[0].bfloat16()
        yield f"{name} score", _apart(law.score, value, logits, "corner", 1), LIMIT


def distance(computed: Tensor, defined: Tensor, *, relative_to: float = 1.0) -> float:
    """Return the largest difference, relative to a size or to larger numbers; infinity if it is not a number.

    >>> distance(torch.tensor([1.0, 11.0]), torch.tensor([0.5, 10.0]))
    0.5
    """
    if computed.shape != defined.shape:
        return float("inf")
    computed, defined = computed.detach().double(), defined.detach().double()
    apart = (computed - defined).abs() / defined.abs().clamp(min=relative_to)
    return float(apart.nan_to_num(nan=float("inf")).max()) if apart.numel() else 0.0


def _apart(operator: Any, *arguments: Any) -> float:
    """Return the distance of a kernel from its definition, in outputs and in gradients of float32 arguments."""
    outcomes = [_outcome(call, arguments) for call in (operator, operator.definition)]
    return max(distance(*pair) for pair in zip(*outcomes, strict=True))


def _outcome(call: Any, arguments: Sequence[Any]) -> list[Tensor]:
    """Return the outputs of a call and, for fixed gradients of these, the gradients of its float32 arguments."""
    leaves: list[Tensor] = []

    def leaf(argument: Any) -> Any:
        if isinstance(argument, list):
            return [leaf(entry) for entry in argument]
        if not isinstance(argument, Tensor) or argument.dtype != torch.float32:
            return argument
        leaves.append(argument.detach().clone().requires_grad_())
        return leaves[-1]

    results = call(*map(leaf, arguments))
    outputs = [results] if isinstance(results, Tensor) else list(results)
    generator = torch.Generator(outputs[0].device).manual_seed(0)
    by = [torch.randn(output.shape, device=output.device, generator=generator) for output in outputs]
    pairs = [pair for pair in zip(outputs, by, strict=True) if pair[0].requires_grad and pair[0].numel()]
    heads, slopes = zip(*pairs, strict=True) if pairs else ((), ())
    gradients = torch.autograd.grad(heads, leaves, slopes, allow_unused=True) if pairs else ()
    return [*outputs, *(gradient for gradient in gradients if gradient is not None)]


def _states(law: ModuleType, logits: Tensor, key: Tensor) -> float:
    """Return the share of states that differ from those of the definition."""
    drawn, expected = (call(logits, key, SAMPLES, "corner", 1)[0] for call in (law.draw, law.draw.definition))
    return float((drawn != expected).double().mean())


def _log_likelihood(device: torch.device) -> float:
    logits = torch.randn(MEMBERS, SAMPLES, 17, UNITS, device=device)
    bits = torch.randint(2, (MEMBERS, 17, UNITS), device=device).bool()
    return _apart(log_likelihood, logits, bits, 1, 1)


def _loss(device: torch.device) -> float:
    """Compare the losses of three terms minus two, and all gradients, with signals and without."""
    log_p, log_q = ([10 * torch.randn(MEMBERS, 50, 17, device=device) for _ in range(k)] for k in (3, 2))
    signal = [torch.randn(MEMBERS, 50, 17, device=device) for _ in log_q]
    given = [(loss, [], [], False), (loss, signal, [], False), (loss, signal, [], True)]
    methods = [("reinforce", False), ("reinforce", True), ("leave-one-out", True), ("geometric", False)]
    given += [(score_function_loss, *method) for method in methods]
    return max(_loss_apart(call, log_p, log_q, *options) for call, *options in given)


def _loss_apart(call: Any, log_p: list[Tensor], log_q: list[Tensor], *options: Any) -> float:
    outcomes = []
    for way in (call, call.definition):
        leaves = [term.clone().requires_grad_() for term in (*log_p, *log_q)]
        loss, *rest = way(leaves[: len(log_p)], leaves[len(log_p) :], *options, 1)
        by = torch.linspace(0.5, 2.0, len(loss), device=loss.device)
        outcomes.append([loss, *rest, *torch.autograd.grad(loss, leaves, by)])
    return max(distance(*pair) for pair in zip(*outcomes, strict=True))


def _signal(device: torch.device) -> float:
    log_w = 10 * torch.randn(MEMBERS, 50, 17, device=device)
    means = ("geometric", "arithmetic")
    return max(distance(vimco(log_w, mean, 1), vimco.definition(log_w, mean, 1)) for mean in means)


def _normalized(device: torch.device) -> float:
    signal, (mean, variance) = 10 * torch.randn(MEMBERS, 50, 17, device=device), torch.rand(2, MEMBERS, device=device)
    outcomes = [call(signal, mean, variance, 0.8, True, True, 1) for call in (normalize, normalize.definition)]
    return max(distance(*pair) for pair in zip(*outcomes, strict=True))


def _orthogonal(device: torch.device) -> float:
    matrix = torch.randn(MEMBERS, 200, UNITS, device=device)
    return distance(orthogonal(matrix), orthogonal(matrix.double()))


def _affine(device: torch.device, rows: int) -> float:
    """Compare an affine map with tanh, and its gradients, with float64; sums relative to their own size."""
    shapes = (((rows, 200), 1.0), ((UNITS, 200), 200**0.5), ((UNITS,), 1.0))
    given = [torch.randn(MEMBERS, *shape, device=device).div_(size) for shape, size in shapes]
    return _against_double(lambda x, weight, bias: affine(x, weight, bias, True), given)


def _observed(device: torch.device) -> float:
    """Compare the log-likelihood of bits that never stores the logits, and its gradients, with float64."""
    shapes = (((SAMPLES, 100, 200), 1.0), ((UNITS, 200), 200**0.5), ((UNITS,), 1.0))
    given = [torch.randn(MEMBERS, *shape, device=device).div_(size) for shape, size in shapes]
    bits = torch.randint(2, (MEMBERS, 100, UNITS), device=device).float()
    return _against_double(lambda *given: affine_log_likelihood(*given, bits)[0], given)


def _against_double(call: Any, given: Sequence[Tensor]) -> float:
    """Return the distance of a float32 call from a float64 call, which runs the definition, in value and gradient."""
    outcomes = []
    for dtype in (torch.float32, torch.float64):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in given]
        value = call(*leaves)
        generator = torch.Generator(value.device).manual_seed(0)
        by = torch.randn(value.shape, device=value.device, generator=generator).to(value.dtype)
        outcomes.append([value, *torch.autograd.grad(value, leaves, by)])
    pairs = zip(*outcomes, strict=True)
    return max(distance(own, truth, relative_to=truth.abs().max().item()) for own, truth in pairs)
