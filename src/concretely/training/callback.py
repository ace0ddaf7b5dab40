"""Callbacks of training: functions that receive steps, rows of the curve and remarks, and loggers made of them."""

import csv
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..environment import install_command
from ..file import atomic_write
from ..spelling import printable
from .train_state import Row, renamed

OWN = __name__.partition(".")[0]
"""The name of this package."""
REFRESH = 20
"""The number of steps between two updates of a progress bar, a multiple of the steps that a GPU takes at once."""


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called during training, with the step, a row of the curve, or a message for the user.

    With several runs, `row` is given the row of each, which has its name, and `mean_row` their average over the runs
    that are still training. If `step` need not see every step, such as that of a progress bar, `sees_all` is False:
    then a GPU may take ten steps at once.
    """

    step: Callable[[int], None] = lambda step: None
    row: Callable[[Row], None] = lambda row: None
    _: KW_ONLY
    mean_row: Callable[[Row], None] = lambda row: None
    note: Callable[[str], None] = lambda sentence: None
    sees_all: bool = True

    @property
    def has_each_step(self) -> bool:
        """Whether `step` must be called after each step."""
        return self.sees_all and self.step is not Callbacks.step


@runtime_checkable
class Logger(Protocol):
    """Something that is opened when training begins and closed when it ends."""

    def open(self, steps: int) -> AbstractContextManager[Callbacks]:
        """Return a context with the callbacks of a run of `steps` steps."""
        ...


Callback = Callbacks | Logger | Callable[[Row], Any]
"""Callbacks, a logger, or a function of a row of the curve."""


@dataclass(frozen=True)
class ProgressBar:
    """Shows the progress of training on stderr: the step, the speed, and the last metrics."""

    def open(self, steps: int) -> AbstractContextManager[Callbacks]:
        """Show a bar until the context ends."""
        return self._opened(steps)

    @contextmanager
    def _opened(self, steps: int) -> Iterator[Callbacks]:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            raise ImportError(f"ProgressBar needs rich: {install_command('command')}") from None
        console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
        text = TextColumn("{task.fields[rate]} {task.description}")
        with Progress(BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(), text, console=console) as bar:
            task = bar.add_task("", total=steps, rate="")

            def step(taken: int) -> None:
                if taken % REFRESH == 0 or taken == steps:
                    bar.update(task, completed=taken, rate=f"{bar.tasks[0].speed or 0:,.0f}/s")

            def row(new: Row) -> None:
                bar.update(task, completed=new.step, description=describe_row(new))

            def note(sentence: str) -> None:
                console.print(printable(sentence), markup=False)

            yield Callbacks(step, mean_row=row, note=note, sees_all=False)


@dataclass(frozen=True)
class TensorBoard:
    """Writes every row of the curve as TensorBoard events into a folder, of several runs into folders in it."""

    folder: str | Path

    def open(self, steps: int) -> AbstractContextManager[Callbacks]:
        """Write events until the context ends."""
        return self._opened()

    @contextmanager
    def _opened(self) -> Iterator[Callbacks]:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError(f"tensorboard is not installed: {install_command('tensorboard')}") from None
        if Path(self.folder).is_file():
            raise ValueError(f"events must be written into a folder, got the file {str(self.folder)!r}")
        if Path(self.folder).is_symlink():
            where = f"got a link {str(self.folder)!r}: remove it"
            raise ValueError(f"events must be written into the folder of the run, {where}")
        with ExitStack() as stack:
            opened: dict[str, SummaryWriter] = {}

            def row(new: Row) -> None:
                if new.run not in opened:  # a resumed run repeats steps, whose old events are dropped
                    place = str(Path(self.folder) / new.run)
                    opened[new.run] = stack.enter_context(SummaryWriter(place, purge_step=new.step))
                for name, value in new.values.items():
                    if name not in ("step", "seconds"):
                        opened[new.run].add_scalar(name, value, new.step)

            yield Callbacks(row=row)


@dataclass(frozen=True)
class CSVLog:
    """Appends every row of the curve to a CSV file, as soon as it is known.

    With several runs, a column `run` has their names. A row with metrics that earlier rows lack, such as those of
    another node, adds columns. A resumed run goes on in the same file, without its rows after its step.
    """

    path: str | Path

    def open(self, steps: int) -> AbstractContextManager[Callbacks]:
        """Write rows until the context ends."""
        return self._opened()

    @contextmanager
    def _opened(self) -> Iterator[Callbacks]:
        path, names, runs = Path(self.path), list[str](), set[str]()
        path.parent.mkdir(parents=True, exist_ok=True)
        _require_log(path)

        def row(new: Row) -> None:
            values: dict[str, Any] = {**({"run": new.run} if new.run else {}), **new.values}
            if new.run not in runs or not values.keys() <= set(names):
                kept = _rows_before(path, new.step, new.run)
                runs.add(new.run)
                names[:] = dict.fromkeys([*names, *(kept[0] if kept else ()), *values, "valid"])
                with atomic_write(path.resolve()) as place, place.open("w", encoding="utf-8", newline="") as file:
                    table = csv.DictWriter(file, names, lineterminator="\n")
                    table.writeheader()
                    table.writerows(kept)
            with path.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, names, lineterminator="\n").writerow(values)

        yield Callbacks(row=row)


def _require_log(path: Path) -> None:
    """Raise unless rows can be added to a file: it is new, empty, or has the column of steps."""
    if path.is_dir():
        raise ValueError(f"rows must be written to a file, got the folder {str(path)!r}")
    if not path.exists():
        return
    if not path.is_file():
        raise ValueError(f"rows must be written to a regular file, got {str(path)!r}")
    with path.open(encoding="utf-8", newline="", errors="replace") as file:
        names = next(csv.reader(file), ["step"])
    if "step" not in names:
        todo = "choose another name"
        raise ValueError(f"rows must be added to a log of training, got {str(path)!r} without a column 'step': {todo}")


def _rows_before(path: Path, step: int, run: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file without those of a run from a step on, and without cells beyond the header.

    A last line without an end, whose writing was interrupted, and rows without a step are left out.
    """
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="", errors="replace") as file:
        lines = [line for line in file if line.endswith(("\n", "\r"))]
    rows = [row for row in map(renamed, csv.DictReader(lines)) if (row["step"] or "").isdecimal()]
    rows = [row for row in rows if (row.get("run") or "") != run or int(row["step"]) < step]
    return [{name: cell for name, cell in row.items() if name is not None} for row in rows]


