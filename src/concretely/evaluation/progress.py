"""An optional progress bar."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..environment import install_command

Advance = Callable[[int], None]
"""A callback that takes the amount of work done since the last call."""


@contextmanager
def counting(title: str, total: int, *, shown: bool) -> Iterator[Advance]:
    """Yield a callback that counts work, and show a bar on stderr if `shown`."""
    if not shown:
        yield lambda done: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError as error:
        raise ImportError(f"progress needs rich, which is not installed: {install_command('command')}") from error
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
