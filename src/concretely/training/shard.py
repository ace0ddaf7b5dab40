"""Parameters that are sharded over ranks by FSDP2: each rank has a part of them, of their gradients and their moments.

A step gathers the parameters for its forward and backward pass, and frees them afterwards. Checkpoints hold whole
tensors, so that they do not depend on the number of ranks.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from .parallel import World, shapes_of
from .place import tensors_of
from .task import Task

KINDS = ("first/", "second/", "ema/")
"""The prefixes of tensors of a state that have the shards of a parameter."""


class Sharding:
    """The sharded parameters of the loss of a run. Blocks that the caller has sharded stay as they are."""

    def __init__(self, task: Task, world: World) -> None:
        if task.optimizer is not None or task.recipe.optimizer != "adam":
            raise ValueError(f"optimizer must be adam for sharded parameters, got {task.recipe.optimizer}")
        self._loss, self._world = task.loss, world
        if not any(isinstance(parameter, DTensor) for parameter in task.loss.parameters()):
            world.require_same("model", shapes_of(tensors_of(task.loss)))
            world.broadcast_([tensor.detach() for tensor in (*task.loss.parameters(), *task.loss.buffers())])
        self._mesh = init_device_mesh(world.device.type, (world.ranks,))
        fully_shard(task.loss, mesh=self._mesh, reshard_after_forward=True)
        self._modules = [module for module in task.loss.modules() if isinstance(module, FSDPModule)]
        self._parameters = {
            name: parameter for name, parameter in task.loss.named_parameters() if isinstance(parameter, DTensor)
        }

    def local(self, tensor: Tensor) -> Tensor:
        """Return the part of a tensor that this rank has, in the same memory."""
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def _parameter(self, path: str) -> DTensor | None:
        """Return the parameter that a tensor of a state belongs to, or None if it is not sharded."""
        kind = next((prefix for prefix in KINDS if path.startswith(prefix)), None)
        return self._parameters.get(path.replace("/", ".", 1) if kind is None else path.removeprefix(kind))

    def whole(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all ranks, on the CPU. All ranks must call this."""
        return {path: self._whole(path, tensor) for path, tensor in state.items()}

    def _whole(self, path: str, tensor: Tensor) -> Tensor:
        like = self._parameter(path)
        if like is None:
            return tensor
        shape, stride = like.shape, like.stride()
        return DTensor.from_local(tensor, self._mesh, like.placements, shape=shape, stride=stride).full_tensor().cpu()

    def empty(self, path: str, tensor: Tensor) -> Tensor:
        """Return a tensor without memory, of the shape that the tensors of all ranks have together."""
        like = self._parameter(path)
        return tensor if like is None else torch.empty(like.shape, dtype=like.dtype, device="meta")

    def copy_(self, path: str, own: Tensor, whole: Tensor) -> None:
        """Set the part of this rank to that of a whole tensor."""
        like = self._parameter(path)
        if like is not None:
            placed = distribute_tensor(whole.to(self._world.device), self._mesh, like.placements, src_data_rank=None)
            whole = placed.to_local()
        own.copy_(whole)

    def gradients(self, loss: Tensor, weight: Tensor | None) -> list[Tensor | None]:
        """Return the gradients of the parts of this rank, averaged over ranks, in the order of the parameters."""
        loss.backward(weight)
        gradients = []
        for parameter in self._loss.parameters():
            if parameter.requires_grad:
                gradients.append(None if parameter.grad is None else self.local(parameter.grad))
                parameter.grad = None
        return gradients

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm of a gradient from that of the part of this rank."""
        norm: Tensor = self._world.mean(own.square()).mul(self._world.ranks).sqrt()
        return norm

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Inside this context, every rank has all parameters."""
        self.unshard()
        try:
            yield
        finally:
            for module in self._modules:
                module.reshard()

    def unshard(self) -> None:
        """Gather all parameters on every rank."""
        for module in self._modules:
            module.unshard()

    def model_tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return copies of the whole parameters and buffers of the model, on the CPU. All ranks must call this."""
        return {
            name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()).to("cpu", copy=True)
            for name, tensor in tensors_of(model).items()
        }

    def load_model(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Set the parameters and buffers of the model to whole tensors."""
        with torch.no_grad():
            for name, own in tensors_of(model).items():
                self.copy_(f"model/{name}", self.local(own), tensors[name])
