"""How a run is shown while it trains: a bar on a terminal, now and then a line elsewhere."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..training.loop import Callbacks
from ..training.recipe import Recipe
from ..training.train_state import Row

LINES = 10
"""How many lines a run writes where there is no terminal."""
REFRESH = 16
"""How many steps pass between two movements of the bar."""
SMOOTHED = 20
"""Over how many rows what is shown is averaged."""


@contextmanager
def screen(recipe: Recipe, console: Console, events: Path | None, *, bar: bool = True) -> Iterator[Callbacks]:
    """Show a run, and write event files of TensorBoard into a folder if there is one.

    There is room for one bar, and only on a terminal.
    """
    with _bar(recipe, console) if bar and console.is_terminal else _lines(recipe, console) as shown:
        if events is None:
            yield shown
        else:
            with _events(events) as written:
                yield _both(shown, written)


def described(recipe: Recipe, rows: Sequence[Row]) -> str:
    """The last rows in words."""
    recent = rows[-SMOOTHED:]
    bound, discrete = (sum(getattr(row, name) for row in recent) / len(recent) for name in ("bound", "discrete"))
    text = f"bound {bound:.2f}"
    if recipe.method.relaxes:
        text += f"  discrete {discrete:.2f}  gap {bound - discrete:+.2f}"
    looks = [row.valid for row in rows if row.valid is not None]
    return text + (f"  validation NLL {looks[-1]:.2f}, best {min(looks):.2f}" if looks else "")


@contextmanager
def _bar(recipe: Recipe, console: Console) -> Iterator[Callbacks]:
    rows: list[Row] = []
    columns = (BarColumn(24), MofNCompleteColumn(), _Rate(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=recipe.steps)

        def step(taken: int) -> None:
            if taken % REFRESH == 0 or taken == recipe.steps:
                progress.update(task, completed=taken)

        def row(new: Row) -> None:
            rows.append(new)
            progress.update(task, completed=new.step, description=described(recipe, rows))

        yield Callbacks(step, row, lambda sentence: console.print(sentence, markup=False))


@contextmanager
def _lines(recipe: Recipe, console: Console) -> Iterator[Callbacks]:
    rows: list[Row] = []
    told = 0

    def row(new: Row) -> None:
        nonlocal told
        rows.append(new)
        if new.step * LINES // recipe.steps > told:
            told = new.step * LINES // recipe.steps
            rate = new.step / max(new.seconds, 1e-9)
            console.print(
                f"step {new.step:,} of {recipe.steps:,}  {rate:.0f}/s  {described(recipe, rows)}", markup=False
            )

    yield Callbacks(row=row, note=lambda sentence: console.print(sentence, markup=False))


@contextmanager
def _events(folder: Path) -> Iterator[Callbacks]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("tensorboard is not installed: pip install 'concretely[tensorboard]'") from None
    with ExitStack() as stack:
        opened: list[SummaryWriter] = []

        def row(new: Row) -> None:
            if not opened:  # what was written before of this step or later is of steps that are taken again
                opened.append(stack.enter_context(SummaryWriter(str(folder), purge_step=new.step)))
            (writer,) = opened
            for name in ("bound", "discrete", "valid", "lr", "temperature"):
                value = getattr(new, name)
                if value is not None:
                    writer.add_scalar(name, value, new.step)

        yield Callbacks(row=row)


def _both(first: Callbacks, second: Callbacks) -> Callbacks:
    def row(new: Row) -> None:
        first.row(new)
        second.row(new)

    return Callbacks(first.step, row, first.note)


class _Rate(ProgressColumn):
    """Steps in a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")
