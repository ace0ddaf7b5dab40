"""Work is captured after a few calls, and runs plainly where it cannot be."""

import gc
import subprocess
import sys
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from concretely.training.capture import WARM_UPS, Captured, compiled


def test_without_a_stream_work_is_plain() -> None:
    calls: list[int] = []
    work = Captured(lambda: calls.append(1), None)
    for _ in range(WARM_UPS + 3):
        work()
    assert len(calls) == WARM_UPS + 3


def stream() -> Any:
    """A stream of a device that is not there."""
    return mock.MagicMock(spec=torch.cuda.Stream, device=torch.device("cuda"))


@contextmanager
def pretended(graph: Any) -> Any:
    """A device that records as it is told."""
    with (
        mock.patch("torch.cuda.CUDAGraph", return_value=mock.MagicMock(spec=torch.cuda.CUDAGraph)),
        mock.patch("torch.cuda.graph", graph),
        mock.patch("torch.cuda.stream"),
        mock.patch("torch.cuda.current_stream"),
    ):
        yield


def test_what_cannot_be_captured_runs_plainly_and_said_once() -> None:
    calls: list[int] = []

    @contextmanager
    def refuses(*_: Any, **__: Any) -> Any:
        yield
        calls.pop()  # what is recorded is not done
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    work = Captured(lambda: calls.append(1), stream())
    with pretended(refuses):
        for _ in range(WARM_UPS):
            work()
        with pytest.warns(UserWarning, match="runs without one, which takes longer: operation not permitted when"):
            work()
        work()  # warnings are errors
    assert len(calls) == WARM_UPS + 2


def test_a_lack_of_memory_is_not_hidden() -> None:
    @contextmanager
    def lacks(*_: Any, **__: Any) -> Any:
        yield
        raise torch.cuda.OutOfMemoryError("no memory")

    work = Captured(lambda: None, stream())
    with pretended(lacks):
        for _ in range(WARM_UPS):
            work()
        with pytest.raises(torch.cuda.OutOfMemoryError):
            work()


def test_what_was_captured_is_replayed() -> None:
    calls: list[int] = []

    @contextmanager
    def records(*_: Any, **__: Any) -> Any:
        yield

    work = Captured(lambda: calls.append(1), stream())
    with pretended(records):
        for _ in range(WARM_UPS + 5):
            work()
        assert work._graph is not None
        assert work._graph.replay.call_count == 5  # type: ignore[attr-defined]
    assert len(calls) == WARM_UPS + 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_device_goes_on_after_work_that_asks_it_for_a_number() -> None:
    total = torch.zeros((), device="cuda")

    def adds() -> None:
        total.add_(1)
        total.item()

    work = Captured(adds, torch.cuda.Stream())
    for _ in range(WARM_UPS):
        work()
    with pytest.warns(UserWarning, match="runs without one"):
        work()
    work()
    assert total.item() == WARM_UPS + 2


def test_nothing_is_found_to_be_garbage_while_work_is_captured() -> None:
    collects: list[bool] = []

    @contextmanager
    def records(*_: Any, **__: Any) -> Any:
        yield

    work = Captured(lambda: collects.append(gc.isenabled()), stream())
    with pretended(records):
        for _ in range(WARM_UPS + 2):
            work()
    assert collects == [True] * WARM_UPS + [False]
    assert gc.isenabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captures_that_nobody_needs_do_not_spoil_others() -> None:
    total = torch.zeros(1000, device="cuda")
    for _ in range(5):
        works: list[Any] = []  # which are a cycle, and garbage in the next round
        works.append(
            Captured(lambda own=works: total.add_(torch.ones(1000, device="cuda") * len(own)), torch.cuda.Stream())
        )
        for _ in range(WARM_UPS + 2):
            works[0]()
        assert works[0]._graph is not None
    assert total.eq(5 * (WARM_UPS + 2)).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_graph_keeps_its_own_workspace_of_cublas() -> None:
    weights, total = torch.randn(8, 512, 512, device="cuda"), torch.zeros(8, 512, 512, device="cuda")
    work = Captured(lambda: total.copy_(weights @ weights), torch.cuda.Stream())
    for _ in range(WARM_UPS + 1):
        work()
    expected = total.clone()
    torch._C._cuda_clearCublasWorkspaces()  # as a capture of `torch.compile` does
    torch.cuda.empty_cache()
    work()
    torch.cuda.synchronize()
    assert total.equal(expected)


@pytest.mark.parametrize(
    ("device", "capability", "options"),
    [("cpu", "AVX512", {"cpp.simdlen": 256}), ("cpu", "AVX2", None), ("cuda", "AVX512", None)],
)
def test_code_for_a_cpu_has_vectors_that_its_compiler_handles(device: str, capability: str, options: Any) -> None:
    with (
        mock.patch("torch.backends.cpu.get_cpu_capability", return_value=capability),
        mock.patch("torch.compile") as compile_,
    ):
        compiled(len, torch.device(device))
    compile_.assert_called_once_with(len, dynamic=False, options=options)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_steps_of_a_convolutional_model_are_compiled_for_a_cpu() -> None:
    steps = (
        "import torch; from benchmarks.chip import own; data = own.images(own.QUICK[0], 100, 0);"
        "own.fitted(own.QUICK[0], data, torch.device('cpu'), seeds=1, compiles=True).advance(3)"
    )
    ended = subprocess.run([sys.executable, "-c", steps], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_what_cannot_be_compiled_runs_uncompiled_and_is_said_once() -> None:
    def fails(*_: Any, **__: Any) -> Any:
        def call(*given: Any) -> None:
            raise AssertionError("no rule\nand more")

        return call

    notes = list[str]()
    with mock.patch("torch.compile", fails):
        call = compiled(lambda x: x + 1, torch.device("cpu"), note=notes.append)
    assert [call(1), call(2)] == [2, 3]
    assert notes == ["steps run uncompiled, as torch cannot compile them: no rule"]
