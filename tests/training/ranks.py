"""Ranks on this machine, and what they train: the same cases on one, two and four of them."""

import os
import runpy
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import concretely as c
from concretely.training.callback import Callbacks
from concretely.training.engine import Engine
from concretely.training.loop import DivergedError, train
from concretely.training.parallel import World, join
from concretely.training.train_state import TrainState

from ..process import forked
from . import example, own

SECONDS = 100
"""After this time, ranks are taken for stuck."""
ESTIMATORS: dict[str, Any] = {
    "concrete": (c.Pathwise(0.5), 3),
    "logistic-normal": (c.Pathwise(0.5, noise="normal"), 1),
    "gumbel-softmax": (c.GumbelSoftmax(0.5), 2),
    "straight-through": (c.StraightThrough(), 1),
    "straight-through-gumbel-softmax": (c.StraightThroughGumbelSoftmax(0.5), 1),
    "reinforce": (c.Reinforce(), 2),
    "rloo": (c.RLOO(), 3),
    "nvil": (c.NVIL, 2),
    "vimco": (c.VIMCO(), 3),
    "exact": (c.Exact(), 1),
}


def launch(
    work: Callable[..., Any], ranks: int, folder: Path, *given: Any, ends: bool = True
) -> list[tuple[int | None, Any, str]]:
    """Call a function on every rank; return each one's exit code, what it returned, and what it printed on stderr."""
    folder.mkdir(parents=True, exist_ok=True)
    context = forked()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [context.Process(target=_work, args=(work, rank, ranks, port, folder, given)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
    stuck = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
        process.join()
    assert not stuck, f"ranks {stuck} hang"
    found = [_result(folder, rank, process.exitcode) for rank, process in enumerate(processes)]
    assert not ends or all(code == 0 for code, *_ in found), "".join(text[-1_500:] for *_, text in found)
    return found


def _result(folder: Path, rank: int, code: int | None) -> tuple[int | None, Any, str]:
    kept = folder / f"rank-{rank}.pt"
    value = torch.load(kept, weights_only=False) if kept.exists() else None
    return code, value, (folder / f"rank-{rank}.txt").read_text()


def _work(work: Callable[..., Any], rank: int, ranks: int, port: int, folder: Path, given: tuple[Any, ...]) -> None:
    """Be a rank, as torchrun would start it."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    with (folder / f"rank-{rank}.txt").open("w") as out:
        os.dup2(out.fileno(), sys.stderr.fileno())
        torch.save(work(*given), folder / f"rank-{rank}.pt")
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in (*model.named_parameters(), *model.named_buffers())}


def result(run: Any) -> dict[str, Any]:
    """What must not depend on the number of ranks."""
    rows = [{**row.values, "seconds": 0.0} for row in run.rows]
    return {"parameters": parameters(run.model), "rows": rows, "best": run.best}


def fitted(model: nn.Module, data: Any = None, **given: Any) -> dict[str, Any]:
    """Train in float64, with a few large steps."""
    x = own.bits().double()
    given = {"steps": 5, "batch": 12, "lr": 0.01, "seed": 3, "valid": x[:31], "every": 5} | given
    return result(c.fit(model.double(), x if data is None else data, **given))


def built(build: Callable[[], nn.Module] = own.build) -> nn.Module:
    torch.manual_seed(0)
    return build()


def by_estimator(name: str) -> dict[str, Any]:
    """A model of the user trained by an estimator."""
    estimator, samples = ESTIMATORS[name]
    return fitted(built(), estimator=estimator, samples=samples)


def everything() -> dict[str, Any]:
    """A model with dropout, trained on a loader with accumulated, clipped and averaged gradients by torch's AdamW."""
    data = own.bits().double()
    loader = DataLoader(TensorDataset(data, torch.arange(len(data))), batch_size=12, shuffle=True)
    model, how = built(lambda: own.build(drop=0.3)), {"accumulate": 2, "clip": 0.5, "ema": 0.9}
    given = {"optimizer": torch.optim.AdamW, "inputs": lambda batch: batch[0], "estimator": c.Pathwise(0.5)}
    valid = TensorDataset(data[:31], torch.arange(31))
    return fitted(model, loader, samples=2, beta=c.Warmup(5), valid=valid, **how, **given)


def mixed() -> dict[str, Any]:
    """A model with a normal node, drawn by torch, and a discrete one."""
    return fitted(built(own.build_mixed), estimator=c.RLOO(), samples=2)


class Layers(nn.Module):
    """A program with layers that draw for every row, and with some that draw once for all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(6, 4), nn.Parameter(torch.zeros(4))
        self.units, self.codebook = c.layer.Gate(6, each="batch"), c.layer.Codebook(6, 5)
        self.router = c.layer.Router(6, 6, 2)

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        routing = self.router(x)
        x = self.codebook(self.units(x) + torch.zeros_like(x).scatter(1, routing.indices, routing.weights)).value
        code = c.gumbel_softmax(self.first(x), tau=0.5, hard=True)
        bit = draw("bit", c.Bernoulli(logits=(code * c.gumbel_softmax(self.gate, tau=0.5)).sum(-1)))
        return (bit - c.tile(x[:, 0], bit)).square()


class Pointless(nn.Module):
    """A program without data points."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(3))

    def forward(self, draw: c.Draw) -> Tensor:
        return (draw("b", c.Bernoulli(logits=self.logits)) - 0.45).square().sum(-1)


def sharded() -> dict[str, Any]:
    """The same models with sharded parameters, whose shards have different sizes."""
    how = {"estimator": c.NVIL, "samples": 2, "ema": 0.9, "clip": 0.5}
    return fitted(built(), shard=True, **how)


def layers() -> dict[str, Any]:
    """A program whose layers draw from torch's generator."""
    return fitted(built(Layers), estimator=c.StraightThrough(), valid=None, every=None)


def normed() -> dict[str, Any]:
    """Buffers of batch norm are averaged over ranks, so that all ranks have the same."""
    found = fitted(built(lambda: own.build(norm=True)), estimator=c.Pathwise(0.5))
    return {"buffers": {name: each for name, each in found["parameters"].items() if "running" in name}}


def members() -> dict[str, Any]:
    """Two seeds, trained together."""
    torch.set_default_dtype(torch.float64)
    try:
        runs = c.fit(own.build, own.bits().double(), estimator=c.Pathwise(0.5), steps=4, batch=12, seed=[1, 2])
    finally:
        torch.set_default_dtype(torch.float32)
    return {str(run.seed): result(run) for run in runs}


def paper(folder: Path) -> dict[str, Any]:
    """One of the paper's models, which is in float32."""
    world = join("cpu")
    recipe = example.recipe(notation="4H~12V", estimator="vimco", samples=2, steps=20, validate=10)
    run = train(recipe, folder, data=example.data(), world=world)
    return {"rows": [{**row.values, "seconds": 0.0} for row in run.rows], "best": run.best}


def paper_stacked() -> dict[str, Any]:
    """Two of the paper's models as one vmapped program, as on a GPU."""
    recipes = [example.recipe(notation="4H~12V", estimator="nvil", seed=seed) for seed in range(2)]
    states = [TrainState.of(each, example.data(), world=join("cpu")) for each in recipes]
    Engine(states, stacked=True).advance(4)
    return {str(k): dict(state.tensors()) for k, state in enumerate(states)}


def scored() -> dict[str, Any]:
    """The log-likelihood of data whose number no number of ranks divides."""
    world, model = join("cpu"), built().double()
    generator = world.noise(torch.Generator().manual_seed(5))
    found = c.evaluate(model, own.bits().double()[:37], samples=20, chunk=160, generator=generator)
    few = c.evaluate(model, own.bits().double()[:1], samples=2_000, full_points=1, generator=generator)
    return {"found": found.log_likelihood, "effective": found.effective_sample_size, "few": few.log_likelihood}


def leg(folder: Path, steps: int) -> dict[str, Any]:
    """A part of a longer run."""
    return fitted(built(), estimator=c.NVIL, out=folder, steps=steps, samples=2)


def law(folder: Path) -> dict[str, Any]:
    """All cases whose results do not depend on the number of ranks."""
    found = {name: by_estimator(name) for name in ESTIMATORS}
    cases = {each.__name__: each() for each in (everything, mixed, sharded, layers, members, paper_stacked, scored)}
    return found | cases | {"paper": paper(folder / "paper")}


def refused(case: Callable[[World], Any]) -> str:
    """What a rank says about bad input; only one says anything."""
    try:
        case(join("cpu"))
    except (ValueError, DivergedError) as error:
        return str(error)
    except SystemExit as error:
        return "" if error.code == 1 else f"exit {error.code}"
    return "accepted"


def bad_input(folder: Path) -> dict[str, str]:
    """What is said about every kind of bad input."""
    x = own.bits()
    cases: dict[str, Callable[[World], Any]] = {
        "batch": lambda world: c.fit(own.build, x, steps=2, batch=13),
        "loader": lambda world: c.fit(own.build, DataLoader(TensorDataset(x[:9]), batch_size=9), steps=2),
        "rows": lambda world: c.fit(Pointless, None, steps=2, estimator=c.Reinforce()),
        "recipe": lambda world: c.fit(own.build, x, steps=2, batch=12, lr=0.1 / (1 + world.rank)),
        "data": lambda world: c.fit(own.build, x.roll(world.rank, 0), steps=2, batch=12),
        "members": lambda world: c.fit(own.build, x, steps=2, batch=12, seed=range(2 + world.rank)),
        "arguments": lambda world: c.fit(own.build, x, steps=2, batch=12, arguments={"width": 4 + world.rank}),
        "model": lambda world: c.fit(own.build(4 + world.rank), x, steps=2, batch=12),
        "shards": lambda world: c.fit(own.build(4 + world.rank), x, steps=2, batch=12, shard=True),
        "some out": lambda world: c.fit(own.build, x, steps=2, batch=12, out=None if world.rank else folder / "some"),
        "other out": lambda world: c.fit(own.build, x, steps=2, batch=12, out=folder / "other" if world.rank else None),
        "compile": lambda world: c.fit(own.build, x, steps=2, batch=12, compile=world.rank == 1),
        "sampler": lambda world: c.fit(own.build, spread_loader(world), steps=2),
        "diverged": lambda world: c.fit(own.build, x, steps=40, batch=12, lr=3e38),
        "settings": lambda world: c.fit(own.build(), x, steps=2, batch=12, seed=range(2)),
        "precision": lambda world: c.fit(own.build, x, steps=2, batch=12, precision="float31"),
        "folder": lambda world: c.fit(own.build, x, steps=2, batch=12, out=folder / f"rank{world.rank}"),
        "overwrite": lambda world: c.fit(own.build, x, steps=2, batch=12, out=folder / "all", overwrite=True),
    }
    return {name: refused(case) for name, case in cases.items()}


def spread_loader(world: World) -> DataLoader[Any]:
    """The data of one of several ranks, as loops of torch read them."""
    data = TensorDataset(own.bits())
    return DataLoader(data, batch_size=12, sampler=DistributedSampler(data, world.ranks, world.rank))


def whimsical() -> tuple[int, Any]:
    """The last step and the best one of a run whose score differs between ranks, and which may end early."""
    scores = iter(range(100) if os.environ["RANK"] == "0" else range(0, -100, -1))
    run = c.fit(own.build, own.bits(), steps=40, batch=12, every=5, patience=2, valid=lambda model: next(scores))
    return run.step, run.best


def wrapped() -> dict[str, float]:
    """The example, in which torch wraps the model."""
    main = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "distributed.py"))["main"]
    return {"data parallel": main(3)["NLL"], "sharded": main(3, shard=True)["NLL"]}


