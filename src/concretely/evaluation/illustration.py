"""Small examples for figures: Concrete densities, and runs of stochastic graphs with the same noise throughout."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..distribution import Bernoulli, BinaryConcrete, Concrete, Logistic, OneHotCategorical
from ..graph.mode import Discrete as DiscreteMode
from ..graph.mode import Mode, Relaxed, Replay
from ..graph.program import Draw
from ..graph.run import run
from ..graph.trace import Trace
from ..model import Model, density, prediction
from ..notation import Architecture

SEED = 161
"""With this seed every entry of the example at temperature 1/2 has a different shade."""


@dataclass(frozen=True)
class SimplexDensity:
    """The Concrete density of three categories at the centres of tiles of the simplex."""

    masses: list[float]
    """The probabilities of the categories."""
    tiles: Float[Tensor, "tiles 3 3"]
    """The corners of every tile."""
    density: Float[Tensor, "tiles"] | None
    """The density, or None at temperature zero."""
    top: float
    """The density at the top of the scale."""


@dataclass(frozen=True)
class BinaryDensity:
    """The density of noisy log-odds, the sigmoid that maps them, and the density of its output."""

    mass: float
    """The probability of one."""
    noisy: Float[Tensor, "points"]
    noisy_density: Float[Tensor, "points"]
    squashed: Float[Tensor, "points"]
    """The sigmoid of the noisy log-odds over the temperature."""
    value: Float[Tensor, "values"]
    density: Float[Tensor, "values"] | None
    """The density of the values, or None at temperature zero."""
    top: float
    """The density at the top of the scale."""


def simplex_density(alpha: Sequence[float], temperature: float) -> SimplexDensity:
    """Return the density of a Concrete variable with probabilities proportional to `alpha`."""
    if len(alpha) != 3:
        raise ValueError(f"alpha must be three positive numbers, got {len(alpha)}")
    relaxed = Concrete(logits=torch.tensor(alpha, dtype=torch.float64).log(), temperature=temperature)
    tile, density = tiles(200), None  # two dots wide
    if temperature:
        density = relaxed.log_prob(tile.mean(1)).exp()
    top = 1.0 if density is None else _ceiling(density, temperature, n=3)
    return SimplexDensity(relaxed.discretize().probs.tolist(), tile, density, top)


def binary_density(alpha: float, temperature: float) -> BinaryDensity:
    """Return the densities of a binary Concrete variable with odds `alpha`, before and after squashing."""
    logits = torch.tensor(alpha, dtype=torch.float64).log()
    relaxed, density = BinaryConcrete(logits=logits, temperature=temperature), None
    half = (6 + logits.abs()) * torch.linspace(
        1e-9, 1, 200, dtype=torch.float64
    )  # both sides end next to the step at 0
    noisy = torch.cat([-half.flip(0), half])
    law = Logistic(logits=logits, temperature=1.0).log_prob(noisy).exp()
    value = torch.linspace(0, 1, 401, dtype=torch.float64)[1:-1]
    if temperature:
        density = relaxed.log_prob(value).exp()
    top = 1.0 if density is None else _ceiling(density, temperature, n=2)
    mass = relaxed.discretize().probs.item()
    return BinaryDensity(mass, noisy, law, relaxed.push(noisy - logits), value, density, top)


def tiles(side: int) -> Float[Tensor, "tiles 3 3"]:
    """Return the corners of equal triangles that tile the simplex, `side` of them along a side.

    >>> tiles(200).shape
    torch.Size([40000, 3, 3])
    """
    corner = torch.eye(3, dtype=torch.float64)
    upright = _lattice(side - 1)[:, None] + corner
    inverted = _lattice(side - 2)[:, None] + 1 - corner
    return torch.cat([upright, inverted]) / side


def _ceiling(density: Float[Tensor, "points"], temperature: float, *, n: int) -> float:
    """Return the density at the top of the scale: the maximum or, if the density is unbounded, the 95th percentile."""
    bounded = temperature >= n - 1  # at lower temperatures the density is unbounded at the vertices
    height = float(density.max() if bounded else density.quantile(0.95))
    return height or 1.0  # all mass may lie between the points


def _lattice(total: int) -> Float[Tensor, "points 3"]:
    """Return all triples of nonnegative integers with a given sum."""
    points = [(i, j, total - i - j) for i in range(total + 1) for j in range(total + 1 - i)]
    return torch.tensor(points, dtype=torch.float64).view(-1, 3)


def sampling_traces(alpha: Sequence[float], temperatures: Sequence[float]) -> list[tuple[float, dict[str, Trace]]]:
    """Sample a variable with probabilities proportional to `alpha` at each temperature; at zero it is discrete.

    A single number is the odds of a binary variable.
    """
    if not 1 <= len(alpha) <= 6:
        raise ValueError(f"alpha must be one to six positive numbers, got {len(alpha)}")
    logits = torch.tensor(alpha, dtype=torch.float64).log()
    variable = Bernoulli(logits=logits[0]) if len(alpha) == 1 else OneHotCategorical(logits=logits)

    def trace(temperature: float) -> Trace:
        name = "X" if temperature else "D"
        return run(lambda draw: draw(name, variable), mode=_mode(temperature), generator=_generator())

    return [(temperature, {"": trace(temperature)}) for temperature in temperatures]


def network_traces(architecture: Architecture, temperatures: Sequence[float]) -> list[tuple[float, dict[str, Trace]]]:
    """Run the network p of an untrained model and, if it has one, the network q, on a sample of the model."""
    build = density if architecture.context is None else prediction
    model = build(architecture, generator=_generator()).eval()
    with torch.no_grad():
        return [(temperature, _runs(model, architecture, _mode(temperature))) for temperature in temperatures]


def _generator() -> Generator:
    return Generator().manual_seed(SEED)


def _mode(temperature: float) -> Mode:
    return Relaxed(temperature) if temperature else DiscreteMode()


def _runs(model: Model, architecture: Architecture, mode: Mode) -> dict[str, Trace]:
    """Run p and q, with their inputs as observed nodes."""
    generator = _generator()

    def given(draw: Draw, name: str, bits: Tensor) -> Tensor:
        return draw(name, Bernoulli(logits=torch.zeros_like(bits)), observed=bits)

    if architecture.context is not None:
        context = Bernoulli(logits=torch.zeros(1, architecture.context.units)).sample(generator=generator)
        (x,) = model.sample(1, context, generator=generator)

        def predict(draw: Draw, context: Tensor) -> None:
            model.p(draw, given(draw, "context", context), x)

        return {"p": run(predict, context, mode=mode, generator=generator)}

    x = model.sample(1, generator=generator)

    def infer(draw: Draw, x: Tensor) -> None:
        assert model.q is not None
        model.q(draw, given(draw, "x", x))

    q = run(infer, x, mode=mode, generator=generator)
    return {"p": run(model.p, x, mode=Replay(q, mode)), "q": q}
