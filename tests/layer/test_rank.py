"""Two ranks equal one process: draws, penalties, their gradients and the running statistics."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from concretely.layer import (
    Choice,
    Choose,
    Codebook,
    ConcreteDropout,
    Gate,
    Levels,
    Permute,
    Router,
    Selector,
    Target,
    advance,
    penalty,
)
from concretely.layer.rank import whole
from concretely.training.parallel import rank_draws

from ..training import ranks

RANKS, TOKENS, FEATURES = 2, 24, 6


class Model(nn.Module):
    """A layer of every kind: with draws for every token or for all, with penalties of the data or of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.selector = Gate(FEATURES, each="batch"), Selector(FEATURES, 3)
        self.choice = Choice([nn.Linear(FEATURES, 2) for _ in range(3)])
        self.choose, self.permute = Choose(2), Permute(2)
        self.router = Router(FEATURES, 4, 2, balance=1.0, z=0.1)
        self.codebook = Codebook(FEATURES, 5, groups=2)
        self.levels = Levels((4, 3), features=FEATURES, entropy=0.5)
        self.dropout = ConcreteDropout(nn.Linear(FEATURES, 3), points=TOKENS)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return a cost of all that is drawn, which is a mean over tokens."""
        gated = self.gate(self.selector(x))
        results = self.router(gated, mask=mask), self.codebook(gated, mask=mask), self.levels(gated, mask=mask)
        order, chosen = self.permute(x[:, :4].view(-1, 2, 2)), self.choose(x)
        total = sum((result[0] - 1).square().mean() for result in results) + (self.dropout(gated) - 1).square().mean()
        return total + (self.choice(gated) * chosen.sum(-1, keepdim=True)).square().mean() + order[:, 0, 0].mean()


def model() -> Model:
    torch.manual_seed(0)
    return Model()


def batch() -> tuple[Tensor, Tensor]:
    """Tokens of which more are padding in the second half."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(TOKENS, FEATURES, generator=generator)
    return x, torch.rand(TOKENS, generator=generator) > torch.linspace(-0.2, 0.9, TOKENS)


def found(own: Model, output: Tensor, total: Tensor) -> dict[str, Any]:
    """The cost, the penalty, their gradients and the statistics after a step."""
    (output + total).backward()
    advance(own)
    gradients = {name: parameter.grad for name, parameter in own.named_parameters()}
    whole = {name: each.full_tensor() if hasattr(each, "full_tensor") else each for name, each in gradients.items()}
    whole = {name: each for name, each in whole.items() if each is not None}
    counts = {"router": own.router.counts, "codebook": own.codebook.counts, "levels": own.levels.counts}
    sums = {**counts, "bias": own.router.bias}
    return {"penalty": total.detach(), **whole, **sums}


def methods(own: Model, x: Tensor) -> dict[str, Tensor]:
    """What methods other than forward return."""
    drawn = (own.gate, own.selector, own.choice, own.router, own.codebook, own.levels, own.dropout)
    samples = {type(layer).__name__: layer.sample(x, generator=torch.Generator().manual_seed(3)) for layer in drawn}
    results = {name: drawn if isinstance(drawn, Tensor) else drawn[0] for name, drawn in samples.items()}
    places = torch.arange(4).view(2, 2)
    results |= {
        "values": own.codebook.values(places),
        "levels": own.levels.values(places),
        "load": own.router.expected_load(x),
    }
    return results | {"table": own.codebook.decide(), "codes": own.levels.decide(), "gates": own.gate.values()}


def penalty_after(own: Model, x: Tensor, mask: Tensor) -> Tensor:
    """The penalty of a forward after other methods."""
    with rank_draws(seed=1, step=2, rows=len(x)):
        own(x, mask)
    return penalty(own).detach()