def stopped(folder: Path) -> tuple[int, bool]:
    """The last step of a run that one rank was asked to stop, and whether it has finished."""
    given = {"steps": 50, "batch": 12, "out": folder, "estimator": c.RLOO(), "samples": 2}
    run = c.fit(Doomed("stops").double(), own.bits().double(), **given, callbacks=Callbacks(note=lambda text: None))
    return run.step, run.finished


def on_two_ranks(folder: Path) -> dict[str, Any]:
    """All that two ranks are asked to do."""
    found = {"law": law(folder), "normed": normed(), "leg": leg(folder / "legs", 4), "bad": bad_input(folder)}
    found |= {"wrapped": wrapped(), "stopped": stopped(folder / "stopped"), "whimsical": whimsical()}
    join("cpu").wait()  # for a rank that listens to what another says
    return found


def on_four_ranks(folder: Path) -> dict[str, Any]:
    """All that four ranks are asked to do."""
    return {"law": law(folder), "leg": leg(folder / "legs", 12)}


class Doomed(nn.Module):
    """A program whose rank 1 ends in its fifth training step: by an error, killed, or asked to stop."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.logits, self.kind, self.calls = nn.Parameter(torch.zeros(6)), kind, 0

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        self.calls += self.training
        if self.calls == 5 and os.environ.get("RANK") == "1" and self.kind == "raises":
            raise ValueError("this rank has had enough")
        if self.calls == 5 and os.environ.get("RANK") == "1" and self.kind == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.calls == 5 and os.environ.get("RANK") == "1" and self.kind == "stops":
            os.kill(os.getpid(), signal.SIGTERM)
        b = draw("b", c.Bernoulli(logits=self.logits.expand_as(x)))
        return (b - c.tile(x, b)).square().sum(-1)


def doomed(folder: Path, kind: str) -> dict[str, Tensor]:
    """Train until rank 1 fails."""
    given = {"steps": 8, "batch": 12, "out": folder, "checkpoint_seconds": 0.0, "estimator": c.RLOO(), "samples": 2}
    return parameters(c.fit(Doomed(kind).double(), own.bits().double(), lr=0.1, **given).model)
