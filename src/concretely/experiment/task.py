"""Six small tasks with discrete variables, on which estimators are compared."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import cross_entropy

from ..data import load_data
from ..data.grey import digit_labels
from ..distribution import Bernoulli, OneHotCategorical
from ..estimator import Exact, estimate
from ..evaluation.likelihood import evaluate
from ..graph import Draw, tile
from ..model import Model, prediction

Inputs = tuple[Tensor, ...]
SIDE = 8
"""The height and width of a digit."""
PRICE = 0.05
"""The cost of an open gate, in nats."""

LIKELIHOOD = ("pathwise", "straight-through", "straight-through-gumbel-softmax", "reinforce", "rloo", "nvil", "vimco")
"""The estimators of a likelihood."""
COST = (*LIKELIHOOD[:-1], "exact")
"""The estimators of the expected cost of a program with few states."""
KL = (LIKELIHOOD[0], "concrete", "gumbel-softmax", *LIKELIHOOD[1:])
"""The estimators of a likelihood with an inference network; some differ only in their KL."""


@dataclass(frozen=True)
class Task:
    """A model or program, its data, and how it is scored."""

    description: str
    build: Callable[[], nn.Module]
    """Returns the model or program before training."""
    inputs: Callable[[str], Inputs]
    """Returns the inputs of a split."""
    score: Callable[..., Float[Tensor, " points"]]
    """Returns the score of every data point in nats, on the discrete graph. Lower is better."""
    estimators: tuple[str, ...]
    """The names of the estimators that suit the task."""
    steps: int


class Code(nn.Module):
    """Latent variables with a number of states: a distribution from logits, and values as features."""

    def __init__(self, units: int, states: int) -> None:
        super().__init__()
        self.units, self.states = units, states
        self.width = units if states == 2 else units * states

    def forward(self, logits: Float[Tensor, "*batch width"]) -> Distribution:
        """Return the distribution of the latents."""
        if self.states == 2:
            return Bernoulli(logits=logits)
        return OneHotCategorical(logits=logits.unflatten(-1, (self.units, self.states)))


class Generative(nn.Module):
    """The program p of a variational autoencoder of digits, with a prior that is learned."""

    def __init__(self, code: Code, decoder: nn.Module) -> None:
        super().__init__()
        self.code, self.decoder = code, decoder
        self.prior = nn.Parameter(torch.zeros(code.width))

    def forward(self, draw: Draw, x: Float[Tensor, "batch pixels"] | None = None) -> Tensor:
        """Draw the latents, then the pixels."""
        z = draw("z", self.code(self.prior))
        return draw("x", Bernoulli(logits=self.decoder(z.flatten(1))), observed=x)


class Inference(nn.Module):
    """The program q of a variational autoencoder of digits."""

    def __init__(self, code: Code, encoder: nn.Module) -> None:
        super().__init__()
        self.code, self.encoder = code, encoder

    def forward(self, draw: Draw, x: Float[Tensor, "batch pixels"]) -> None:
        """Draw the latents from the pixels."""
        draw("z", self.code(self.encoder(2 * x - 1)))


def vae(units: int, states: int, *, convolutional: bool = False) -> Model:
    """Return a variational autoencoder of digits.

    >>> vae(10, 8).sample(3).shape
    torch.Size([3, 64])
    """
    code, pixels, hidden = Code(units, states), SIDE * SIDE, 128
    encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, code.width))
    decoder = nn.Sequential(nn.Linear(code.width, hidden), nn.ReLU(), nn.Linear(hidden, pixels))
    if convolutional:
        down = nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten()
        encoder = nn.Sequential(nn.Unflatten(1, (1, SIDE, SIDE)), *down, nn.Linear(hidden, code.width))
        up = nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Flatten()
        decoder = nn.Sequential(nn.Linear(code.width, hidden), nn.ReLU(), nn.Unflatten(1, (32, 2, 2)), *up)
    return Model(Generative(code, decoder), Inference(code, encoder))


class Gates(nn.Module):
    """A classifier whose hidden layer has eight blocks, each behind a hard gate with a price.

    >>> x, label = torch.zeros(5, 64), torch.zeros(5, dtype=torch.int64)
    >>> estimate(Gates(), x, label, estimator=Exact()).bound.shape
    torch.Size([5])
    """

    def __init__(self, blocks: int = 8, width: int = 8) -> None:
        super().__init__()
        self.blocks = blocks
        self.gate = nn.Linear(SIDE * SIDE, blocks)
        self.hidden = nn.Linear(SIDE * SIDE, blocks * width)
        self.last = nn.Linear(blocks * width, 10)

    def forward(
        self, draw: Draw, x: Float[Tensor, "batch pixels"], label: Int64[Tensor, " batch"]
    ) -> Float[Tensor, " rows"]:
        """Return the cross-entropy and the price of the open gates."""
        gate = draw("gate", Bernoulli(logits=self.gate(2 * x - 1)))
        hidden = tile(self.hidden(2 * x - 1).relu(), gate).unflatten(1, (self.blocks, -1))
        logits = self.last((gate.unsqueeze(-1) * hidden).flatten(1))
        return cross_entropy(logits, tile(label, gate), reduction="none") + PRICE * gate.sum(-1)


class Recurrent(nn.Module):
    """A recurrent network over the rows of a digit whose hidden state is two discrete variables of 16 states.

    >>> Model(Recurrent()).sample(3).shape
    torch.Size([3, 64])
    """

    def __init__(self, units: int = 2, states: int = 16, width: int = 64) -> None:
        super().__init__()
        self.shape = units, states
        size = units * states
        self.transition = nn.Sequential(nn.Linear(size + SIDE, width), nn.ReLU(), nn.Linear(width, size))
        self.emission = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, SIDE))

    def forward(self, draw: Draw, x: Float[Tensor, "batch pixels"] | None = None) -> Tensor:
        """Draw the state of every row, given the last state and the last row, and then the row."""
        batch = 1 if x is None else len(x)
        like = next(self.parameters())
        state, row = like.new_zeros(batch, math.prod(self.shape)), like.new_zeros(batch, SIDE)
        rows = []
        for step in range(SIDE):
            logits = self.transition(torch.cat([state, tile(row, state)], -1)).unflatten(-1, self.shape)
            state = draw(f"state{step}", OneHotCategorical(logits=logits)).flatten(1)
            seen = None if x is None else x[:, step * SIDE : (step + 1) * SIDE]
            row = draw(f"row{step}", Bernoulli(logits=self.emission(state)), observed=seen)
            rows.append(row)
        return torch.cat(rows, -1)


def likelihood(samples: int) -> Callable[..., Float[Tensor, " points"]]:
    """Return a score: the negative log-likelihood of every data point, from a number of samples."""

    def score(model: Model, *inputs: Tensor, generator: Generator, share: float = 1.0) -> Float[Tensor, " points"]:
        number = max(1, round(share * samples))
        return -evaluate(model, *inputs, samples=number, generator=generator).log_likelihood

    return score


def expected_cost(
    program: nn.Module, *inputs: Tensor, generator: Generator, share: float = 1.0
) -> Float[Tensor, " points"]:
    """Return the exact expected cost of every data point, by enumeration."""
    with torch.no_grad():
        return -estimate(program, *inputs, estimator=Exact()).bound.double()


@cache
def pictures(split: str) -> Inputs:
    """Return the digits of a split."""
    return (load_data("digits").split(split)[:].float(),)


def halves(split: str) -> Inputs:
    """Return the upper and the lower halves of the digits of a split."""
    (x,) = pictures(split)
    return x[:, : SIDE * SIDE // 2], x[:, SIDE * SIDE // 2 :]


def labelled(split: str) -> Inputs:
    """Return the digits of a split and their labels."""
    return *pictures(split), torch.from_numpy(digit_labels()[split])


TASKS = {
    "binary-vae": Task("VAE, 30 binary latents", lambda: vae(30, 2), pictures, likelihood(500), KL, 2000),
    "8-way-vae": Task(
        "convolutional VAE, 10 latents of 8 states",
        lambda: vae(10, 8, convolutional=True),
        pictures,
        likelihood(500),
        KL,
        1500,
    ),
    "64-way-vae": Task("VAE, 5 latents of 64 states", lambda: vae(5, 64), pictures, likelihood(500), KL, 1500),
    "prediction": Task(
        "lower halves from upper halves, 32 binary latents",
        lambda: prediction("32V~32H~32V"),
        halves,
        likelihood(500),
        LIKELIHOOD,
        2000,
    ),
    "gate": Task("classifier with 8 hard gates", Gates, labelled, expected_cost, COST, 1000),
    "rnn": Task(
        "recurrent network, 2 latents of 16 states at each row",
        lambda: Model(Recurrent()),
        pictures,
        likelihood(500),
        LIKELIHOOD,
        1000,
    ),
}
"""The tasks by name."""
