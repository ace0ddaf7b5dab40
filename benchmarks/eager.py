"""Time eager calls, as a user types them, against what they replace: forwards and backwards, without capture.

Run it with `python -m benchmarks.eager`, on a CPU or, where there is one, a GPU. Four things are timed: the drop-in
function, a draw with its log density, the estimate of a model of one's own, and a compiled draw. Peers are torch and,
where it is installed, pyro. Ratios are our time over that of the peer in the same round.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch
import typer
from torch import Tensor, nn
from torch.distributions import Bernoulli
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.distributions.relaxed_categorical import ExpRelaxedCategorical
from torch.nn.functional import gumbel_softmax

import concretely as c

from .pair import SEED, On, Only, Out, Pair, Quick, Rounds, race_pairs

TEMPERATURE, PRIOR_TEMPERATURE, SAMPLES = 2 / 3, 1 / 2, 5
LARGE = ((2048, 32, 256), (2**20, 8))
SHAPES = ((64, 4), (64, 20, 8), *LARGE)


def main(rounds: Rounds = 20, device: On = "", only: Only = "", quick: Quick = False, out: Out = None) -> None:
    """Time eager calls against what they replace."""
    recipe = {"benchmark": "eager", "temperature": TEMPERATURE, "samples": SAMPLES}
    race_pairs(pairs, recipe, name="eager", rounds=rounds, device=device, only=only, quick=quick, out=out)


def pairs(device: torch.device, *, quick: bool = False) -> Iterator[Pair]:
    """All that is timed on a device."""
    yield from _drop_ins(device, SHAPES[:2] if quick else SHAPES)
    yield from _nodes(device, compiled=False)
    if find_spec("pyro") is not None:
        yield from _pyro_variables(device, quick=quick)
    yield from _models(device)
    if not quick:
        yield from _nodes(device, compiled=True)


def _drop_ins(device: torch.device, shapes: tuple[tuple[int, ...], ...]) -> Iterator[Pair]:
    """Drop-in functions. On a GPU, a product by two is timed too, and large draws also without a change of threads.

    Torch runs the backward pass of work on a GPU in another thread. Where its host changes threads slowly, this alone
    takes longer than a large draw and its gradient.
    """
    for shape in shapes:
        logits, by = torch.randn(shape, device=device, requires_grad=True), torch.randn(shape, device=device)
        for hard in (False, True):

            def work(function: Any, logits: Tensor = logits, by: Tensor = by, hard: bool = hard) -> Any:
                return lambda: torch.autograd.grad(function(logits, tau=TEMPERATURE, hard=hard), logits, by)

            def floor(logits: Tensor = logits, by: Tensor = by) -> Any:
                return torch.autograd.grad(logits * 2, logits, by)

            title = f"gumbel_softmax {shape}, {'hard' if hard else 'soft'}"
            is_large = device.type == "cuda" and shape in LARGE
            sides, asked = (work(c.gumbel_softmax), work(gumbel_softmax)), 0.5 if is_large else 1.0
            least = floor if device.type == "cuda" else None
            yield Pair(title, *sides, "torch F.gumbel_softmax", asked, floor=least)
            if is_large:
                here = (_in_one_thread(side) for side in (*sides, floor))
                ours, theirs, least = here
                yield Pair(f"{title}, one thread", ours, theirs, "torch F.gumbel_softmax", asked, floor=least)


def _in_one_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Work whose backward pass runs in the thread that asks for it."""

    def call() -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return work()

    return call


def _nodes(device: torch.device, *, compiled: bool) -> Iterator[Pair]:
    """Draws with their log densities, by classes in the space of log-odds or log probabilities."""
    at_most = 1.0 if compiled else 0.6 if device.type == "cuda" else 0.8
    for shape, ours, theirs in (
        ((64, 200), c.Logistic, LogitRelaxedBernoulli),
        ((64, 20, 8), c.ExpConcrete, ExpRelaxedCategorical),
    ):
        title = f"rsample_and_log_prob {shape}{', compiled' * compiled}"
        name = f"torch {theirs.__name__}{', compiled' * compiled}"
        sides = _drawn_and_scored(ours, theirs, shape, device, compiled=compiled)
        yield Pair(title, *sides, name, at_most)


def _pyro_variables(device: torch.device, *, quick: bool) -> Iterator[Pair]:
    """Draws with their log densities, by the classes of pyro: a logistic variable, and one on the simplex."""
    from pyro.distributions import Logistic, RelaxedOneHotCategorical  # type: ignore[import-not-found]

    def logistic(temperature: Tensor, *, logits: Tensor) -> Any:
        return Logistic(logits / temperature, 1 / temperature)

    binary = c.Logistic, logistic, "pyro Logistic"
    categorical = c.Concrete, RelaxedOneHotCategorical, "pyro RelaxedOneHotCategorical"
    cases = ((64, 4), binary), ((64, 200), binary), ((64, 20, 8), categorical), (LARGE[0], categorical)
    for shape, (ours, theirs, name) in cases[: 3 if quick else 4]:
        yield Pair(f"{ours.__name__} {shape}", *_drawn_and_scored(ours, theirs, shape, device), name)


