"""Sums over the ranks of `torch.distributed`, and parameters that are sharded over them."""

import sys
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, distributed

from ..functional.noise import Slice, Source


def world_size() -> int:
    """Return the number of ranks, or 1 where `torch.distributed` is not initialised."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def sum_over_ranks(total: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the sum of a tensor over all ranks, with a gradient for data-parallel training.

    The gradient of the local tensor is multiplied by the number of ranks. The mean of the gradients over ranks, which
    data-parallel training takes, is then the gradient of the sum, as in one process with all data.
    """
    ranks = world_size()
    if ranks == 1:
        return total
    summed = total.detach().clone()
    distributed.all_reduce(summed)
    return summed + ranks * (total - total.detach())


def of_rows(source: Source | None, shape: Sequence[int]) -> Source | None:
    """Return the source of draws for data points of a shape: on several ranks, that of the rows of this one."""
    return source.of_rows(1, shape[0]) if isinstance(source, Slice) and source.layout is None and shape else source


def whole(parameter: Tensor) -> Tensor:
    """Return a parameter with the entries of all ranks, if FSDP2 has sharded it."""
    sharded = None if torch.compiler.is_compiling() else sys.modules.get("torch.distributed.tensor")
    if sharded is not None and isinstance(parameter, sharded.DTensor):
        gathered: Tensor = parameter.full_tensor()
        return gathered
    return parameter
