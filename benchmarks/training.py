"""The training step that every contender takes, from the same weights and on the same batch."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

BATCH = 64
PIXELS = 784
WIDTH = 200
"""The width of all hidden layers, stochastic and deterministic."""

TEMPERATURE, PRIOR_TEMPERATURE = 2 / 3, 1 / 2
LEARNING_RATE, BETAS, EPSILON = 1e-4, (0.9, 0.999), 1e-8
RATE = 0.9
"""The decay of a running average in a step."""

Affine = tuple[NDArray[np.float32], NDArray[np.float32]]
"""A matrix, with a row for every output, and a bias."""

Link = list[Affine]
"""The link between two stochastic layers: affine maps with tanh between them."""


class Weights(NamedTuple):
    """The initial weights: the top logits, the links of the posterior upwards, and those of the model downwards."""

    top: NDArray[np.float32]
    encoder: list[Link]
    decoder: list[Link]


@dataclass(frozen=True)
class Training:
    """A model of binary pixels in the notation of the paper, and its training method: `concrete` or `vimco`.

    >>> task = Training("200H~784V", method="concrete", samples=5, seed=0)
    >>> [[matrix.shape for matrix, bias in link] for link in task.weights.decoder]
    [[(200, 200), (200, 200), (784, 200)]]
    """

    architecture: str
    method: Literal["concrete", "vimco"]
    samples: int
    seed: int

    @property
    def title(self) -> str:
        """The task in one line."""
        return f"training step of {self.architecture}, {self.method}, samples {self.samples}"

    @property
    def described(self) -> dict[str, Any]:
        """The task as a record stores it."""
        return {"architecture": self.architecture, "method": self.method, "samples": self.samples}

    @property
    def layers(self) -> int:
        """The number of stochastic layers."""
        return self.architecture.count("H")

    @property
    def batch(self) -> NDArray[np.float32]:
        """Random pixels, about 13 % of which are on, some often and most rarely."""
        random = np.random.default_rng((self.seed, 0))
        rates = random.beta(0.3, 2.0, PIXELS)
        return (random.random((BATCH, PIXELS)) < rates).astype(np.float32)

    @property
    def weights(self) -> Weights:
        """Matrices with Glorot's uniform initialization, biases and top logits of zero."""
        random = np.random.default_rng((self.seed, 1))
        inner = 2 if "~" in self.architecture else 0

        def link(inputs: int, outputs: int) -> Link:
            widths = [inputs, *[WIDTH] * inner, outputs]
            return [affine(random, *pair) for pair in pairwise(widths)]

        upwards = [PIXELS, *[WIDTH] * self.layers]
        return Weights(
            top=np.zeros(WIDTH, np.float32),
            encoder=[link(*pair) for pair in pairwise(upwards)],
            decoder=[link(*pair) for pair in pairwise(reversed(upwards))],
        )


def affine(random: np.random.Generator, inputs: int, outputs: int) -> Affine:
    """Return a matrix with Glorot's uniform initialization, and a bias of zero."""
    edge = (6 / (inputs + outputs)) ** 0.5
    return random.uniform(-edge, edge, (outputs, inputs)).astype(np.float32), np.zeros(outputs, np.float32)
