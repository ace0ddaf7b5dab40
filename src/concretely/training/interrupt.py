"""Signals that ask training to stop."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT, SIGTERM or SIGHUP was received.

    A second signal has its usual effect. SIGHUP, which a closing terminal sends, stays ignored if it is, as by nohup.
    Only the main thread receives signals; in another one the function always returns False.
    """
    requested = False
    if current_thread() is not main_thread():
        yield lambda: False
        return

    def restore() -> None:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        restore()

    signals = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    before = {signal_number: signal.signal(signal_number, request) for signal_number in signals}
    try:
        yield lambda: requested
    finally:
        restore()
