"""A program sees ordinary rows: samples and states are folded into the batch, and it runs once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal, Poisson
from torch.nn import functional as F  # noqa: N812 (as users write it)

import concretely as c
from tests.test_program import BATCH, SAMPLES, trained

DOUBLE = torch.float64
NETWORK = nn.Linear(4, 2)


def plain(draw: c.Draw, x: Tensor) -> Tensor:
    """Two bits, and the distance of their sum from that of an input."""
    bits = draw("bits", c.Bernoulli(logits=NETWORK(x)))
    return (bits.sum(-1) - c.tile(x, bits).sum(-1)).square()


def nvil() -> c.Estimator:
    return c.NVIL(plain, torch.zeros(BATCH, 4))


ESTIMATORS: list[Callable[[], c.Estimator]] = [
    lambda: c.Pathwise(0.5),
    lambda: c.GumbelSoftmax(0.5),
    c.StraightThrough,
    lambda: c.StraightThroughGumbelSoftmax(0.5),
    c.Reinforce,
    c.RLOO,
    c.VIMCO,
    nvil,
]


@SAMPLES
@pytest.mark.parametrize("build", ESTIMATORS)
def test_a_program_runs_once_with_a_row_for_each_sample_and_data_point(
    build: Callable[[], c.Estimator], samples: int
) -> None:
    estimator, seen = build(), list[int]()
    if isinstance(estimator, c.RLOO | c.VIMCO):
        samples = max(samples, 2)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        cost = plain(draw, x)
        seen.append(len(cost))
        return cost

    objective = c.bound if isinstance(estimator, c.VIMCO) else None
    c.estimate(program, torch.randn(BATCH, 4), estimator=estimator, samples=samples, objective=objective)
    assert seen == [samples * BATCH]


def test_enumeration_first_counts_the_states() -> None:
    seen = list[int]()

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        cost = plain(draw, x)
        seen.append(len(cost))
        return cost

    c.estimate(program, torch.randn(BATCH, 4), estimator=c.Exact())
    assert seen == [BATCH, 4 * BATCH]


class Layers(nn.Module):
    """Draws with ordinary layers between them, which want one batch axis."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.head = nn.Linear(4, 12)
        self.layer: Any = {
            "linear": nn.Linear(4, 4),
            "convolution": nn.Conv2d(1, 2, 2),
            "batch norm": nn.BatchNorm1d(3),
            "recurrent": nn.GRU(4, 5, batch_first=True),
            "attention": nn.MultiheadAttention(4, 2, batch_first=True),
            "transformer": nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
            "loss": nn.Linear(4, 3),
        }[kind]
        self.to(DOUBLE).eval()

    def forward(self, draw: c.Draw, x: Tensor, y: Tensor) -> Tensor:
        """Three words, then a bit that depends on them."""
        words = draw("words", c.OneHotCategorical(logits=self.head(x).view(-1, 3, 4)))
        if self.kind == "convolution":
            found = self.layer(words.unsqueeze(1))
        elif self.kind == "attention":
            found, _ = self.layer(words, words, words)
        elif self.kind == "recurrent":
            found, _ = self.layer(words)
        elif self.kind == "loss":
            found = F.cross_entropy(self.layer(words.sum(1)), c.tile(y, words), reduction="none").unsqueeze(1)
        else:
            found = self.layer(words)
        bit = draw("bit", c.Bernoulli(logits=found.flatten(1).sum(1)))
        return found.flatten(1).square().sum(1) + bit * c.tile(x, bit).sum(1)


KINDS = ["linear", "convolution", "batch norm", "recurrent", "attention", "transformer", "loss"]


