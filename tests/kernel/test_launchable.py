"""Kernels are launched on tensors of the current GPU, whose members are in one piece."""

from unittest import mock

import pytest
import torch
from torch import Tensor

from concretely.kernel.layout import rows
from concretely.kernel.operator import is_launchable, launching


def test_rows_are_copied_only_where_a_member_is_in_pieces() -> None:
    tensor = torch.randn(3, 4, 5)
    for whole in (tensor, tensor[:1].expand(3, 4, 5), tensor[::2], tensor[:0], tensor[:, :0]):
        found = rows(whole)
        assert torch.equal(found, whole)
        assert found.data_ptr() == whole.data_ptr()
    for pieces in (tensor.mT, tensor[..., ::2], tensor[:, :1].expand(3, 4, 5), tensor[..., :1].expand(3, 4, 5)):
        found = rows(pieces)
        assert torch.equal(found, pieces)
        assert found[0].is_contiguous()


@pytest.mark.parametrize(("starts", "current", "expected"), [(True, 1, True), (True, 0, False), (False, 0, True)])
def test_kernels_are_for_tensors_on_the_gpu_that_they_are_launched_on(
    starts: bool, current: int, expected: bool
) -> None:
    assert not is_launchable(torch.zeros(1))
    tensor = mock.Mock(spec=Tensor, is_cuda=True, get_device=lambda: 1)  # there may be a single GPU here
    with (
        mock.patch("concretely.kernel.operator.has_triton", return_value=True),
        mock.patch("torch.cuda.is_initialized", return_value=starts),
        mock.patch("torch._C._cuda_getDevice", return_value=current, create=True),
    ):
        assert is_launchable(tensor) == expected
    with (
        mock.patch("concretely.kernel.operator._finds_triton", return_value=False),
    ):
        assert not is_launchable(tensor)


def test_kernels_are_launched_where_they_are_asked_to_be() -> None:
    with launching(torch.device("cpu")), mock.patch("torch.cuda.device") as device:
        assert launching(torch.device("cuda:1")) is device.return_value
    device.assert_called_once_with(torch.device("cuda:1"))
