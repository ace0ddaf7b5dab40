"""Input errors, signals, and everything that is printed: tables, files, and the progress of training."""

import errno
import math
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from functools import wraps
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

from ..environment import install_command
from ..experiment.record import model_title
from ..file import FULL, writable_dir
from ..spelling import did_you_mean, printable
from ..training.interrupt import stop_requested as stop_requested
from ..training.own_recipe import RunRecipe
from ..training.recipe import Member, Recipe
from ..training.user_error import describe_raised, is_raised_by_user, user_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..experiment.board import ProgramState
    from ..experiment.scheduler import Monitor
    from ..training.callback import Callbacks
    from ..training.folder import Run
    from ..training.parallel import World
    from ..training.train_state import Row

RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
"""The environment variables that torchrun sets for a rank."""
TOO_LARGE = "allocate|out of memory|overflow"
"""Torch's errors about tensors that do not fit into memory."""
LINES = 10
"""The number of lines that a run prints without a terminal."""
REFRESH = 20
"""The number of steps between two updates of the bar."""
SMOOTHED = 20
"""The number of rows of the training curve over which printed metrics are averaged."""
INPUT = ValueError | OSError | ImportError
"""Errors about the input, unless the code of a user raised them."""
BRIEF = 1_000
"""Without a terminal, runs with fewer steps print no progress lines if several are trained together."""


def fail(sentence: str, code: int = 2) -> NoReturn:
    """Print an error and exit."""
    print(printable(sentence), file=sys.stderr)
    raise typer.Exit(code)


