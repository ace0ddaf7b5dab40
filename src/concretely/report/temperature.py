"""What temperatures do to training: the objective of the relaxed graph and of the discrete one, and the gap."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from ..data.dataset import Dataset
from ..estimator import estimate
from ..evaluation.likelihood import standard_error
from ..evaluation.progress import counting
from ..model import Model
from ..program import eval_mode
from ..training.chance import Purpose, generator_of
from ..training.method import cooled
from ..training.recipe import Recipe
from ..training.trainer import inputs_of
from .figure import DARK, INK, PALE, STRONG, written

CHUNK = 4_096
"""How many pairs of a sample and a data point are run at once."""
GAP = 2.0
"""From how many nats on the discrete graph is said to suffer."""


class Point(NamedTuple):
    """The two objectives of a model trained at a temperature: lower is better."""

    temperature: float
    relaxed: float
    discrete: float

    @property
    def gap(self) -> float:
        """What is lost when states are rounded."""
        return self.discrete - self.relaxed


def relaxed(
    recipe: Recipe,
    model: Model,
    data: Dataset,
    *,
    part: str,
    samples: int,
    step: int,
    chunk: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """The objective of the relaxed graph at the temperatures of a step, as a record has it.

    `chunk` is how many pairs of a sample and a data point are run at once.
    """
    if not recipe.method.relaxes:
        raise ValueError(f"a relaxed graph must be trained by an estimator that relaxes, got {recipe.estimator!r}")
    estimator = cooled(recipe, step)
    device = next(model.parameters()).device
    generator = generator_of(recipe.seed, Purpose.EVALUATION, device=device)
    bits, bounds = data.split(part), []
    points = max(1, (chunk or CHUNK) // samples)
    with eval_mode(model), torch.no_grad(), counting("relaxed graph", len(bits), shown=progress) as advance:
        for first in range(0, len(bits), points):
            inputs = inputs_of(recipe, bits[first : first + points].to(device))
            found = estimate(model, *inputs, estimator=estimator, samples=samples, generator=generator)
            bounds.append(found.bound.double().cpu())
            advance(len(bounds[-1]))
    objective = -torch.cat(bounds)
    return {
        "value": objective.mean().item(),
        "standard_error": standard_error(objective),
        "samples": samples,
        "points": len(objective),
        "title": f"{part} objective of the relaxed graph",
        "meaning": "What was trained, where the NLL is of the discrete graph; lower is better.",
    }


def temperature(points: Sequence[Point], *, note: str = "") -> Figure:
    """The two objectives against the temperature; where the gap between them is large, the page is shaded.

    There units prefer to say real numbers between the states. See [maddison2017concrete], figure 4.

    >>> (axes,) = temperature([Point(0.5, 60.0, 60.1), Point(2.0, 50.0, 70.0)]).axes
    >>> [line.get_label() for line in axes.lines]
    ['discrete graph', 'relaxed graph']
    """
    if not points:
        raise ValueError("points must hold at least one temperature, got none")
    points = sorted(points)
    temperatures = [point.temperature for point in points]
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for label, color, marker in (("discrete", DARK, "o"), ("relaxed", STRONG, "s")):
        heights = [getattr(point, label) for point in points]
        face = color if label == "discrete" else "white"
        axes.plot(
            temperatures, heights, color=color, marker=marker, markerfacecolor=face, label=f"{label} graph", zorder=3
        )
    axes.set_xscale("log")
    axes.set_xlim(temperatures[0] / 1.1, temperatures[-1] * 1.1)
    start = interior(points)
    if start is not None:
        axes.axvspan(
            start, temperatures[-1] * 1.1, color=PALE, alpha=0.4, linewidth=0, label=f"gap above {GAP:g} nats", zorder=1
        )
    axes.xaxis.set_major_locator(FixedLocator(temperatures))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, place: written(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("temperature λ", fontsize=9, color=INK)
    axes.set_ylabel("training objective in nats, lower is better", fontsize=9, color=INK)
    axes.tick_params(labelsize=8, labelcolor=INK, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(note, fontsize=8, color=INK, loc="left", parse_math=False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8, labelcolor=INK)
    return figure


def interior(points: Sequence[Point]) -> float | None:
    """The temperature from which on the gap stays large, on a line between the two around it; None if there is none.

    >>> interior([Point(1.0, 50.0, 51.0), Point(2.0, 50.0, 53.0), Point(3.0, 50.0, 59.0)])
    1.5
    """
    small = [index for index, point in enumerate(points) if point.gap <= GAP]
    if not small:
        return points[0].temperature
    if small[-1] + 1 == len(points):
        return None
    below, above = points[small[-1]], points[small[-1] + 1]
    share = (GAP - below.gap) / (above.gap - below.gap)
    return below.temperature + share * (above.temperature - below.temperature)


def point(record: Mapping[str, Any], *, part: str) -> Point | None:
    """What a record knows of a temperature, if it knows both objectives of a part of the data."""
    metrics = record["metrics"]
    relaxed, discrete = (metrics.get(f"{part}_{name}", {}).get("value") for name in ("relaxed", "nll"))
    return None if relaxed is None or discrete is None else Point(record["recipe"]["temperature"], relaxed, discrete)
