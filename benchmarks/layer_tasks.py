"""Small tasks that each layer must solve, on one core: digits of scikit-learn, or data with a known answer.

Run it with `python -m benchmarks.layer_tasks`. Each task is trained with several seeds; the record has the median.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import concretely as c
from concretely.layer import (
    Choose,
    Codebook,
    ConcreteDropout,
    Gate,
    Permute,
    Router,
    Selector,
    Target,
    advance,
    penalty,
    report,
)
from concretely.schedule import lr_factor

from . import record

RECORD = Path(__file__).parent / "records" / "layer-tasks.json"
SEEDS = 5
Found = dict[str, float]


class Task(NamedTuple):
    """A task and what it must reach."""

    train: Callable[[int], Found]
    """Train for so many steps, and return what was reached."""
    steps: int
    goal: str


def main() -> None:
    """Train the tasks and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="train only the task with this name")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--processes", type=int, default=1, help="the number of runs at a time, each on one core")
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args()
    names = [name for name in TASKS if given.only in ("", name)]
    seeds = range(given.seeds)
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        runs = {name: [pool.submit(run, name, seed) for seed in seeds] for name in names}
        results = [row(name, [future.result() for future in runs[name]]) for name in names]
    recipe = {"benchmark": "layer_tasks", "seeds": given.seeds, "threads": 1}
    record.write(given.out, recipe, seed=0, results=results)


def run(name: str, seed: int) -> tuple[Found, float]:
    """Train a task on one core; return what it reached, and the CPU time in seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    start = time.process_time()
    reached = TASKS[name].train(TASKS[name].steps)
    print(name, seed, reached, flush=True)
    return reached, time.process_time() - start


def row(name: str, runs: list[tuple[Found, float]]) -> dict[str, Any]:
    """Return the row of a task in the record: the median of each number over seeds, and all of them."""
    scores, seconds = zip(*runs, strict=True)
    middle = {key: median(score[key] for score in scores) for key in scores[0]}
    print(f"{name}: median {middle}, {median(seconds):.1f} s; goal: {TASKS[name].goal}", flush=True)
    settings = {"task": name, "goal": TASKS[name].goal, "steps": TASKS[name].steps}
    return {**settings, "median": middle, "seeds": list(scores), "seconds": [round(spent, 1) for spent in seconds]}


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test pixels between 0 and 1, and their labels."""
    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x / 16, y, test_size=0.25, random_state=0, stratify=y)
    one, two, labels, others = (torch.as_tensor(part) for part in parts)
    return one.float(), two.float(), labels, others


def descend(model: nn.Module, rates: dict[float, list[nn.Module]], loss: Callable[[], Tensor], *, steps: int) -> None:
    """Minimise a loss with Adam. Modules have different learning rates, which fall to zero along a cosine."""
    groups = [
        {"params": [parameter for module in modules for parameter in module.parameters()], "lr": rate}
        for rate, modules in rates.items()
    ]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor("cosine", step, steps))
    for _ in range(steps):
        optimizer.zero_grad()
        (loss() + penalty(model)).backward()
        optimizer.step()
        schedule.step()
        advance(model)


def prune(steps: int) -> Found:
    """Close 90 % of the weights of a network 64-100-50-10."""
    return pruned(*digits(), steps)


