"""`concretely figure`: the paper's figures of Concrete densities and of stochastic graphs."""

import math
from pathlib import Path
from reprlib import repr as shortened
from typing import Annotated

import typer

from ..file import writable_dir
from ..notation import Architecture, parse
from ..spelling import number
from .option import folder_of, option
from .terminal import fail, report_errors, require, save

app = typer.Typer(
    help="Draw the paper's figures of Concrete densities and of stochastic graphs, as PNG and SVG.",
    epilog="Example: concretely figure binary --alpha 1",
    no_args_is_help=True,
)

LAYERS, UNITS, ARITY = 8, 2048, 16
"""The largest model that is drawn, so that it fits on a page and into memory."""

ALPHA = "2,0.5,1"
"""The example in the paper's figure."""

Temperature = Annotated[str, typer.Option(help="Temperatures λ, separated by commas, one panel each; 0 is discrete.")]
Out = Annotated[Path, typer.Option(**folder_of("out"), help="Output folder.")]


@app.command(epilog="Example: concretely figure simplex --alpha 1,1,1 --temperature 0,1/2,2")
def simplex(
    alpha: Annotated[str, typer.Option(help="Three unnormalised probabilities α, separated by commas.")] = ALPHA,
    temperature: Temperature = "0,1/2,1,2",
    *,
    out: Out = Path("out/figure"),
) -> None:
    """Draw the density of three categories on a triangle."""
    alphas, temperatures = _alphas(alpha, "three positive numbers", 3, 3), _temperatures(temperature, out)

    from ..report import relaxation

    save(relaxation.simplex(alphas, temperatures), out / "simplex")


@app.command(epilog="Example: concretely figure binary --alpha 1/2 --temperature 0,1/3,3")
def binary(
    alpha: Annotated[str, typer.Option(help="The odds α of a one.")] = "2",
    temperature: Temperature = "0,1/2,1,2",
    *,
    out: Out = Path("out/figure"),
) -> None:
    """Draw noisy log-odds, the sigmoid that maps them, and the density of its output."""
    alphas, temperatures = _alphas(alpha, "one positive number", 1, 1), _temperatures(temperature, out)

    from ..report import relaxation

    save(relaxation.binary(alphas[0], temperatures), out / "binary")


@app.command(epilog="Example: concretely figure graph 200H~784V --temperature 2/3")
def graph(
    notation: Annotated[
        str | None, typer.Argument(help="Model in the paper's notation, to draw its networks instead of a variable.")
    ] = None,
    alpha: Annotated[
        str | None,
        option(
            "Up to six unnormalised probabilities α, separated by commas; a single one is the odds of a one.", ALPHA
        ),
    ] = None,
    temperature: Temperature = "0,1/2",
    *,
    out: Out = Path("out/figure"),
) -> None:
    """Draw how a variable is sampled, or the networks of a model."""
    alphas = _alphas(ALPHA if alpha is None else alpha, "one to six positive numbers", 1, 6)
    architecture = None if notation is None else _architecture(notation)
    if architecture is not None and alpha is not None:
        fail(f"alpha must be left out with a notation, got {alpha!r}")
    temperatures = _temperatures(temperature, out)

    from ..evaluation.illustration import network_traces, sampling_traces
    from ..report.diagram import side_by_side

    if architecture is None:
        traces = sampling_traces(alphas, temperatures)
    else:
        traces = network_traces(architecture, temperatures)
    save(side_by_side(traces), out / "graph")


def _architecture(notation: str) -> Architecture:
    """Parse the notation of a model that is small enough to be drawn."""
    with report_errors():
        architecture = parse(notation)
    layers = architecture.layers
    if len(layers) > LAYERS or any(layer.units > UNITS or layer.arity > ARITY for layer in layers):
        most = f"{LAYERS} layers of at most {UNITS} units and an arity of at most {ARITY}"
        fail(f"notation must have at most {most} to be drawn, got {shortened(str(architecture))}")
    return architecture


def _alphas(text: str, must: str, least: int, most: int) -> list[float]:
    alphas = [number(entry) for entry in text.split(",")]
    require(least <= len(alphas) <= most and all(0 < alpha < math.inf for alpha in alphas), "alpha", f"be {must}", text)
    return alphas


def _temperatures(text: str, out: Path) -> list[float]:
    """Parse the temperatures, the last flag to be checked, and create the output folder."""
    temperatures = [number(entry) for entry in text.split(",")]
    possible = all(0 <= temperature < math.inf for temperature in temperatures)
    require(possible, "temperature", "be one or more numbers that are not negative", text)
    with report_errors():
        writable_dir(out)
    return temperatures
