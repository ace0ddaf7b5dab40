"""Runs of stochastic graphs as figures.

As in the paper, white operations are deterministic and blue ones stochastic, rounded ones continuous and square ones
discrete, and the brightness of an example state is its value. The path of a gradient that is not a state's own is
dashed, and what was observed has a grey ground. See [maddison2017concrete], figure 1.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D
from torch import Generator, Tensor

from ..distribution import Bernoulli, OneHotCategorical
from ..graph import run
from ..mode import Discrete as DiscreteMode
from ..mode import Mode, Relaxed, Replay
from ..model import Model, density, prediction
from ..notation import Architecture
from ..program import Draw
from ..trace import Trace
from .anatomy import anatomy, is_small
from .figure import written
from .layout import GAP, Flow, Layout, layout
from .pen import Point, arrow
from .portrait import Box, Full

SEED = 161
"""That of the examples; in the paper's, at a temperature of one half, every entry has a shade of its own."""

PAGE = 10.8
"""The width of a page in inches."""


class Sketch(NamedTuple):
    """A graph before it is drawn."""

    portraits: Sequence[Box | Full]
    layout: Layout


Panel = tuple[str, Sequence[tuple[str, Sketch]]]
"""A caption, and over it a column of sketches, which may have names."""


def picture(trace: Trace) -> Figure:
    """A run in layers of nodes: a small one in full and from the bottom up, a large one with a box for every node.

    >>> from concretely import mode
    >>> figure = picture(run(lambda draw: draw("D", OneHotCategorical(torch.zeros(3))), mode.Relaxed(0.5)))
    """
    sketch = _in_full(trace) if is_small(anatomy(trace)) else _in_boxes(trace, "right")
    return _page([("", [("", sketch)])])


def sampling(alpha: Sequence[float], temperatures: Sequence[float]) -> Figure:
    """How a variable of a few categories is drawn, at each temperature from the same noise; at zero it is discrete.

    A single α is the odds of a binary variable. See [maddison2017concrete], figure 1.

    >>> figure = sampling([2.0, 0.5, 1.0], [0.0, 0.5])
    """
    if not 1 <= len(alpha) <= 6:
        raise ValueError(f"alpha must be one to six positive numbers, got {len(alpha)}")
    logits = torch.tensor(alpha, dtype=torch.float64).log()
    variable = Bernoulli(logits[0]) if len(alpha) == 1 else OneHotCategorical(logits)
    panels = []
    for temperature in temperatures:
        name = "X" if temperature else "D"
        trace = run(lambda draw, name=name: draw(name, variable), _mode(temperature), generator=_generator())
        panels.append((_caption(temperature), [("", _in_full(trace))]))
    return _page(panels)


def networks(architecture: Architecture, temperatures: Sequence[float]) -> Figure:
    """The generative network of a model and, below it, that of inference, at each temperature from the same noise.

    The model is untrained, and the data are its own. Layers stand in the order of the notation.

    >>> from concretely import parse
    >>> figure = networks(parse("6H~8V"), [0.0])
    """
    build = density if architecture.context is None else prediction
    model = build(architecture, generator=_generator()).eval()
    flows: dict[str, Flow] = {"p": "right", "q": "left"}
    panels = []
    with torch.no_grad():
        for temperature in temperatures:
            runs = _runs(model, architecture, _mode(temperature))
            column = [(name, _in_boxes(trace, flows[name])) for name, trace in runs.items()]
            panels.append((_caption(temperature), column))
    return _page(panels)


def _generator() -> Generator:
    return Generator().manual_seed(SEED)


def _mode(temperature: float) -> Mode:
    return Relaxed(temperature) if temperature else DiscreteMode()


def _caption(temperature: float) -> str:
    return f"λ = {written(temperature)}"


def _runs(model: Model, architecture: Architecture, mode: Mode) -> dict[str, Trace]:
    """The run of p and, where there is one, that of q, in which what they are given is a node as well."""
    generator = _generator()

    def given(draw: Draw, name: str, bits: Tensor) -> Tensor:
        return draw(name, Bernoulli(torch.zeros_like(bits)), observed=bits)

    if architecture.context is not None:
        context = Bernoulli(torch.zeros(1, architecture.context.units)).sample(generator=generator)
        (x,) = model.sample(1, context, generator=generator)

        def predict(draw: Draw, context: Tensor) -> None:
            model.p(draw, given(draw, "context", context), x)

        return {"p": run(predict, mode, context, generator=generator)}

    x = model.sample(1, generator=generator)

    def infer(draw: Draw, x: Tensor) -> None:
        assert model.q is not None
        model.q(draw, given(draw, "x", x))

    q = run(infer, mode, x, generator=generator)
    return {"p": run(model.p, Replay(q, mode), x), "q": q}


def _in_full(trace: Trace) -> Sketch:
    nodes = anatomy(trace)
    return _sketch(trace, [Full(node, framed=len(nodes) > 1) for node in nodes], flow="up")


def _in_boxes(trace: Trace, flow: Flow) -> Sketch:
    return _sketch(trace, [Box(node) for node in anatomy(trace)], flow=flow)


def _sketch(trace: Trace, portraits: Sequence[Box | Full], *, flow: Flow) -> Sketch:
    sizes = {portrait.node.name: portrait.size for portrait in portraits}
    return Sketch(portraits, layout(trace.parents, sizes, flow=flow))


def _page(panels: Sequence[Panel]) -> Figure:
    """A figure of panels in rows as wide as a page."""
    if not panels:
        raise ValueError("temperatures must hold at least one number, got none")
    aside = 0.25 if any(name for _, column in panels for name, _ in column) else 0.0
    foot = 0.3 if any(caption for caption, _ in panels) else 0.0
    width = max(sketch.layout.width for _, column in panels for _, sketch in column) + 2 * aside + GAP
    height = max(sum(sketch.layout.height + GAP for _, sketch in column) for _, column in panels) + foot
    columns = min(len(panels), max(1, int(PAGE / width)))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(columns * width, rows * height))
    axes = figure.add_axes((0, 0, 1, 1), frame_on=False, xticks=[], yticks=[])
    for place, (caption, column) in enumerate(panels):
        left, top = place % columns * width, (rows - place // columns) * height - GAP / 2
        centre = left + width / 2
        for name, sketch in column:
            bottom = top - sketch.layout.height
            axes.text(left + GAP / 2, (top + bottom) / 2, name, va="center", fontsize=11, style="italic")
            _draw(axes, sketch, (centre - sketch.layout.width / 2, bottom))
            top = bottom - GAP
        axes.text(centre, top + GAP - 0.14, caption, ha="center", va="top", fontsize=11)
    axes.set(xlim=(0, columns * width), ylim=(0, rows * height))
    return figure


def _draw(axes: Axes, sketch: Sketch, corner: Point) -> None:
    """Draw nodes, and the arrows between them."""
    for path in sketch.layout.arrows:
        arrow(axes, path.transformed(Affine2D().translate(*corner)))
    for portrait in sketch.portraits:
        x, y = sketch.layout.middles[portrait.node.name]
        portrait.draw(axes, (x + corner[0], y + corner[1]))