def describe_row(row: Row) -> str:
    """Return the main metrics of a row in one line. A loss is minus the objective, as is a validation.

    >>> describe_row(Row(10, 1.0, 1e-3, None, objective=-3.0, discrete=-3.5, valid=3.25))
    'loss 3.00  discrete 3.50  gap +0.50  validation 3.25'
    """
    text = f"loss {-row.objective:z.2f}"
    if row.discrete != row.objective:
        text += f"  discrete {-row.discrete:z.2f}  gap {row.objective - row.discrete:+z.2f}"
    return text + ("" if row.valid is None else f"  validation {row.valid:.2f}")


def joined_callbacks(
    given: Callback | Sequence[Callback], *, steps: int, stack: ExitStack, note: Callable[[str], None]
) -> Callbacks:
    """Open all loggers in a stack of contexts, and return callbacks that call all.

    `note` receives messages if none of the callbacks does.
    """
    parts = []
    for callback in given if isinstance(given, Sequence) else [given]:
        if isinstance(callback, Logger) and not isinstance(callback, type):
            parts.append(stack.enter_context(callback.open(steps)))
        elif isinstance(callback, Callbacks):
            parts.append(callback)
        elif callable(callback) and not isinstance(callback, type):
            parts.append(Callbacks(row=callback))
        else:
            got = f"the class {callback.__name__}: call it" if isinstance(callback, type) else type(callback).__name__
            raise TypeError(f"callbacks must be functions of a row, or loggers such as ProgressBar(), got {got}")
    notes = [part.note for part in parts if part.note is not Callbacks.note] or [note]
    return Callbacks(
        _call_all([part.step for part in parts if part.step is not Callbacks.step]),
        _call_all([part.row for part in parts]),
        mean_row=_call_all([part.mean_row for part in parts]),
        note=_call_all(notes),
        sees_all=any(part.has_each_step for part in parts),
    )


def warn_caller(sentence: str, category: type[Warning]) -> None:
    """Warn with the line of the program that called this library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == OWN:
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, category, stacklevel=level)


def _call_all(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], None]:
    def call(value: Any) -> None:
        for function in functions:
            function(value)

    return call
