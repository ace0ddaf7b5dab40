"""Small targets with parameters at random, and all their states written out from the formulas of the paper."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

import concretely as c

DOUBLE = torch.float64
BITS = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=DOUBLE)


@dataclass(frozen=True)
class State:
    """A joint state of the latents for one data point, with its log probabilities and the terms of its log-weight."""

    values: dict[str, Tensor]
    log_q: dict[str, Tensor]
    log_p: dict[str, Tensor]
    divides: bool = True

    @property
    def log_prob(self) -> Tensor:
        """The log probability of the state."""
        return torch.stack(list(self.log_q.values())).sum()

    @property
    def log_w(self) -> Tensor:
        """The log-weight of the state."""
        log_p = torch.stack(list(self.log_p.values())).sum()
        return log_p - self.log_prob if self.divides else log_p


@dataclass(frozen=True)
class Target:
    """A model or a program, its inputs and its states by hand."""

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    states: Callable[..., Iterator[State]]
    """All states of one data point, given the module and that point of every input."""

    @property
    def is_model(self) -> bool:
        """Whether the target is a model, and no program."""
        return not self.name.startswith("program")

    def made(self, seed: int = 0) -> nn.Module:
        """The target with all its parameters and offsets at random."""
        return randomised(self.build(), seed)

    def listed(self, module: nn.Module) -> list[list[State]]:
        """The states of every data point."""
        return [list(self.states(module, *point)) for point in zip(*self.inputs, strict=True)]


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in float64, not training, with normal entries in all parameters and floating buffers."""
    generator = torch.Generator().manual_seed(seed)
    module = module.to(DOUBLE).eval()
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=DOUBLE))
        for buffer in module.buffers():
            buffer.abs_()  # a running variance is one of them
    return module


def signs(units: int) -> Iterator[Tensor]:
    """All states of so many units on minus and plus one."""
    for state in itertools.product((-1.0, 1.0), repeat=units):
        yield torch.tensor(state, dtype=DOUBLE)


def log_sign(state: Tensor, logits: Tensor) -> Tensor:
    """The log probability of signs with these log-odds."""
    return logsigmoid(state * logits).sum()


def network(module: nn.Module, inputs: Tensor) -> Tensor:
    """A conditioning function by hand: tanh between its linear parts."""
    first, *others = [part for part in module.modules() if isinstance(part, nn.Linear)]
    outputs = first.weight @ inputs + first.bias
    for part in others:
        outputs = part.weight @ outputs.tanh() + part.bias
    return outputs


def one_layer(model: c.Model, x: Tensor) -> Iterator[State]:
    """The states of 2H-3V, and of 1H-2V."""
    x = 2 * x - 1
    top = model.p.top.logits.squeeze(-1)
    for z in signs(len(top)):
        yield State(
            {"h1": z.unsqueeze(-1)},
            {"h1": log_sign(z, network(model.q.layers[0], x))},
            {"h1": log_sign(z, top), "x": log_sign(x, network(model.p.visible, z))},
        )


def two_layers(model: c.Model, x: Tensor) -> Iterator[State]:
    """The states of 2H~1H-3V."""
    x = 2 * x - 1
    for h1, h2 in itertools.product(signs(1), signs(2)):
        yield State(
            {"h1": h1.unsqueeze(-1), "h2": h2.unsqueeze(-1)},
            {
                "h1": log_sign(h1, network(model.q.layers[0], x)),
                "h2": log_sign(h2, network(model.q.layers[1], h1 - model.q.centres[0].offset)),
            },
            {
                "h2": log_sign(h2, model.p.top.logits.squeeze(-1)),
                "h1": log_sign(h1, network(model.p.layers[0], h2)),
                "x": log_sign(x, network(model.p.visible, h1)),
            },
        )


def four_states(model: c.Model, x: Tensor) -> Iterator[State]:
    """The states of 4H:4-3V, two nodes of four states each, a state written in two signs."""
    x = 2 * x - 1
    corner = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]], dtype=DOUBLE)
    posterior = network(model.q.layers[0], x).view(2, 4).log_softmax(-1)
    prior = model.p.top.logits.log_softmax(-1)
    for left, right in itertools.product(range(4), repeat=2):
        z = torch.stack([corner[left], corner[right]])
        yield State(
            {"h1": z},
            {"h1": posterior[0, left] + posterior[1, right]},
            {"h1": prior[0, left] + prior[1, right], "x": log_sign(x, network(model.p.visible, z.flatten()))},
        )


