"""A progress bar, where one is asked for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
"""What is told how much has been done since it was last told."""


@contextmanager
def counting(title: str, total: int, *, shown: bool) -> Iterator[Advance]:
    """A function to be told how much is done, which may show it on stderr."""
    if not shown:
        yield lambda done: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError as error:
        raise ImportError("progress needs rich, which is not installed: pip install 'concretely[command]'") from error
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
