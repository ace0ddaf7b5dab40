"""One model on several processes in a training loop of one's own, by `DistributedDataParallel` or by FSDP2.

Run it with `python examples/distributed.py`, or on four processes with
`torchrun --standalone --nproc-per-node 4 examples/distributed.py`. `fit` does all of this by itself under torchrun.
"""

import os
from contextlib import suppress

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import concretely as c
from concretely.training.parallel import rank_noise

BATCH = 64


def main(steps: int = 2000, *, shard: bool = False) -> dict[str, float]:
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same initial parameters on all ranks
    model, data = c.density("20H~64V"), c.load_data("digits")
    wrapped = model
    if ranks > 1:
        wrapped = fully_shard(model) if shard else DistributedDataParallel(model)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=3e-3)
    order = torch.Generator().manual_seed(0)
    for step in range(steps):
        batch = torch.randint(len(data.train), (BATCH,), generator=order)  # the same on all ranks
        x = data.train[batch.chunk(ranks)[rank]]
        # the noise of these rows in the whole batch, so that the number of ranks changes no draw
        noise = rank_noise(seed=0, step=step)
        estimate = wrapped(x, estimator=c.VIMCO(), samples=5, generator=noise)
        optimizer.zero_grad()
        estimate.loss.backward()
        optimizer.step()
    if shard and ranks > 1:
        model.unshard()
    found = {"NLL": c.evaluate(model, data.test, samples=100, generator=torch.Generator().manual_seed(1)).nll}
    if rank == 0:
        print(f"{found['NLL']:.2f} nats a picture")
    return found


if __name__ == "__main__":
    main()
    with suppress(ValueError, AssertionError):
        dist.destroy_process_group()
