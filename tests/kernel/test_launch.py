"""A compiled kernel is launched again without Triton's search for it, as Triton would launch it."""

from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch

launch = pytest.importorskip("concretely.kernel.launch")


class Program:
    """A compiled kernel, with what Triton's have."""

    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def run(self, *given: Any) -> None:
        """Launch it directly."""
        self.calls.append(("direct", *given))

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *given: self.calls.append(("reported", grid, *given))


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """What Triton compiles."""
    active = mock.Mock(get_current_stream=lambda device: ("stream", device), get_current_device=lambda: 0)
    monkeypatch.setattr(launch, "driver", mock.Mock(active=active))
    return Program()


def launched(program: Program, **options: Any) -> tuple[Any, mock.Mock]:
    """A kernel of a tensor, two numbers and a constant, and the function that compiles it."""

    def kernel(tensor, count, scale, size): ...  # type: ignore[no-untyped-def]

    found = launch.Launched(kernel, **options)
    compiled = mock.Mock(return_value=program)
    found._function = {(3,): compiled, (2, 5): compiled}
    return found, compiled


def test_a_kind_of_call_is_compiled_once_and_then_launched_directly(program: Program) -> None:
    kernel, compiled = launched(program)
    tensor = torch.zeros(64)
    for scale in (0.5, 1.5, 2.5):
        kernel[3,](tensor, 7, scale, size=16, num_warps=4)
    compiled.assert_called_once_with(tensor, 7, 0.5, size=16, num_warps=4)
    run = "direct", 3, 1, 1, ("stream", 0), "function", "metadata", None, None, None
    assert program.calls == [(*run, tensor.data_ptr(), 7, scale, 16) for scale in (1.5, 2.5)]


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_profiler_sees_every_launch(hook: str, program: Program) -> None:
    kernel, _ = launched(program)
    tensor = torch.zeros(64)
    kernel[2, 5](tensor, 7, 0.5, size=16)
    observed = mock.Mock(calls=[print])
    with mock.patch.object(launch.knobs.runtime, hook, observed):
        kernel[2, 5](tensor, 7, 1.5, size=16)
    with mock.patch.object(launch.knobs.runtime, hook, None):
        kernel[2, 5](tensor, 7, 2.5, size=16)
    assert program.calls[0] == ("reported", (2, 5, 1), tensor, 7, 1.5, 16)
    assert program.calls[1][:4] == ("direct", 2, 5, 1)


def test_what_a_program_depends_on_is_compiled_again(program: Program) -> None:
    kernel, compiled = launched(program)
    tensor = torch.zeros(64)
    elsewhere = mock.Mock(spec=torch.Tensor, dtype=tensor.dtype, get_device=lambda: 1, data_ptr=tensor.data_ptr)
    kinds = [
        (tensor, 7, 0.5),
        (tensor, 8, 0.5),
        (tensor, 7, 1),
        (tensor.double(), 7, 0.5),
        (tensor[1:], 7, 0.5),
        ((tensor, tensor), 7, 0.5),
        ((tensor, tensor[1:]), 7, 0.5),
        ((tensor, (tensor,), 1), 7, 0.5),
        ((tensor, (tensor, 1)), 7, 0.5),
        (elsewhere, 7, 0.5),
    ]
    calls = [partial(kernel[3,], *given, size=16) for given in kinds] + [partial(kernel[3,], *kinds[0], size=32)]
    for call in (*calls, *calls):
        call()
    assert compiled.call_count == len(calls) == len(program.calls)


def test_a_launcher_is_given_the_addresses_of_tensors(program: Program) -> None:
    kernel, _ = launched(program)
    one, other = torch.zeros(64), torch.zeros(64)
    for _ in range(2):
        kernel[3,]((one, (other, None)), 7, 0.5, size=16)
    assert program.calls[-1][-4:] == ((one.data_ptr(), (other.data_ptr(), None)), 7, 0.5, 16)


def test_free_numbers_do_not_matter(program: Program) -> None:
    kernel, compiled = launched(program, free=("count",))
    for count in (1, 2**40, -3):
        kernel[3,](torch.zeros(64), count, 0.5, size=16)
    assert compiled.call_count == 1
    assert [call[-3] for call in program.calls] == [2**40, -3]


def test_kinds_of_calls_are_forgotten_when_there_are_too_many(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "MANY", 2)
    kernel, compiled = launched(program)
    for count in (1, 2, 3, 1):
        kernel[3,](torch.zeros(64), count, 0.5, size=16)
    assert compiled.call_count == 4
    assert len(kernel._programs) == 2


def test_a_kept_program_is_launched_again_by_its_key_alone(program: Program) -> None:
    kernel, compiled = launched(program)
    tensor = torch.zeros(64)
    assert not kernel.again("key", tensor, 7, 0.5)
    kernel.keep("key", (3,), tensor, 7, 0.5, size=16)
    assert kernel.again("key", tensor.data_ptr(), 7, 1.5)
    assert not kernel.again("other", tensor.data_ptr(), 7, 1.5)
    compiled.assert_called_once_with(tensor, 7, 0.5, size=16)
    run = "direct", 3, 1, 1, ("stream", 0), "function", "metadata", None, None, None
    assert program.calls == [(*run, tensor.data_ptr(), 7, 1.5, 16)]
    observed = mock.Mock(calls=[print])
    with mock.patch.object(launch.knobs.runtime, "launch_enter_hook", observed):
        assert not kernel.again("key", tensor, 7, 1.5)


def test_an_interpreted_kernel_keeps_no_program(program: Program) -> None:
    kernel, compiled = launched(program)
    compiled.return_value = None
    kernel.keep("key", (3,), torch.zeros(64), 7, 0.5, size=16)
    assert not kernel.again("key", torch.zeros(64), 7, 0.5)


def test_programs_that_are_never_launched_again_are_forgotten(program: Program) -> None:
    kernel, _ = launched(program)
    with mock.patch.object(launch, "MANY", 2):
        for key in range(3):
            kernel.keep(key, (3,), torch.zeros(64), 7, 0.5, size=16)
    assert not kernel.again(0, torch.zeros(64), 7, 0.5)
    assert kernel.again(2, torch.zeros(64), 7, 0.5)