def _drawn_and_scored(
    ours: Any, theirs: Any, shape: tuple[int, ...], device: torch.device, *, compiled: bool = False
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A draw with its log density, and the gradient of both, by a class of ours and by one of a peer."""
    logits, by = torch.randn(shape, device=device, requires_grad=True), torch.randn(shape, device=device)
    temperature = torch.tensor(TEMPERATURE, device=device)

    def drawn(logits: Tensor) -> Any:
        return ours(logits=logits, temperature=TEMPERATURE).rsample_and_log_prob()

    def peer(logits: Tensor) -> Any:
        node = theirs(temperature, logits=logits)
        value = node.rsample()
        return value, node.log_prob(value)

    def work(draw: Any) -> Callable[[], Any]:
        draw = torch.compile(draw, fullgraph=True) if compiled else draw

        def call() -> Any:
            value, log_prob = draw(logits)
            slopes = {value: by, log_prob: torch.ones_like(log_prob)}
            # the log density of an own draw is constant in the logits
            heads = [head for head in slopes if head.requires_grad]
            return torch.autograd.grad(heads, logits, [slopes[head] for head in heads])

        return call

    return work(drawn), work(peer)


def _models(device: torch.device) -> Iterator[Pair]:
    """One step, without an optimizer, of a model with 784 bits and 200 latent bits."""
    torch.manual_seed(SEED)
    encoder, decoder = nn.Linear(784, 200).to(device), nn.Linear(200, 784).to(device)
    prior = nn.Parameter(torch.zeros(200, device=device))
    x = (torch.rand(64, 784, device=device) < 0.3).float()
    parameters = [*encoder.parameters(), *decoder.parameters(), prior]

    def p(draw: Any, x: Tensor | None = None) -> Tensor:
        z = draw("z", c.Bernoulli(logits=prior))
        return draw("x", c.Bernoulli(logits=decoder(z)), observed=x)

    def q(draw: Any, x: Tensor) -> None:
        draw("z", c.Bernoulli(logits=encoder(x)))

    def relaxed() -> Tensor:
        node = LogitRelaxedBernoulli(torch.tensor(TEMPERATURE, device=device), logits=encoder(x))
        y = node.rsample((SAMPLES,))
        log_p = LogitRelaxedBernoulli(torch.tensor(PRIOR_TEMPERATURE, device=device), logits=prior).log_prob(y).sum(-1)
        log_x = Bernoulli(logits=decoder(y.sigmoid())).log_prob(x).sum(-1)
        return -(log_x + log_p - node.log_prob(y).sum(-1)).logsumexp(0).mean()

    def discrete(loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        node = Bernoulli(logits=encoder(x))
        z = node.sample((SAMPLES,))
        log_q = node.log_prob(z).sum(-1)
        log_p = Bernoulli(logits=prior).log_prob(z).sum(-1)
        return loss(Bernoulli(logits=decoder(z)).log_prob(x).sum(-1) + log_p - log_q, log_q)

    def rloo(log_w: Tensor, log_q: Tensor) -> Tensor:
        known = log_w.detach()
        signal = known - (known.sum(0) - known) / (SAMPLES - 1)
        return -(log_w + signal * log_q).mean()

    def vimco(log_w: Tensor, log_q: Tensor) -> Tensor:
        known = log_w.detach()
        others = (known.sum(0) - known) / (SAMPLES - 1)
        eye = torch.eye(SAMPLES, dtype=torch.bool, device=device).unsqueeze(-1)
        without = torch.where(eye, others.unsqueeze(0), known.unsqueeze(0)).logsumexp(1)
        return -(log_w.logsumexp(0) + ((known.logsumexp(0) - without) * log_q).sum(0)).mean()

    model = c.Model(p, q)
    for estimator, by_hand in (
        (c.Pathwise(TEMPERATURE, prior_temperature=PRIOR_TEMPERATURE), relaxed),
        (c.RLOO(), lambda: discrete(rloo)),
        (c.VIMCO(), lambda: discrete(vimco)),
    ):

        def ours(estimator: Any = estimator) -> Any:
            return torch.autograd.grad(model(x, estimator=estimator, samples=SAMPLES).loss, parameters)

        def theirs(by_hand: Callable[[], Tensor] = by_hand) -> Any:
            return torch.autograd.grad(by_hand(), parameters)

        name = type(estimator).__name__
        yield Pair(f"estimate, 784-200-784, m = {SAMPLES}, {name}", ours, theirs, "torch by hand")


if __name__ == "__main__":
    typer.run(main)