@pytest.mark.parametrize("mode", [c.mode.Discrete(), c.mode.Relaxed(0.5), c.mode.Enumerate()], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_what_each_sample_gives_alone(kind: str, mode: c.mode.Mode) -> None:
    program, points = Layers(kind), 2
    x, y = torch.randn(points, 4, dtype=DOUBLE), torch.randint(3, (points,))
    is_enumerated = isinstance(mode, c.mode.Enumerate)
    trace = c.run(program, x, y, mode=mode, samples=None if is_enumerated else points)
    assert trace.samples == (4**3 * 2 if is_enumerated else points)
    costs = trace.output.view(trace.samples, points)
    scored_as = c.mode.Discrete() if is_enumerated else mode
    for sample in range(0, trace.samples, 13 if is_enumerated else 1):
        values = {name: trace[name].value[sample] for name in trace}
        alone = c.run(program, x, y, mode=c.mode.Replay(values, scored_as))
        torch.testing.assert_close(alone.output, costs[sample], rtol=1e-10, atol=1e-10)
        for name in trace:
            torch.testing.assert_close(
                alone[name].log_prob, trace[name].log_prob[sample], rtol=1e-8, atol=1e-8
            )  # without the node, a relaxed value is scored from its rounded float


@pytest.mark.parametrize("kind", KINDS)
@SAMPLES
def test_ordinary_layers_train(kind: str, samples: int) -> None:
    program = Layers(kind).train()
    x, y = torch.randn(BATCH, 4, dtype=DOUBLE), torch.randint(3, (BATCH,))
    for estimator in (c.Pathwise(0.5), c.Reinforce(), c.StraightThroughGumbelSoftmax(0.5)):
        program.zero_grad()
        c.estimate(program, x, y, estimator=estimator, samples=samples).loss.backward()
        assert trained(program.head.parameters())
    if kind == "batch norm":
        assert program.layer.num_batches_tracked == 3


def test_inputs_may_be_dictionaries_and_tuples() -> None:
    def program(draw: c.Draw, batch: dict[str, Any], scale: float) -> Tensor:
        bits = draw("bits", c.Bernoulli(logits=NETWORK(batch["x"])))
        return scale * (bits.sum(-1) - c.tile(batch["pair"][1], bits)).square()

    batch = {"x": torch.randn(BATCH, 4), "pair": (None, torch.randn(BATCH))}
    for estimator in (c.RLOO(), c.Exact()):
        assert c.estimate(program, batch, 2.0, estimator=estimator, samples=3).bound.shape == (BATCH,)


@pytest.mark.parametrize(
    "node",
    [
        lambda x: torch.distributions.Bernoulli(logits=x),
        lambda x: Categorical(logits=x),
        lambda x: torch.distributions.OneHotCategorical(logits=x),
        lambda x: Poisson(x.exp()),
        lambda x: Independent(torch.distributions.Bernoulli(logits=x), 1),
    ],
)
@pytest.mark.parametrize("estimator", [c.Reinforce(), c.RLOO(), c.VIMCO(), None])
def test_distributions_of_torch_are_nodes_of_score_function_estimators(
    estimator: c.Estimator | None, node: Any
) -> None:
    x = torch.randn(BATCH, 3, requires_grad=True)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        value = draw("z", node(x)).float()
        return (value.reshape(len(value), -1) * torch.arange(1, 1 + value[0].numel())).sum(-1)

    objective = c.bound if isinstance(estimator, c.VIMCO) else None
    estimator = estimator or c.NVIL(program, x)
    estimate = c.estimate(program, x, estimator=estimator, samples=9, objective=objective)
    estimate.loss.backward()
    assert estimate.signal["z"].shape == (9, BATCH)
    assert trained([x])
    seeds = [c.run(program, x, mode=c.mode.Discrete(), generator=torch.Generator().manual_seed(7)).output for _ in "ab"]
    assert torch.equal(*seeds)


@pytest.mark.unchecked  # a checker stands between the program and `len`
def test_rows_of_programs_without_inputs() -> None:
    constant = torch.zeros(3)

    def program(draw: c.Draw) -> Tensor:
        z = draw("z", c.Bernoulli(logits=torch.zeros(3)))
        draw("like", Normal(torch.zeros_like(z), torch.ones_like(z)))
        draw("len", Normal(torch.zeros(len(z), 3), 1.0))
        draw("to", c.Bernoulli(logits=constant.to(z)))
        draw("x", Normal(z, 1.0), observed=torch.ones(3).expand(len(z), 3))
        draw("y", Normal(z, 1.0), observed=torch.ones(3))
        return z.sum(-1)

    for samples in (3, 5):
        trace = c.run(program, mode=c.mode.Discrete(), samples=samples)
        assert {name: trace[name].value.shape for name in ("z", "like", "len", "to")} == dict.fromkeys(
            ("z", "like", "len", "to"), (samples, 3)
        )
        torch.testing.assert_close(trace["x"].log_prob, trace["y"].log_prob)


def test_the_gradient_of_a_shared_gate_is_that_of_all_states() -> None:
    logits = nn.Parameter(torch.tensor([0.3, -0.7], dtype=DOUBLE))
    x = torch.randn(3, 2, dtype=DOUBLE)

    def cost(gate: Tensor) -> Tensor:
        return (gate * x).sum(-1).square()

    states = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=DOUBLE)
    law = c.Bernoulli(logits=logits)
    log_probs = torch.stack([law.log_prob(state).sum() for state in states])
    exact = (log_probs.exp() * torch.stack([cost(state).mean() for state in states])).sum()
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    found = torch.zeros_like(expected)
    for state, log_prob in zip(states, log_probs.detach(), strict=True):

        def program(draw: c.Draw, x: Tensor) -> Tensor:
            return cost(draw("gate", c.Bernoulli(logits=logits)))

        trace = c.run(program, x, mode=c.mode.Replay({"gate": state}))
        assert trace["gate"].log_prob.shape == (3,)
        surrogate = (trace.output.detach() * trace["gate"].log_prob).mean()
        found += log_prob.exp() * torch.autograd.grad(surrogate, logits)[0]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_exact_leaves_the_modules_of_a_function_as_they_were() -> None:
    norm = nn.BatchNorm1d(2)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return norm(draw("z", c.Bernoulli(logits=NETWORK(x)))).sum(-1)

    c.estimate(program, torch.randn(BATCH, 4), estimator=c.Exact())
    assert norm.num_batches_tracked == 0
    assert norm.training


def test_a_replay_of_other_rows_is_refused() -> None:
    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return draw("z", c.Bernoulli(logits=x)).sum(-1)

    x = torch.randn(BATCH, 2)
    trace = c.run(program, x, mode=c.mode.Discrete(), samples=3)
    for mode, given in ((c.mode.Replay({"z": trace["z"].value}), x), (c.mode.Replay(trace), x[:1])):
        with pytest.raises(ValueError, match=r"^the given value of node 'z' must have the rows of this run"):
            c.run(program, given, mode=mode)
