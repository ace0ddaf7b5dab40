"""Two ranks equal one process: penalties, their gradients and the running statistics."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from concretely.layer import Codebook, ConcreteDropout, Levels, Router, advance, penalty

from ..training import ranks

RANKS, TOKENS, FEATURES = 2, 24, 6


class Model(nn.Module):
    """A layer of every kind that has a penalty of the data, and one that has a penalty of its parameters only."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(FEATURES, 4, 2, noise=None, balance=1.0, z=0.1)
        self.codebook = Codebook(FEATURES, 5, groups=2)
        self.levels = Levels((4, 3), features=FEATURES, entropy=0.5)
        self.dropout = ConcreteDropout(nn.Linear(FEATURES, 3), points=TOKENS)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return 0, with a gradient of 0 for all parameters."""
        results = self.router(x, mask=mask), self.codebook(x, mask=mask), self.levels(x, mask=mask)
        return 0 * (sum(result[0].sum() for result in results) + self.dropout(x).sum())


def model() -> Model:
    torch.manual_seed(0)
    return Model()


def batch() -> tuple[Tensor, Tensor]:
    """Tokens of which more are padding in the second half."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(TOKENS, FEATURES, generator=generator)
    return x, torch.rand(TOKENS, generator=generator) > torch.linspace(-0.2, 0.9, TOKENS)


def found(own: Model, output: Tensor, total: Tensor) -> dict[str, Any]:
    """The penalty, its gradients and the statistics after a step that are no draws."""
    (output.sum() + total).backward()
    advance(own)
    gradients = {name: parameter.grad for name, parameter in own.named_parameters()}
    whole = {name: each.full_tensor() if hasattr(each, "full_tensor") else each for name, each in gradients.items()}
    sums = {"router": own.router.counts, "codebook": own.codebook.counts.sum(-1), "levels": own.levels.counts.sum(-1)}
    return {"penalty": total.detach(), **whole, **sums}


def work() -> dict[str, dict[str, Any]]:
    """What a rank finds with each of torch's wrappers."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo")
    x, mask = (each.chunk(RANKS)[distributed.get_rank()] for each in batch())
    own = model()
    wrapped = DistributedDataParallel(own)
    results = {"ddp": found(own, wrapped(x, mask), penalty(wrapped))}
    sharded = model()
    distributed.device_mesh.init_device_mesh("cpu", (RANKS,))
    fully_shard(sharded)
    results["fsdp"] = found(sharded, sharded(x, mask), penalty(sharded))
    return results


@pytest.mark.slow
@pytest.mark.unchecked
def test_two_ranks_equal_one(tmp_path: Path) -> None:
    own = model()
    expected = found(own, own(*batch()), penalty(own))
    for rank, (_, each, _) in enumerate(ranks.launch(work, RANKS, tmp_path)):
        for name, results in each.items():
            for key, tensor in results.items():
                torch.testing.assert_close(
                    tensor, expected[key], msg=lambda text, at=(rank, name, key): f"{at}: {text}"
                )