def guarded(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a verb that prints errors of the operating system, and missing packages, in one sentence.

    Other errors that are not about the input are bugs, whose traceback is shown.
    """

    @wraps(verb)
    def call(*arguments: Any, **flags: Any) -> None:
        try:
            verb(*arguments, **flags)
        except OSError as error:
            if error.errno in (None, errno.EPIPE, errno.EIO):  # the reader has closed the pipe
                raise
            fail(describe_error(error))
        except ModuleNotFoundError as error:
            fail(describe_error(error))

    return call


def describe_error(error: Exception) -> str:
    """Return a sentence about an error, with the line of the user's code or the path and what to do."""
    if _is_of_user(error):
        return f"the model raised {describe_raised(error)}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"{error.name} is not installed: {install_command('command')}"
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    remedies = {
        **dict.fromkeys(FULL, "free some space, then run the command again"),
        errno.ENAMETOOLONG: "choose a shorter name",
        **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose another folder"),
    }
    remedy = f"; {remedies[error.errno]}" if error.errno in remedies else ""
    place = "a file" if error.filename is None else repr(os.fsdecode(error.filename))
    return f"{place} cannot be read or written: {error.strerror}{remedy}"


def _is_of_user(error: Exception) -> bool:
    """Return whether an error comes from the code of a user, or is a mistake in it."""
    return is_raised_by_user(error) if isinstance(error, INPUT) else bool(user_line(error))


def require(holds: bool, name: str, must: str, got: Any) -> None:
    """Exit with an error about a flag unless a condition holds."""
    if not holds:
        fail(f"{name} must {must}, got {got!r}")


def require_positive(**flags: int | None) -> None:
    """Exit with an error if a flag that is given is below 1."""
    for name, value in flags.items():
        require(value is None or value >= 1, name.replace("_", "-"), "be at least 1", value)


def require_known(kind: str, name: str, names: Iterable[str]) -> None:
    """Exit with an error that suggests the closest name unless a name is known."""
    known = list(names)
    if name not in known:
        fail(f"unknown {kind} {name!r}{did_you_mean(name, known)}")


@contextmanager
def report_errors() -> Iterator[None]:
    """Inside this context, print an error about the input, or of the code of a user, in one sentence, and exit."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        is_size = isinstance(error, RuntimeError) and re.search(TOO_LARGE, str(error), re.IGNORECASE)
        if isinstance(error, MemoryError) or is_size:
            fail("this does not fit into memory: lower samples, batch or chunk")
        if not isinstance(error, INPUT) and not _is_of_user(error):
            raise
        fail(describe_error(error))


def refuse_ranks(verb: str) -> None:
    """Exit with an error, from rank 0 alone, if torchrun has started several processes of a verb for many models."""
    if os.environ.get("WORLD_SIZE", "1") != "1" and all(name in os.environ for name in RANK_NAMES):
        if os.environ["RANK"] != "0":
            raise typer.Exit(1)
        fail(f"{verb} must be started without torchrun, which trains one model: start several processes with --share")


@contextmanager
def as_rank(device_name: str | None, precision: str | None, *, shard: bool = False) -> Iterator["World | None"]:
    """Inside this context, a process that torchrun has started is a rank; yield its world, or None without torchrun.

    Rank 0 alone prints. If another rank fails by itself, it prints its error, and the others end without one.
    """
    from .option import select_device

    if any(name not in os.environ for name in RANK_NAMES):
        if shard:
            fail("shard must be left out without torchrun, which starts the processes that share a model")
        yield None
        return
    import torch

    from ..training.group import leave, own_gpu
    from ..training.parallel import describe_loss, is_lost, join

    # what is wrong with a machine, the first of its ranks says
    quiet = redirect_stderr(StringIO()) if os.environ["LOCAL_RANK"] != "0" else nullcontext()
    with quiet, report_errors():
        if device_name in (None, "cuda") and torch.cuda.is_available():
            own_gpu(torch.device("cuda"))  # before any work, which would otherwise run on the first GPU
        world = join(select_device(device_name, precision), shard=shard)
    own = StringIO()
    try:
        with ExitStack() as stack:
            if not world.is_first:
                stack.enter_context(redirect_stdout(StringIO()))
                stack.enter_context(redirect_stderr(own))
            yield world
    except typer.Exit as error:
        if world.first_to_tell(error) and not world.is_first and own.getvalue().strip():
            print(own.getvalue().strip().splitlines()[-1], file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except Exception as error:
        if not world.first_to_tell(error):
            raise typer.Exit(1) from None
        if is_lost(error):
            fail(describe_loss(error), 1)
        raise
    finally:
        leave()


@contextmanager
def interruptible(sentence: str = "stopped and saved; run the same command to go on") -> Iterator[None]:
    """Inside this context, print a sentence and exit on KeyboardInterrupt."""
    try:
        yield
    except KeyboardInterrupt:
        fail(sentence, 130)


@contextmanager
def interruptible_loading() -> Iterator[None]:
    """Inside this context, which loads data, print a sentence and exit on SIGINT, even within `stop_requested`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interruptible("stopped before the data were complete; downloaded files are kept"):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


def console(*, err: bool = False) -> Console:
    """Return the console: results on stdout, progress and remarks on stderr."""
    return Console(stderr=err, highlight=False, emoji=False, markup=False, soft_wrap=True)


def remark(sentence: str, *, style: str = "") -> None:
    """Print a remark on stderr. Do nothing if stderr is closed."""
    with suppress(OSError):
        console(err=True).print(printable(sentence), style=style)


def show_text(text: object) -> None:
    """Print a result. Markup and escape sequences in text from files have no effect."""
    print(printable(str(text)))


def show_path(path: Path) -> None:
    """Print the path of a result."""
    console().print(printable(str(path)), style="bold")


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG and SVG under a path without suffix, and print the paths."""
    from ..report.style import save_figure

    with report_errors():
        writable_dir(path.parent)
        files = save_figure(figure, path)
    for file in files:
        show_path(file)


def show(table: Table) -> None:
    """Print a table, at full width if there is no terminal."""
    out = console()
    if not out.is_terminal:
        out.width = Measurement.get(out, out.options.update(max_width=1_000), table).maximum
    out.print(table)


def monitor(stop: Callable[[], bool]) -> "Monitor":
    """Return callbacks for an experiment that print to stderr and write reports."""
    from ..experiment.scheduler import Monitor

    return Monitor(
        stop,
        loading=interruptible_loading,
        training=_program_progress,
        note=remark,
        scored=write_run_report,
        watching=_watched_programs,
        progress=console(err=True).is_terminal,
    )


def write_run_report(folder: Path, run: "Run", model: Any, data: Any, record: Mapping[str, Any]) -> Path:
    """Draw pictures from a model, and write the report of its run."""
    from ..experiment.picture import report_pictures
    from ..report.page import write_report

    return write_report(folder, run, record, report_pictures(run.recipe, model, data))


@contextmanager
def _watched_programs() -> Iterator[Callable[[Sequence["ProgramState"]], None]]:
    """Show programs that run in other processes: as a table on a terminal, otherwise as one line for each change."""
    from rich.live import Live

    from ..report.table import program_table

    err, last = console(err=True), ""
    live = Live(console=err, refresh_per_second=4, transient=True) if err.is_terminal else None

    def show(states: Sequence["ProgramState"]) -> None:
        nonlocal last
        if live is not None:
            live.update(program_table(states, rows=max(4, err.height - 8)))
            return
        counts = Counter(state.state for state in states)
        text = ", ".join(f"{number} {state}" for state, number in counts.items())
        if text != last:
            remark(f"{len(states)} programs: {text}")
            last = text

    with live or nullcontext():
        yield show


def _program_progress(members: Sequence[Member], alone: bool) -> AbstractContextManager["Callbacks"]:
    """Show the progress of runs that are trained together. Only one such group at a time has a bar."""
    from ..training.callback import Callbacks

    err, recipe = console(err=True), members[0].recipe
    together = f"{len(members)} members of {model_title(recipe.settings)} as one program"
    remark(members[0].folder.name if len(members) == 1 else together)
    if recipe.steps < BRIEF and not err.is_terminal:
        return nullcontext(Callbacks(note=remark))
    return training_progress(recipe, err, None, bar=alone)


@contextmanager
def training_progress(
    recipe: RunRecipe, console: Console, events: Path | None, *, bar: bool = True
) -> Iterator["Callbacks"]:
    """Show a run as a bar on a terminal or as lines elsewhere, and optionally write TensorBoard events to a folder."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..training.callback import Callbacks, TensorBoard

    rows: list[Row] = []
    printed, bar = 0, bar and console.is_terminal
    text = TextColumn("{task.fields[rate]} {task.description}")
    # a narrow terminal shortens the bar first, then the text
    count, left = (Column(no_wrap=True, min_width=width) for width in (2 * len(str(recipe.steps)) + 1, len("0:00:00")))
    columns = BarColumn(24), MofNCompleteColumn(table_column=count), TimeRemainingColumn(table_column=left), text
    progress = Progress(*columns, console=console)
    task = progress.add_task("", total=recipe.steps, rate="")

    def note(sentence: str) -> None:
        with suppress(OSError):  # a closed terminal must not end a run
            console.print(printable(sentence))

    def step(taken: int) -> None:
        if bar and (taken % REFRESH == 0 or taken == recipe.steps):
            progress.update(task, completed=taken, rate=f"{progress.tasks[0].speed or 0:,.0f}/s")

    def row(new: "Row") -> None:
        nonlocal printed
        rows.append(new)
        if bar:
            progress.update(task, completed=new.step, description=describe_rows(recipe, rows))
        elif new.step * LINES // recipe.steps > printed:
            printed = new.step * LINES // recipe.steps
            rate = f"{new.step / max(new.seconds, 1e-9):.0f}/s"
            note(f"step {new.step:,} of {recipe.steps:,}  {rate}  {describe_rows(recipe, rows)}")

    written = nullcontext(Callbacks()) if events is None else TensorBoard(events).open(recipe.steps)
    with progress if bar else nullcontext(), written as log:
        yield Callbacks(step, log.row, mean_row=row, note=note, sees_all=False)


def describe_rows(recipe: RunRecipe, rows: Sequence["Row"]) -> str:
    """Return a description of the last rows of a training curve. A loss is minus the objective, as is a validation."""
    recent = rows[-SMOOTHED:]
    objective, discrete = (
        sum(getattr(row, name) for row in recent) / len(recent) for name in ("objective", "discrete")
    )
    is_paper = isinstance(recipe, Recipe)  # the model of a user may be a program with a cost
    name, sign = ("bound", 1) if is_paper else ("loss", -1)
    text = f"{name} {sign * objective:z.2f}"
    if recipe.method.relaxes if isinstance(recipe, Recipe) else objective != discrete:
        text += f"  discrete {sign * discrete:z.2f}  gap {objective - discrete:+z.2f}"
    validations = [row.valid for row in rows if row.valid is not None]
    if validations:
        text += f"  {'validation NLL' if is_paper else 'validation'} {validations[-1]:.2f}"
    numbers = [score for score in validations if not math.isnan(score)]
    return text + (f", best {min(numbers):.2f}" if numbers else "")
