"""Time steps of `fit` on a CPU against the same models by hand in eager PyTorch.

Run it with `python -m benchmarks.own`. The models, the data, the batches and Adam are those of `benchmarks.chip --only
own`, which times them on a GPU. By hand, the loss is written with torch.distributions or with formulas of its own; the
latter is also timed against `fit` with `compile=True`. Both sides take as many steps in a call as `fit` takes between
two measurements of the discrete graph, so that each of our calls has one. Ratios are our time over that by hand in the
same round. The rounds of several copies of both models are pooled: a step takes up to a tenth longer where its memory
lies badly.
"""

from collections.abc import Iterator
from itertools import product

import torch
import typer

from .chip import own, work
from .chip.peer import torch_own
from .chip.peer.own_model import OwnCase, images
from .pair import On, Only, Out, Pair, Quick, Rounds, race_pairs

STEPS = own.GAP_INTERVAL
COPIES = 6
DISTRIBUTIONS = "torch.distributions by hand, eager"
SIDES = ((False, DISTRIBUTIONS), (False, own.EAGER), (True, own.EAGER))
"""Whether ours is compiled, and the peer."""


def main(rounds: Rounds = 3, device: On = "cpu", only: Only = "", quick: Quick = False, out: Out = None) -> None:
    """Time steps of `fit` against the same models by hand."""
    recipe = {"benchmark": "own", "steps": STEPS, "copies": COPIES}
    race_pairs(pairs, recipe, name="own", rounds=rounds, device=device, only=only, quick=quick, out=out)


def pairs(device: torch.device, *, quick: bool = False) -> Iterator[Pair]:
    """All that is timed on a device: copies of the steps of every case."""
    for case, (compiles, peer) in product(own.QUICK if quick else own.CASES, SIDES):
        kept = []  # so that each copy has memory of its own
        for _ in range(1 if quick else COPIES):
            kept.append(pair(case, device, points=100 if quick else work.POINTS, compiles=compiles, peer=peer))
            yield kept[-1]


def pair(case: OwnCase, device: torch.device, *, points: int, compiles: bool, peer: str) -> Pair:
    """The steps of a case by `fit` and by hand in eager PyTorch."""
    data = images(case, points, work.SEED)
    engine = own.fitted(case, data, device, seeds=1, compiles=compiles)
    loss = torch_own.loss_by_distributions if peer == DISTRIBUTIONS else torch_own.loss
    by_hand = torch_own.trainer(case, data, device, loss=loss)

    def ours() -> float:
        work.taken(engine, STEPS)
        return engine.runs[0].bound()

    def theirs() -> float:
        bounds = [by_hand() for _ in range(STEPS)]
        return sum(bound.item() for bound in bounds) / STEPS

    what = "with torch.distributions" if peer == DISTRIBUTIONS else "compiled" if compiles else ""
    return Pair(f"{case.title}, {STEPS} steps{what and ', '}{what}", ours, theirs, peer, times=1)


if __name__ == "__main__":
    typer.run(main)
