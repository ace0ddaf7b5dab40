"""Sums over the ranks of `torch.distributed`, and parameters that are sharded over them."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn
from torch.autograd.graph import increment_version
from torch.func import functional_call

from ..functional.noise import Source
from ..functional.slice import Slice

P = ParamSpec("P")
S = TypeVar("S", bound=nn.Module)
T = TypeVar("T")


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
    if is_sharded(parameter):
        entries: Tensor = parameter.full_tensor()  # type: ignore[attr-defined]
        return entries
    return parameter


def is_sharded(parameter: Tensor) -> bool:
    """Return whether this rank has only a part of a parameter."""
    known = None if torch.compiler.is_compiling() else sys.modules.get("torch.distributed.tensor")
    return known is not None and isinstance(parameter, known.DTensor)


def gathered(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Return a method of a layer that has whole parameters in it, also if FSDP2 has sharded them.

    FSDP2 gathers the parameters for `forward` only. All ranks must call the method.
    """

    @wraps(method)
    def call(self: S, /, *given: P.args, **named: P.kwargs) -> T:
        sharded = {name: parameter for name, parameter in self.named_parameters() if is_sharded(parameter)}
        if not sharded:
            return method(self, *given, **named)
        inner = tuple(f"{name}." for name, module in self.named_modules() if name and _gathers_itself(module))
        tensors = {f"layer.{name}": whole(own) for name, own in sharded.items() if not name.startswith(inner)}
        result: T = functional_call(_Call(self, method), tensors, given, named, tie_weights=False)
        return result

    return call


def _gathers_itself(module: nn.Module) -> bool:
    """Return whether FSDP2 gathers the parameters of a module when it is called."""
    known = sys.modules.get("torch.distributed.fsdp")
    return known is not None and isinstance(module, known.FSDPModule)


class _Call(nn.Module):
    """A module whose forward is a method of a layer."""

    def __init__(self, layer: nn.Module, method: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.method = layer, method

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.method(self.layer, *given, **named)


def reshard(layer: nn.Module) -> None:
    """Free the parameters that FSDP2 keeps gathered after a forward pass, so that those of the ranks can be changed.

    A later backward pass of that forward raises an error, as after every change of a parameter in place.
    """
    if "torch.distributed.fsdp" in sys.modules:
        before = list(layer.parameters())
        layer.state_dict()  # FSDP2 reshards the parameters for it
        freed = [own for own, now in zip(before, layer.parameters(), strict=True) if own is not now]
        increment_version(freed)


def assign(parameter: Tensor, entries: Tensor) -> None:
    """Set a parameter to the entries of all ranks. If FSDP2 has sharded it, this rank keeps its part of them."""
    if is_sharded(parameter):
        tensor = sys.modules["torch.distributed.tensor"]
        mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
        entries = tensor.distribute_tensor(entries.to(parameter.dtype), mesh, placements, src_data_rank=None)
    parameter.copy_(entries)
