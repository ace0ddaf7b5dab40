"""`concretely figure`: draw the paper's pictures of the Concrete density and of sampling graphs."""

import math
from collections.abc import Sequence
from pathlib import Path
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import numbers, prepare, refuse, save

if TYPE_CHECKING:
    from ..notation import Architecture

app = typer.Typer(
    help="Draw the paper's pictures of the Concrete density and of sampling graphs, as PNG and SVG.",
    epilog="Example: concretely figure binary --alpha 1",
    no_args_is_help=True,
)

LAYERS, UNITS, ARITY = 8, 2048, 16
"""The most that a drawn model may have, so that it fits on a page and into memory."""

Temperature = Annotated[str, typer.Option(help="Temperatures λ separated by commas, one panel each; 0 is discrete.")]
Out = Annotated[Path, typer.Option(help="The folder to write to, created where it is missing.")]


@app.command(epilog="Example: concretely figure simplex --alpha 1,1,1 --temperature 0,1/2,2")
def simplex(
    alpha: Annotated[str, typer.Option(help="Three unnormalised probabilities α, separated by commas.")] = "2,0.5,1",
    temperature: Temperature = "0,1/2,1,2",
    *,
    out: Out = Path("out/figure"),
) -> None:
    """Draw the density of three categories on a triangle."""
    alphas, temperatures = numbers(alpha), _temperatures(temperature)
    if len(alphas) != 3 or not _positive(alphas):
        refuse(f"alpha must be three positive numbers, got {alpha!r}")
    prepare(out)

    from ..report import figure

    save(figure.simplex(alphas, temperatures), out / "simplex")


@app.command(epilog="Example: concretely figure binary --alpha 1/2 --temperature 0,1/3,3")
def binary(
    alpha: Annotated[str, typer.Option(help="The odds α of a one.")] = "2",
    temperature: Temperature = "0,1/2,1,2",
    *,
    out: Out = Path("out/figure"),
) -> None:
    """Draw noisy log-odds, the curve they pass through and the density behind it."""
    alphas, temperatures = numbers(alpha), _temperatures(temperature)
    if len(alphas) != 1 or not _positive(alphas):
        refuse(f"alpha must be one positive number, got {alpha!r}")
    prepare(out)

    from ..report import figure

    save(figure.binary(alphas[0], temperatures), out / "binary")


@app.command(epilog="Example: concretely figure graph 200H~784V --temperature 2/3")
def graph(
    notation: Annotated[
        str | None, typer.Argument(help="A model in the paper's notation, whose networks to draw instead.")
    ] = None,
    alpha: Annotated[
        str | None,
        typer.Option(
            help="Up to six unnormalised probabilities α, separated by commas; one alone is the odds of a binary one.",
            show_default="2,0.5,1",
        ),
    ] = None,
    temperature: Temperature = "0,1/2",
    *,
    out: Out = Path("out/figure"),
) -> None:
    """Draw how a variable is sampled, or the networks of a model."""
    temperatures = _temperatures(temperature)
    alphas = numbers("2,0.5,1" if alpha is None else alpha)
    if len(alphas) > 6 or not _positive(alphas):
        refuse(f"alpha must be one to six positive numbers, got {alpha!r}")
    architecture = None if notation is None else _architecture(notation)
    if architecture is not None and alpha is not None:
        refuse(f"alpha must be left out beside a notation, got {alpha!r}")
    prepare(out)

    from ..report import graph

    if architecture is None:
        save(graph.sampling(alphas, temperatures), out / "graph")
    else:
        save(graph.networks(architecture, temperatures), out / "graph")


def _architecture(notation: str) -> "Architecture":
    """A model that can be drawn."""
    from ..notation import parse

    try:
        architecture = parse(notation)
    except ValueError as error:
        refuse(str(error))
    layers = architecture.layers
    if len(layers) > LAYERS or any(layer.units > UNITS or layer.arity > ARITY for layer in layers):
        most = f"{LAYERS} layers of at most {UNITS} units and an arity of at most {ARITY}"
        refuse(f"notation must have at most {most} to be drawn, got {shortened(str(architecture))}")
    return architecture


def _temperatures(text: str) -> list[float]:
    temperatures = numbers(text)
    if not all(0 <= temperature < math.inf for temperature in temperatures):
        refuse(f"temperature must be one or more numbers not below 0, got {text!r}")
    return temperatures


def _positive(numbers: Sequence[float]) -> bool:
    return all(0 < number < math.inf for number in numbers)
