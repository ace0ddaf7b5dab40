"""Work of a GPU, recorded once and replayed: launching it then costs next to nothing."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from warnings import warn

import torch

WARM_UPS = 3
"""So often the work is done plainly before it is recorded, with all that is compiled or looked up on first use."""

_RECORDING = Lock()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let nobody else record, nor old recordings be found to be garbage: to give back their memory spoils a new one."""
    with _RECORDING:
        collects = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


class Captured:
    """A function without arguments, replayed from the fourth call on where it has a stream of a GPU, and else plain.

    It must always do the same work on the same memory. What asks the device for a number cannot be recorded, and stays
    plain.
    """

    def __init__(self, function: Callable[[], None], stream: torch.cuda.Stream | None) -> None:
        self._function, self._stream, self._calls = function, stream, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._fails = False

    def __call__(self) -> None:
        """Do the work, or have the device begin to do it."""
        if self._graph is not None:
            self._graph.replay()
        elif self._stream is None:
            self._function()
        elif self._calls < WARM_UPS:
            self._calls += 1
            self._plainly(self._stream)
        elif not self._fails:
            self._graph = self._recorded(self._stream)
            self()
        else:
            self._plainly(self._stream)

    def _recorded(self, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph | None:
        """The work as a graph, if it can be recorded; one program is at a time, while others may go on."""
        graph = torch.cuda.CUDAGraph()
        try:
            with _undisturbed(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._function()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as reason:
            self._fails = True
            why = (str(reason).splitlines() or ["unknown"])[0]
            warn(f"work that cannot be recorded is done plainly, and takes longer: {why}", stacklevel=4)
            return None
        return graph

    def _plainly(self, stream: torch.cuda.Stream) -> None:
        """Do the work on the stream that it will be recorded on, as torch advises."""
        current = torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._function()
        current.wait_stream(stream)
