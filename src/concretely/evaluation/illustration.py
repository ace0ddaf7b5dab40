"""Runs of small examples, for pictures of stochastic graphs. Runs at all temperatures use the same noise."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from ..distribution import Bernoulli, OneHotCategorical
from ..graph.mode import Discrete as DiscreteMode
from ..graph.mode import Mode, Relaxed, Replay
from ..graph.program import Draw
from ..graph.run import run
from ..graph.trace import Trace
from ..model import Model, density, prediction
from ..notation import Architecture

SEED = 161
"""With this seed every entry of the example at temperature 1/2 has a different shade."""


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
