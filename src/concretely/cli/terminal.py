"""What all verbs share: one sentence for bad input, folders that can be written to, where things are printed."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ..spelling import did_you_mean, number

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table


Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1, …", show_default="cuda where there is one")
]

PRODUCTS = {"float32": "highest", "tf32": "high", "bfloat16": "medium"}
"""How precise products of matrices are, and what torch calls it."""
Products = Annotated[
    str | None,
    typer.Option(
        "--products", help=f"The precision of products on a GPU: {', '.join(PRODUCTS)}.", show_default="float32"
    ),
]

TOO_LARGE = "allocate|out of memory|overflow"
"""What torch says of tensors for which there is no room."""


def refuse(sentence: str) -> NoReturn:
    """Say what is wrong with the input, and stop."""
    typer.echo(sentence, err=True)
    raise typer.Exit(2)


def require(holds: bool, name: str, must: str, found: Any) -> None:
    """Go on if it holds, or say what a flag must be."""
    if not holds:
        refuse(f"{name} must {must}, got {found!r}")


@contextmanager
def refusing() -> Iterator[None]:
    """Say what the library has to say about the input, and stop."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        refuse(str(error))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search(TOO_LARGE, str(error), re.IGNORECASE):
            raise
        refuse("this does not fit into memory: lower samples, batch or chunk")


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Whether the user or the system has asked to stop; asked a second time, it is not asked again."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """Say what an interruption means, and stop."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(sentence, err=True)
        raise typer.Exit(130) from None


def numbers(text: str) -> list[float]:
    """The numbers of a list, NaN in place of what is none."""
    return [number(entry) for entry in text.split(",")]


def prepare(out: Path) -> None:
    """Make the folder, or say why it cannot be had."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(f"out must be a folder that can be written to, got {str(out)!r}: {error.strerror}")
    if not os.access(out, os.W_OK):
        refuse(f"out must be a folder that can be written to, got {str(out)!r}: Permission denied")


def require_known_products(products: str | None) -> None:
    """Refuse a precision that there is none of."""
    if products is not None and products not in PRODUCTS:
        refuse(f"unknown products {products!r}{did_you_mean(products, PRODUCTS)}")


def device(name: str | None, products: str | None = None) -> "torch.device":
    """The device of a name, or the best there is, set to multiply in a precision."""
    require_known_products(products)
    import torch

    torch.set_float32_matmul_precision(PRODUCTS[products or "float32"])

    best = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(best if name is None else name)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, ImportError, NotImplementedError):
        refuse(f"device must be one that torch has here, such as {best!r}, got {name!r}")
    if chosen.type not in ("cpu", "cuda"):
        refuse(f"device must be a CPU or CUDA device, got {name!r}")
    return chosen


def console(*, err: bool = False) -> "Console":
    """Where a verb prints: results on stdout, progress and remarks on stderr."""
    from rich.console import Console

    return Console(stderr=err, highlight=False, emoji=False, soft_wrap=True)


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG and SVG under a path without suffix, and say where."""
    from rich.text import Text

    from ..report import figure as report

    with refusing():
        files = report.save(figure, path)
    for file in files:
        console().print(Text(str(file), style="bold"))


def show(table: "Table") -> None:
    """Print a table, as wide as it likes to be where there is no terminal."""
    from rich.measure import Measurement

    out = console()
    if not out.is_terminal:
        out.width = Measurement.get(out, out.options.update(max_width=1_000), table).maximum
    out.print(table)
