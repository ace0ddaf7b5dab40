"""Capture GPU work as a CUDA graph and replay it, which costs next to nothing to launch, or compile work."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any
from warnings import warn

import torch
from torch.distributions import Distribution

from ..spelling import first_line

WARM_UPS = 3
"""The number of uncaptured calls before the capture. In these, kernels are compiled and libraries initialised."""

_CAPTURING = Lock()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Take a lock and disable garbage collection: freeing another graph's memory pool spoils a capture.

    The workspaces of cuBLAS are freed before and after a capture, so that the graph has its own in its memory pool.
    Otherwise it would use workspaces of earlier calls, which other captures, as by `torch.compile`, free.
    """
    with _CAPTURING:
        collects = gc.isenabled()
        gc.collect()
        gc.disable()
        _clear_workspaces()
        try:
            yield
        finally:
            _clear_workspaces()
            if collects:
                gc.enable()


def _clear_workspaces() -> None:
    """Free the workspaces of cuBLAS. The next product allocates new ones."""
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def _unvalidated() -> Iterator[None]:
    """Switch off the checks of torch's distributions, which wait for the device. Earlier calls were checked."""
    checked = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(checked)


class Captured:
    """A function without arguments that is captured at the fourth call and replayed from then on.

    Without a GPU stream, the function is always called directly. It must always do the same work on the same memory. A
    function that waits for a number from the device cannot be captured and continues to be called directly.
    """

    def __init__(
        self, function: Callable[[], None], stream: torch.cuda.Stream | None, *, note: Callable[[str], None] = warn
    ) -> None:
        self._function, self._stream, self._note, self._calls = function, stream, note, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self.is_possible = True
        """Whether the work could be captured, as far as is known."""

    @property
    def is_captured(self) -> bool:
        """Whether the work is captured, so that calls replay it."""
        return self._graph is not None

    def __call__(self) -> None:
        """Call the function, or replay its graph."""
        if self._graph is not None:
            self._graph.replay()
        elif self._stream is None:
            self._function()
        elif self._calls < WARM_UPS or not self.is_possible:
            self._calls += 1
            self._plainly(self._stream)
        else:
            self._graph = self._capture(self._stream)
            self()

    def _capture(self, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph | None:
        """Return a graph of the function's work, or None if it cannot be captured. Other threads may launch work."""
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                _undisturbed(),
                _unvalidated(),
                torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
            ):
                self._function()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as reason:
            self.is_possible = False
            why = first_line(reason)
            self._note(f"this work cannot be captured as a CUDA graph and runs without one, which takes longer: {why}")
            return None
        return graph

    def _plainly(self, stream: torch.cuda.Stream) -> None:
        """Call the function on the stream that it will be captured on, as torch advises."""
        current = torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._function()
        current.wait_stream(stream)


def compiled(
    function: Callable[..., Any], device: torch.device, *, note: Callable[[str], None] = warn
) -> Callable[..., Any]:
    """Compile a function of tensors on a device, whose shapes do not change.

    If the first call fails but succeeds without the compiler, the function runs uncompiled, and `note` receives the
    reason.

    With vectors of 512 bits, the code that inductor of torch 2.13 makes for a CPU ends in a segmentation fault where it
    transposes blocks of 8 x 8, as between a convolution and a variable of 8 categories. Vectors of 256 bits are safe.
    """
    is_wide = device.type == "cpu" and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    made = torch.compile(function, dynamic=False, options={"cpp.simdlen": 256} if is_wide else None)
    chosen = list[Callable[..., Any]]()

    def call(*given: Any) -> Any:
        if chosen:
            return chosen[0](*given)
        try:
            result = made(*given)
        except Exception as reason:  # any error: the compiler does not support something
            result = function(*given)  # an error of the function itself is raised here
            note(f"steps run uncompiled, as torch cannot compile them: {first_line(reason)}")
            chosen.append(function)
        else:
            chosen.append(made)
        return result

    return call