def one_between(model: c.Model, context: Tensor, x: Tensor) -> Iterator[State]:
    """The states of 2V-2H-2V."""
    for z in signs(2):
        log_q = log_sign(z, network(model.p.layers[0], 2 * context - 1))
        log_p = log_sign(2 * x - 1, network(model.p.visible, z))
        yield State({"h1": z.unsqueeze(-1)}, {"h1": log_q}, {"x": log_p}, divides=False)


def two_between(model: c.Model, context: Tensor, x: Tensor) -> Iterator[State]:
    """The states of 2V-1H~2H-2V."""
    for h1, h2 in itertools.product(signs(1), signs(2)):
        log_q = {
            "h1": log_sign(h1, network(model.p.layers[0], 2 * context - 1)),
            "h2": log_sign(h2, network(model.p.layers[1], h1)),
        }
        log_p = {"x": log_sign(2 * x - 1, network(model.p.visible, h2))}
        yield State({"h1": h1.unsqueeze(-1), "h2": h2.unsqueeze(-1)}, log_q, log_p, divides=False)


class Gamble(nn.Module):
    """A program with a code that depends on the input, gates that depend on nothing, and a cost of both."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.gate = nn.Parameter(torch.zeros(2))
        self.price = nn.Parameter(torch.zeros(3, 2))

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        """The cost."""
        code = draw("code", c.OneHotCategorical(logits=self.encoder(x)))
        gate = draw("gate", c.Bernoulli(logits=self.gate.expand(len(x), 2)))
        return (code @ self.price - gate).square().sum(-1) + gate.prod(-1) * c.tile(x, gate)[..., 0]


def gamble(program: Gamble, x: Tensor) -> Iterator[State]:
    """The states of the program."""
    code_odds = network(program.encoder, x).log_softmax(-1)
    for code, gate in itertools.product(range(3), itertools.product((0.0, 1.0), repeat=2)):
        bits = torch.tensor(gate, dtype=DOUBLE)
        cost = (program.price[code] - bits).square().sum() + gate[0] * gate[1] * x[0]
        values = {"code": torch.eye(3, dtype=DOUBLE)[code], "gate": bits}
        log_q = {"code": code_odds[code], "gate": log_sign(2 * bits - 1, program.gate)}
        yield State(values, log_q, {"cost": -cost}, divides=False)


class Selection(nn.Module):
    """A program that selects 2 of 4 prices for each input and pays the square of what they differ from it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.price = nn.Parameter(torch.zeros(4))

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        """The cost."""
        chosen = draw("chosen", c.Subset(logits=self.encoder(x), k=2))
        return (chosen @ self.price - c.tile(x, chosen)[..., 0]).square() + chosen[..., 0] * chosen[..., 1]


def selection(program: Selection, x: Tensor) -> Iterator[State]:
    """The states of the program."""
    logits = network(program.encoder, x)
    pairs = list(itertools.combinations(range(4), 2))
    log_probs = torch.stack([logits[i] + logits[j] for i, j in pairs]).log_softmax(0)
    for (i, j), log_prob in zip(pairs, log_probs, strict=True):
        value = torch.zeros(4, dtype=DOUBLE)
        value[[i, j]] = 1
        cost = (program.price[i] + program.price[j] - x[0]).square() + float((i, j) == (0, 1))
        yield State({"chosen": value}, {"chosen": log_prob}, {"cost": -cost}, divides=False)


UNIT = Target("1H-2V", lambda: c.density("1H-2V"), (BITS[:, :2],), one_layer)
ONE_LAYER = Target("2H-3V", lambda: c.density("2H-3V"), (BITS,), one_layer)
TWO_LAYERS = Target("2H~1H-3V", lambda: c.density("2H~1H-3V"), (BITS,), two_layers)
FOUR_STATES = Target("4H:4-3V", lambda: c.density("4H:4-3V"), (BITS,), four_states)
ONE_BETWEEN = Target("2V-2H-2V", lambda: c.prediction("2V-2H-2V"), (BITS[:, :2], BITS[:, 1:]), one_between)
TWO_BETWEEN = Target("2V-1H~2H-2V", lambda: c.prediction("2V-1H~2H-2V"), (BITS[:, :2], BITS[:, 1:]), two_between)
PROGRAM = Target("program", Gamble, (BITS,), gamble)
DENSITIES = (ONE_LAYER, TWO_LAYERS, FOUR_STATES)
MODELS = (*DENSITIES, ONE_BETWEEN, TWO_BETWEEN)
SUBSETS = Target("program-subset", Selection, (BITS,), selection)
TARGETS = (*MODELS, PROGRAM, SUBSETS)


def each(*targets: Target) -> pytest.MarkDecorator:
    """Run a law over targets."""
    return pytest.mark.parametrize("target", targets, ids=[target.name for target in targets])
