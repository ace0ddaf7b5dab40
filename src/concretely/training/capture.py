"""Work of a GPU, recorded once and replayed: launching it then costs next to nothing."""

from collections.abc import Callable
from threading import Lock

import torch

WARM_UPS = 3
"""So often the work is done plainly before it is recorded, with all that is compiled or looked up on first use."""


_RECORDING = Lock()


class Captured:
    """A function without arguments, replayed from the fourth call on where it has a stream of a GPU, and else plain.

    It must always do the same work on the same memory, and never ask the device for a number.
    """

    def __init__(self, function: Callable[[], None], stream: torch.cuda.Stream | None) -> None:
        self._function, self._stream, self._calls = function, stream, 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do the work, or have the device begin to do it."""
        if self._graph is not None:
            self._graph.replay()
        elif self._stream is None:
            self._function()
        elif self._calls < WARM_UPS:
            self._calls += 1
            self._plainly(self._stream)
        else:
            self._graph = self._recorded(self._stream)
            self._graph.replay()

    def _recorded(self, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        """The work as a graph; one program is recorded at a time, while others may go on."""
        graph = torch.cuda.CUDAGraph()
        with _RECORDING, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._function()
        return graph

    def _plainly(self, stream: torch.cuda.Stream) -> None:
        """Do the work on the stream that it will be recorded on, as torch advises."""
        current = torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._function()
        current.wait_stream(stream)
