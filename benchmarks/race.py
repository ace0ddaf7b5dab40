"""The setup of a timing: the cores, the contenders that can be imported, and their turns."""

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from .timing import Entrant, Timing, first_call, interleaved

THREADS = 2
BUSY = 0.5
WIDTH = 160
"""The width of a table in a file, in columns."""


def opened() -> Console:
    """Return the console for tables."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def load(console: Console) -> float:
    """Return the load of the machine before the timing; print a line if it is busy."""
    carried = os.getloadavg()[0]
    if carried > BUSY:
        console.print(
            f"the machine carries a load of {carried:.1f} already: threads that wait for each other suffer most"
        )
    return round(carried, 2)


def share_cores() -> None:
    """Give all libraries the same cores. JAX would otherwise use all of them."""
    torch.set_num_threads(THREADS)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])


def installed(modules: Mapping[str, str], *, package: str, console: Console) -> Iterator[str]:
    """Return the modules of a package whose library can be imported; print a line about each of the others."""
    for module, library in modules.items():
        try:
            importlib.import_module(f"{package}.{module}")
        except (ImportError, AttributeError) as reason:  # an attribute is missing when two versions do not fit
            console.print(f"{library} is left out, as it cannot be imported: {reason}", highlight=False)
        else:
            yield module


def entered(modules: Sequence[str], task: Any, *, package: str) -> list[Any]:
    """Return the contenders of some modules of a package, before anything is compiled."""
    torch.compiler.reset()
    loaded = [importlib.import_module(f"{package}.{module}") for module in modules]
    return [contender for module in loaded for contender in module.contenders(task)]


def timed(
    entrants: Sequence[Entrant], title: str, *, rounds: int, seed: int, console: Console
) -> list[Timing[Entrant]]:
    """Return the timings of all contenders that can do a task; print a line about each of the others."""
    contenders, first = [], []
    for contender in entrants:
        try:
            first.append(first_call(contender))
        except (NotImplementedError, RuntimeError, ValueError) as reason:
            console.print(f"{contender.name} is left out, as it fails: {str(reason).splitlines()[0]}", highlight=False)
        else:
            contenders.append(contender)
    # a bar that redraws itself would do so on the cores that are being timed
    with Progress(console=console, auto_refresh=False, transient=True) as progress:
        bar = progress.add_task(title, total=rounds)

        def finished() -> None:
            progress.update(bar, advance=1, refresh=True)

        seconds = interleaved(contenders, rounds, seed=seed, finished=finished)
    return [Timing(*row) for row in zip(contenders, first, seconds, strict=True)]
