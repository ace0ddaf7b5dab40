"""Signals that ask training to stop."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM was received. A second signal has its usual effect.

    Only the main thread receives signals; in another one the function always returns False.
    """
    requested = False
    if current_thread() is not main_thread():
        yield lambda: False
        return

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        restore()

    before = {each: signal.signal(each, request) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: requested
    finally:
        restore()
