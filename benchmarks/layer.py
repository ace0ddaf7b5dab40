"""Time layers with discrete choices against the code that people paste, forwards and backwards.

Run it with `python -m benchmarks.layer`, on a CPU or, where there is one, a GPU. The peers are written as in public
repositories, without the checks, reports and penalties of ours.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import gumbel_softmax, softplus

from concretely import Subset, layer

from .pair import On, Only, Out, Pair, Quick, Rounds, race_pairs

TEMPERATURE = 2 / 3
STRETCH = (-0.1, 1.1)


def main(rounds: Rounds = 20, device: On = "", only: Only = "", quick: Quick = False, out: Out = None) -> None:
    """Time layers against the code that they replace."""
    recipe = {"benchmark": "layer", "temperature": TEMPERATURE}
    race_pairs(pairs, recipe, name="layer", rounds=rounds, device=device, only=only, quick=quick, out=out)


def pairs(device: torch.device, *, quick: bool = False) -> Iterator[Pair]:
    """All that is timed on a device."""
    gpu = device.type == "cuda"
    for shape in ((64, 100), (4096, 1024))[: 1 if quick else 2]:
        yield _gate(shape, device)
        yield _dropout(shape, device)
    for rows, n, k, at_most in ((64, 64, 10, 1.0), (64, 784, 50, 1.0)) if not gpu else ((64, 64, 10, 1.0),):
        yield _subset(rows, n, k, device, at_most)
    if gpu and not quick:
        yield _subset(4096, 1024, 32, device, 0.05)
    for rows, n, k in ((64, 10, 3), (4096, 1024, 32))[: 1 if quick else 2]:
        yield _choose(rows, n, k, device)
    for tokens, features, experts, k in ((64, 64, 8, 2), (65_536, 256, 64, 2))[: 1 if quick else 2]:
        yield _router(tokens, features, experts, k, device)
    yield _codebook(64, 64, 512, device, 1.0)
    if not quick:
        yield _codebook(*((64 * 1024, 256, 8192) if gpu else (2048, 64, 2048)), device, 0.5 if gpu else 1.0)
    for rows in (64, 65_536)[: 1 if quick else 2]:
        yield _levels(rows, device)
    yield _permute(64, 10, device)


def _work(function: Callable[..., Tensor], leaves: list[Tensor], by: Tensor) -> Callable[[], Any]:
    """A call with a backward pass."""
    return lambda: torch.autograd.grad(function(), leaves, by)


def _gate(shape: tuple[int, int], device: torch.device) -> Pair:
    x, by = torch.randn(shape, device=device, requires_grad=True), torch.randn(shape, device=device)
    ours = layer.Gate(shape[1], temperature=TEMPERATURE, stretch=STRETCH, weight=0.0).to(device)
    log_alpha = nn.Parameter(torch.zeros(shape[1], device=device))

    def pasted() -> Tensor:
        u = torch.empty(shape, device=device).uniform_(1e-6, 1 - 1e-6)
        s = torch.sigmoid((u.log() - (1 - u).log() + log_alpha) / TEMPERATURE)
        return x * (s * (STRETCH[1] - STRETCH[0]) + STRETCH[0]).clamp(0, 1)

    return Pair(
        f"Gate {shape}",
        _work(lambda: ours(x), [x, ours.logits], by),
        _work(pasted, [x, log_alpha], by),
        "hard concrete",
    )


def _dropout(shape: tuple[int, int], device: torch.device) -> Pair:
    x, by = torch.randn(shape, device=device, requires_grad=True), torch.randn(shape[0], 64, device=device)
    linear = nn.Linear(shape[1], 64).to(device)
    ours = layer.ConcreteDropout(linear, points=1000, temperature=0.1).to(device)
    logit = nn.Parameter(torch.tensor(-2.0, device=device))

    def pasted() -> Tensor:
        p, u = torch.sigmoid(logit), torch.rand_like(x)
        eps = 1e-7
        drop = (p + eps).log() - (1 - p + eps).log() + (u + eps).log() - (1 - u + eps).log()
        return linear(x * (1 - torch.sigmoid(drop / 0.1)) / (1 - p))

    mine = _work(lambda: ours(x), [x, ours.logit, linear.weight], by)
    return Pair(f"ConcreteDropout {shape}", mine, _work(pasted, [x, logit, linear.weight], by), "concrete dropout")


def _subset(rows: int, n: int, k: int, device: torch.device, at_most: float) -> Pair:
    logits, by = torch.randn(rows, n, device=device, requires_grad=True), torch.randn(rows, n, device=device)

    def scan() -> Tensor:
        table = logits.new_full((rows, k + 1), -1e30)
        table[:, 0] = 0
        for i in range(n):
            shifted = torch.cat([table.new_full((rows, 1), -1e30), table[:, :-1] + logits[:, i : i + 1]], 1)
            table = torch.logaddexp(table, shifted)
        (marginals,) = torch.autograd.grad(table[:, k].sum(), logits, create_graph=True)
        return marginals

    ours = _work(lambda: Subset(logits=logits, k=k, validate_args=False).mean, [logits], by)
    title = f"marginals of Subset ({rows}, {n}), k = {k}"
    return Pair(title, ours, _work(scan, [logits], by), "a scan of logaddexp", at_most, times=1 if n > 100 else 5)


def _choose(rows: int, n: int, k: int, device: torch.device) -> Pair:
    scores, by = torch.randn(rows, n, device=device, requires_grad=True), torch.randn(rows, n, device=device)
    ours = layer.Choose(k, temperature=0.5)

    def pasted() -> Tensor:
        noisy = scores - torch.empty_like(scores).exponential_().log()
        chosen, khot = torch.zeros_like(scores), torch.zeros_like(scores)
        for _ in range(k):
            noisy = noisy + (1 - chosen).clamp(min=1e-20).log()
            chosen = (noisy / 0.5).softmax(-1)
            khot = khot + chosen
        return khot

    mine = _work(lambda: ours(scores), [scores], by)
    return Pair(f"Choose ({rows}, {n}), k = {k}", mine, _work(pasted, [scores], by), "relaxed top k", times=10)


def _router(tokens: int, features: int, experts: int, k: int, device: torch.device) -> Pair:
    x = torch.randn(tokens, features, device=device, requires_grad=True)
    by = torch.randn(tokens, k, device=device)
    ours = layer.Router(features, experts, k, noise="learned").to(device)
    gate, noise = (nn.Parameter(torch.randn(features, experts, device=device) / 8) for _ in range(2))

    def pasted() -> tuple[Tensor, Tensor]:
        clean, spread = x @ gate, softplus(x @ noise) + 1e-2
        noisy = clean + torch.randn_like(clean) * spread
        top, places = noisy.topk(k + 1, -1)
        weights = top[:, :k].softmax(-1)
        gates = torch.zeros_like(noisy).scatter(1, places[:, :k], weights)
        inside, out = top[:, k : k + 1], top[:, k - 1 : k]
        is_in = noisy > inside
        normal = torch.distributions.Normal(0.0, 1.0, validate_args=False)
        load = torch.where(is_in, normal.cdf((clean - inside) / spread), normal.cdf((clean - out) / spread)).sum(0)
        loss = sum(share.var() / (share.mean().square() + 1e-10) for share in (gates.sum(0), load))
        return weights, 1e-2 * loss

    def theirs() -> Any:
        weights, loss = pasted()
        return torch.autograd.grad([weights, loss], [x, gate, noise], [by, torch.ones_like(loss)])

    parameters = list(ours.parameters())

    def mine() -> Any:
        routing = ours(x)
        loss = ours.penalty(routing)
        return torch.autograd.grad([routing.weights, loss], [x, *parameters], [by, torch.ones_like(loss)])

    title = f"Router, {tokens:,} tokens, {features} features, {experts} experts, k = {k}"
    return Pair(title, mine, theirs, "noisy top k", times=20)


def _codebook(tokens: int, features: int, codes: int, device: torch.device, at_most: float) -> Pair:
    x, by = (torch.randn(tokens, features, device=device) for _ in range(2))
    x.requires_grad_()
    ours = layer.Codebook(features, codes, temperature=1.0, kl=0.0, diversity=0.0).to(device)
    linear, table = nn.Linear(features, codes).to(device), nn.Parameter(torch.randn(codes, features, device=device))
    own = list(ours.parameters())

    def pasted() -> Tensor:
        return gumbel_softmax(linear(x), tau=1.0, hard=True) @ table

    mine = _work(lambda: ours(x).value, [x, *own], by)
    theirs = _work(pasted, [x, table, linear.weight, linear.bias], by)
    title = f"Codebook, {tokens:,} tokens, {features} features, {codes:,} codes"
    return Pair(title, mine, theirs, "F.gumbel_softmax and a product", at_most, times=1 if codes > 1000 else 20)


def _levels(rows: int, device: torch.device) -> Pair:
    levels = (8, 5, 5, 5)
    x, by = torch.randn(rows, len(levels), device=device), torch.randn(rows, len(levels), device=device)
    x.requires_grad_()
    ours = layer.Levels(levels).to(device)
    counts = torch.tensor(levels, device=device)
    basis = torch.tensor([1, *(math.prod(levels[: i + 1]) for i in range(len(levels) - 1))], device=device)

    def pasted() -> Tensor:
        half = (counts - 1) * (1 + 1e-3) / 2
        offset = torch.where(counts % 2 == 0, 0.5, 0.0)
        bounded = (x + (offset / half).atanh()).tanh() * half - offset
        rounded = bounded + (bounded.round() - bounded).detach()
        width = counts // 2
        ((rounded + width) * basis).sum(-1).to(torch.int32)
        return rounded / width

    return Pair(f"Levels ({rows:,}, 4)", _work(lambda: ours(x).value, [x], by), _work(pasted, [x], by), "FSQ")


def _permute(rows: int, n: int, device: torch.device) -> Pair:
    scores, by = torch.randn(rows, n, n, device=device), torch.randn(rows, n, n, device=device)
    scores.requires_grad_()
    ours = layer.Permute(n, temperature=1.0)

    def pasted() -> Tensor:
        noisy = scores - torch.empty_like(scores).exponential_().log()
        for _ in range(20):
            noisy = noisy - noisy.logsumexp(-1, keepdim=True)
            noisy = noisy - noisy.logsumexp(-2, keepdim=True)
        return noisy.exp()

    mine = _work(lambda: ours(scores), [scores], by)
    title = f"Permute ({rows}, {n}, {n})"
    return Pair(title, mine, _work(pasted, [scores], by), "20 iterations of Sinkhorn", times=10)


if __name__ == "__main__":
    typer.run(main)