class Small(nn.Module):
    """Layers with methods that change parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.other = (Gate(FEATURES, probability=probability) for probability in (0.2, 0.8))
        self.codebook, self.last = Codebook(FEATURES, 5), nn.Linear(FEATURES, 3)
        self.target = Target([self.gate, self.other], sparsity=0.5)
        self.codebook.counts.copy_(torch.tensor([[3.0, 0.0, 2.0, 0.0, 4.0]]))
        with torch.no_grad():
            self.gate.logits.add_(torch.linspace(-2, 2, FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.last(self.codebook(self.other(self.gate(x))).value)
        return value


CHANGES: dict[str, Callable[[Small], Any]] = {
    "keep": lambda own: own.gate.keep(torch.arange(FEATURES) % 3 == 0),
    "match": lambda own: own.target.match(),
    "revive": lambda own: own.codebook.revive(),
}
FORWARDS: dict[str, Callable[[Small], Any]] = {
    "no forward": lambda own: None,
    "training": lambda own: own(torch.ones(4, FEATURES)),
    "step": lambda own: own(torch.ones(4, FEATURES)).sum().backward(),
    "evaluation": lambda own: torch.no_grad()(own.eval())(torch.ones(4, FEATURES)),
}


def changed(own: Small, change: str) -> dict[str, Tensor]:
    """All parameters and the smaller layers after a change."""
    torch.manual_seed(1)
    CHANGES[change](own)
    tensors = {name: whole(tensor.detach()) for name, tensor in own.state_dict().items()}
    _, after = own.gate.prune(None, own.last)
    return tensors | ({} if after is None else dict(after.named_parameters()))


def changes_of_shards() -> dict[str, Any]:
    """The changes of sharded layers, which FSDP2 may have gathered before, in another precision."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    results: dict[str, Any] = {}
    for change, (name, forward), dtype in itertools.product(CHANGES, FORWARDS.items(), (None, torch.bfloat16)):
        own = Small()
        fully_shard(own, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
        forward(own)
        results[f"{change} after {name}, {dtype}"] = changed(own, change)
    own = fully_shard(Small())
    output = own(torch.ones(4, FEATURES))
    own.target.match()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    return results


def work() -> dict[str, Any]:
    """What a rank finds with each of torch's wrappers."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo")
    x, mask = (each.chunk(RANKS)[distributed.get_rank()] for each in batch())
    own = model()
    wrapped = DistributedDataParallel(own, find_unused_parameters=True)  # branches that are not drawn
    with rank_draws(seed=1, step=2, rows=len(x)):
        results = {"ddp": found(own, wrapped(x, mask), penalty(wrapped))}
    sharded = model()
    distributed.device_mesh.init_device_mesh("cpu", (RANKS,))
    fully_shard(sharded)
    with rank_draws(seed=1, step=2, rows=len(x)):
        results["fsdp"] = found(sharded, sharded(x, mask), penalty(sharded))
    sharded = model()
    fully_shard(sharded.choice.branches[0])  # a block that gathers its own parameters
    fully_shard(sharded)
    results["methods"] = methods(sharded, x)
    results["changes"] = changes_of_shards()
    return results | {"fsdp again": {"penalty": penalty_after(sharded, x, mask)}}


@pytest.mark.slow
@pytest.mark.unchecked
def test_two_ranks_equal_one(tmp_path: Path) -> None:
    own = model()
    with rank_draws(seed=1, step=2, rows=TOKENS):
        expected = found(own, own(*batch()), penalty(own))
    for rank, (_, each, _) in enumerate(ranks.launch(work, RANKS, tmp_path)):
        for case, tensors in each.pop("changes").items():
            torch.testing.assert_close(tensors, changed(Small(), case.split()[0]), rtol=0, atol=0, msg=case)
        plain = methods(model(), batch()[0].chunk(RANKS)[rank])
        torch.testing.assert_close(each.pop("methods"), plain)
        for name, results in each.items():
            for key, tensor in results.items():
                torch.testing.assert_close(
                    tensor, expected[key], msg=lambda text, at=(rank, name, key): f"{at}: {text}"
                )
