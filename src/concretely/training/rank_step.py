"""A step on one of several ranks: averages over ranks, and draws of torch's generators."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..functional.slice import Slice
from ..functional.torch_draw import SlicedDraws
from .feed import Inputs
from .parallel import World
from .task import Task


class RankStep:
    """The part of a step that involves all ranks: averages and random draws.

    `leaves` are the parameters by name. `constants` are all other tensors of the loss, if members are stacked: then the
    first axis of all tensors counts members.
    """

    def __init__(
        self, world: World, task: Task, leaves: Mapping[str, Tensor], constants: Mapping[str, Tensor] | None
    ) -> None:
        stacked = {} if constants is None else constants
        own = task.model.buffers() if constants is None else (stacked[name] for name in stacked if name[:6] == "model.")
        self.world, self._samples = world, task.recipe.samples
        self._leaves = {name: leaf[None].detach() if constants is None else leaf for name, leaf in leaves.items()}
        self._buffers = [buffer for buffer in own if buffer.is_floating_point()]
        self._before = [buffer.detach().clone() for buffer in self._buffers]  # the same on all ranks
        self._names: list[str] | None = None  # of the parameters that have a gradient on some rank
        # whether random operations of torch, such as dropout, draw as for the whole batch
        self._slices_torch, self._knows_draws = task.reseeds and constants is None and not task.compiles, False
        self.seeded_rank = 0 if self._slices_torch else world.rank
        """The rank that torch is seeded for: the same on all if draws are sliced."""

    def means(self, loss: Tensor, gradients: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its gradients, averaged over all ranks. The votes of the ranks travel with them.

        The changes of buffers, such as those of batch norm, are averaged as well.
        """
        world = self.world
        if world.shards:  # FSDP2 has averaged the gradients
            self._names = []
        if self._names is None:
            known = {name for names in world.gather(list(gradients)) for name in names}
            self._names = [name for name in self._leaves if name in known]
        slopes = [
            gradients[name] if name in gradients else torch.zeros_like(self._leaves[name]) for name in self._names
        ]
        pairs = zip(self._buffers, self._before, strict=True)
        changes = [torch.where(buffer == before, 0, buffer - before) for buffer, before in pairs]  # may be infinite
        votes = [] if world.ballot is None else [world.ballot.votes.to(loss.dtype)]
        mean, *means = world.means([loss, *slopes, *changes, *votes])
        if world.ballot is not None:
            world.ballot.count(means.pop())
        for buffer, before, change in zip(self._buffers, self._before, means[len(slopes) :], strict=True):
            buffer.copy_(before.add_(change))
        return mean, dict(gradients) if world.shards else dict(zip(self._names, means, strict=False))

    @contextmanager
    def drawing(self, inputs: Inputs) -> Iterator[None]:
        """Inside this context, the loss of a batch is computed; the first axis of its tensors counts members.

        If the first batch needs no random operation of torch, later ones are not watched for them.
        """
        first = next((leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)), None)
        if not self._slices_torch or first is None:
            yield
            return
        source = Slice(None, rank=self.world.rank, ranks=self.world.ranks)
        with SlicedDraws(source, rows=first.shape[1], samples=self._samples) as mode:
            yield
        if not self._knows_draws:
            self._knows_draws, self._slices_torch = True, mode.is_needed