def pruned(x: Tensor, test: Tensor, y: Tensor, labels: Tensor, steps: int) -> Found:
    """Prune a network that is trained with these points, and match it to the target at the end."""
    gates = [Gate(64), Gate(100), Gate(50)]
    linear = [nn.Linear(64, 100), nn.Linear(100, 50), nn.Linear(50, 10)]
    target = Target(gates, sparsity=c.Warmup(max(steps * 2 // 5, 1), end=0.9), size=weights)
    model = nn.Sequential(gates[0], linear[0], nn.ReLU(), gates[1], linear[1], nn.ReLU(), gates[2], linear[2], target)

    def loss() -> Tensor:
        index = torch.randint(len(x), (100,))
        return cross_entropy(model(x[index]), y[index])

    descend(model, {2e-3: linear, 3e-3: [target], 2e-2: gates}, loss, steps=steps)
    model.eval()
    expected = target.report().expected_sparsity.item()
    target.match()
    accuracy = (model(test).argmax(-1) == labels).double().mean().item()
    return {"accuracy": accuracy, "sparsity": target.report().sparsity.item(), "expected": expected}


def weights(pixels: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the number of weights of a network with so many units."""
    return pixels.sum() * first.sum() + first.sum() * second.sum() + second.sum() * 10


def select(steps: int) -> Found:
    """Select 10 of 64 pixels from which a linear map predicts all."""
    x, test, _, _ = digits()
    mean = x.mean(0)
    selector, decoder = Selector(64, 10, temperature=c.Annealing(10.0, 0.1, steps=steps)), nn.Linear(64, 64)
    model = nn.Sequential(selector, decoder)

    def loss() -> Tensor:
        batch = x[torch.randint(len(x), (128,))] - mean
        return (model(batch) - batch).square().mean()

    descend(model, {5e-2: [selector], 1e-2: [decoder]}, loss, steps=steps)
    index = selector.decide()
    one, two = (torch.cat([points[:, index], torch.ones(len(points), 1)], 1).double() for points in (x, test))
    solved = torch.linalg.lstsq(one, x.double()).solution
    return {"mse": (two @ solved - test).square().mean().item(), "distinct": float(len(set(index)))}


def explain(steps: int) -> Found:
    """Find the two of ten features whose product decides a label, for new points at every step."""
    width = 64
    score, classify = (
        nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))
        for outputs in (10, 1)
    )
    choose = Choose(2, temperature=c.Annealing(5.0, 0.3, steps=steps))
    model = nn.ModuleList([score, classify, choose])

    def loss() -> Tensor:
        x = torch.randn(500, 10)
        y = torch.bernoulli(torch.sigmoid(x[:, 0] * x[:, 1]))
        return binary_cross_entropy_with_logits(classify(x * choose(score(x))).squeeze(-1), y)

    descend(model, {1e-3: [model]}, loss, steps=steps)
    chosen = choose.eval()(score(torch.randn(10_000, 10)))
    return {"found": (chosen[:, :2].sum(-1) == 2).double().mean().item()}


def quantise(steps: int) -> Found:
    """Code digits by 8 codes of 32, and compare with PCA of as many bits.

    Each group of codes starts as the k-means of three principal components, and the decoder as the inverse map.
    """
    x, test, _, _ = digits()
    mean = x.mean(0)
    places = torch.arange(24).view(3, 8)
    places[1] = places[1].flip(0)  # so that all groups have about the same variance
    axes = torch.linalg.svd(x - mean, full_matrices=False).Vh[places.T.flatten()]
    encoder, decoder = nn.Linear(64, 24), nn.Linear(24, 64)
    rest = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 64))
    codebook = Codebook(24, 32, groups=8, temperature=c.Annealing(1.0, 0.1, steps=steps), kl=0.0, diversity=1e-2)
    model = nn.ModuleList([encoder, decoder, rest, codebook])
    with torch.no_grad():
        encoder.weight.copy_(axes)
        decoder.weight.copy_(axes.T)
        for parameter in (encoder.bias, decoder.bias, rest[2].weight, rest[2].bias, codebook.weight):
            parameter.zero_()
        for group, part in enumerate(((x - mean) @ axes.T).split(3, -1)):
            centres = torch.as_tensor(KMeans(32, n_init=1, random_state=0).fit(part.numpy()).cluster_centers_)
            codebook.table[group] = centres
            # the logits are squared distances to the centres, up to a term that all codes share
            codebook.weight[group, :, 3 * group : 3 * group + 3] = 200 * centres
            codebook.bias[group] = -100 * centres.square().sum(-1)

    def coded(x: Tensor) -> tuple[Tensor, Tensor]:
        value, indices, *_ = codebook(encoder(x - mean))
        return decoder(value) + rest(value) + mean, indices

    def error() -> float:
        return (coded(test)[0] - test).square().mean().item()

    def loss() -> Tensor:
        batch = x[torch.randint(len(x), (256,))]
        return (coded(batch + 0.1 * torch.randn_like(batch))[0] - batch).square().sum(-1).mean()

    model.eval()
    start = error()
    model.train()
    descend(model, {1e-3: [model]}, loss, steps=steps)
    model.eval()
    indices = coded(torch.cat([x, test]))[1]
    used = torch.tensor([len(group.unique()) for group in indices.T]).sum().item() / (8 * 32)
    return {"usage": used, "mse": error(), "start": start, "pca": pca(x, test, bits=40)}


def pca(x: Tensor, test: Tensor, *, bits: int) -> float:
    """Return the error of principal components with that many bits, each given to where it reduces the error most."""
    mean = x.mean(0)
    axes = torch.linalg.svd(x - mean, full_matrices=False).Vh[:24]
    one, two = (x - mean) @ axes.T, (test - mean) @ axes.T
    given = [0] * len(axes)
    known = {(place, 0): torch.zeros_like(two[:, place]) for place in range(len(axes))}
    errors = {(place, 0): one[:, place].square().sum().item() for place in range(len(axes))}
    for _ in range(bits):
        for place, own in enumerate(given):
            if (place, own + 1) not in known:
                fit = KMeans(2 ** (own + 1), n_init=1, random_state=0).fit(one[:, place : place + 1])
                centres = torch.as_tensor(fit.cluster_centers_.ravel()).float()
                known[place, own + 1] = centres[torch.as_tensor(fit.predict(two[:, place : place + 1])).long()]
                errors[place, own + 1] = float(fit.inertia_)
        best = max(range(len(axes)), key=lambda place: errors[place, given[place]] - errors[place, given[place] + 1])
        given[best] += 1
    coded = torch.stack([known[place, own] for place, own in enumerate(given)], -1)
    return (coded @ axes + mean - test).square().mean().item()


def route(steps: int) -> Found:
    """Use all of four experts for four clusters, with the defaults of the router."""
    centres, maps = torch.tensor([[3.0, 3.0], [3.0, -3.0], [-3.0, 3.0], [-3.0, -3.0]]), torch.randn(4, 2, 2)
    router, experts = Router(2, 4, 1), nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
    model = nn.ModuleList([router, experts])

    def points(number: int) -> tuple[Tensor, Tensor]:
        cluster = torch.randint(4, (number,))
        x = centres[cluster] + 0.5 * torch.randn(number, 2)
        return x, (maps[cluster] @ x.unsqueeze(-1)).squeeze(-1)

    def loss() -> Tensor:
        x, y = points(128)
        routing = router(x)
        parts = [
            (routing.weights * (routing.indices == number)).sum(-1, keepdim=True) * expert(x)
            for number, expert in enumerate(experts)
        ]
        return (torch.stack(parts).sum(0) - y).square().mean()

    descend(model, {5e-2: [model]}, loss, steps=steps)
    return {"used": float(len(router.eval()(points(2000)[0]).indices.unique()))}


def order(steps: int) -> Found:
    """Sort ten numbers."""
    score = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 10))
    permute = Permute(10, temperature=c.Annealing(1.0, 0.1, steps=max(steps * 3 // 5, 1)))
    model = nn.ModuleList([score, permute])

    def sorted_by(x: Tensor) -> Tensor:
        return (permute(score(x.unsqueeze(-1))).mT @ x.unsqueeze(-1)).squeeze(-1)

    def loss() -> Tensor:
        x = torch.rand(50, 10)
        return (sorted_by(x) - x.sort(-1).values).square().mean()

    descend(model, {1e-1: [model]}, loss, steps=steps)
    permute.eval()
    x = torch.rand(1000, 10)
    return {"wrong": float((sorted_by(x) != x.sort(-1).values).any(-1).sum())}


def drop(steps: int) -> Found:
    """Learn the noise of y = 2x + 8 + noise from 10,000 points, and less dropout than from 10."""
    few, many = (fit_line(points, steps) for points in (10, 10_000))
    return {"noise": many["noise"], "few": few["probability"], "many": many["probability"]}


def fit_line(points: int, steps: int) -> Found:
    """Fit a mean and a variance to points of a line, with learned dropout."""
    x = torch.randn(points, 1)
    y = 2 * x + 8 + torch.randn(points, 1)
    options = {"points": points, "length_scale": 1e-2}
    model = nn.Sequential(
        nn.Linear(1, 64),
        nn.ReLU(),
        ConcreteDropout(nn.Linear(64, 64), **options),
        nn.ReLU(),
        ConcreteDropout(nn.Linear(64, 2), **options),
    )

    def loss() -> Tensor:
        index = torch.randint(points, (min(points, 200),))
        mean, log_variance = model(x[index]).unbind(-1)
        return ((y[index, 0] - mean).square() * torch.exp(-log_variance) + log_variance).mean()

    descend(model, {3e-3: [model]}, loss, steps=steps)
    model.eval()
    noise = (model(torch.randn(1000, 1))[:, 1] / 2).exp().mean().item()
    probabilities = [dropout.probability.item() for dropout in report(model).values()]
    return {"noise": noise, "probability": sum(probabilities) / len(probabilities)}


TASKS = {
    "prune": Task(prune, 4000, "accuracy at least 0.97, sparsity within 0.01 of 0.9"),
    "select": Task(select, 1500, "mse at most 0.0290, 10 distinct"),
    "explain": Task(explain, 1000, "found at least 0.95"),
    "quantise": Task(quantise, 800, "usage at least 0.95, mse at most that of PCA"),
    "route": Task(route, 600, "4 used in all seeds"),
    "order": Task(order, 500, "0 wrong"),
    "drop": Task(drop, 3000, "noise within 0.05 of 1, less dropout from many points than from few"),
}

if __name__ == "__main__":
    main()
