"""Small tasks that each layer must solve, on one core: digits of scikit-learn, or data with a known answer.

Run it with `python -m benchmarks.layer_tasks`. Each task is trained with several seeds; the record has the median.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

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
    decide,
    penalty,
    report,
)

from . import record

RECORD = Path(__file__).parent / "records" / "layer-tasks.json"
SEEDS = 5
Found = dict[str, float]


def main() -> None:
    """Train the tasks and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="train only the task with this name")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for name, (task, goal) in TASKS.items():
        if given.only in ("", name):
            found, start = [], time.process_time()
            for seed in range(given.seeds):
                torch.manual_seed(seed)
                found.append(task())
                print(name, seed, found[-1], flush=True)
            seconds = (time.process_time() - start) / given.seeds
            middle = {key: median(each[key] for each in found) for key in found[0]}
            print(f"{name}: median {middle}, {seconds:.1f} s each; goal: {goal}", flush=True)
            row = {"task": name, "goal": goal, "median": middle, "seeds": found, "seconds": round(seconds, 1)}
            results.append(row)
    recipe = {"benchmark": "layer_tasks", "seeds": given.seeds, "threads": 1}
    record.write(given.out, recipe, seed=0, results=results)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test pixels between 0 and 1, and their labels."""
    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x / 16, y, test_size=0.25, random_state=0, stratify=y)
    one, two, labels, others = (torch.as_tensor(part) for part in parts)
    return one.float(), two.float(), labels, others


def descend(
    parameters: list[nn.Parameter] | list[dict[str, object]],
    loss: Callable[[], Tensor],
    model: nn.Module,
    *,
    steps: int,
    rate: float,
) -> None:
    """Minimise a loss with Adam, whose rate falls linearly to a twentieth."""
    optimizer = torch.optim.Adam(parameters, lr=rate)
    # groups with a rate of their own, such as multipliers, keep it
    constant, falling = (lambda step: 1.0), (lambda step: 1 - 0.95 * step / steps)
    factors = [falling if group["lr"] == rate else constant for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
    for _ in range(steps):
        optimizer.zero_grad()
        (loss() + penalty(model)).backward()
        optimizer.step()
        schedule.step()
        advance(model)


def prune() -> Found:
    """Close 90 % of the weights of a network 64-100-50-10."""
    x, test, y, labels = digits()
    gates = [Gate(64), Gate(100), Gate(50)]
    model = nn.Sequential(
        gates[0],
        nn.Linear(64, 100),
        nn.ReLU(),
        gates[1],
        nn.Linear(100, 50),
        nn.ReLU(),
        gates[2],
        nn.Linear(50, 10),
        Target(gates, sparsity=c.Warmup(1500, end=0.9), size=weights),
    )
    own = [parameter for layer in (*gates, model[-1]) for parameter in layer.parameters()]
    rest = [parameter for parameter in model.parameters() if all(parameter is not each for each in own)]

    def loss() -> Tensor:
        index = torch.randint(len(x), (100,))
        return cross_entropy(model(x[index]), y[index])

    descend([{"params": rest}, {"params": own, "lr": 1e-2}], loss, model, steps=4000, rate=2e-3)
    model.eval()
    found = report(model)["8"]
    accuracy = (model(test).argmax(-1) == labels).double().mean().item()
    return {"accuracy": accuracy, "sparsity": found.sparsity.item(), "expected": found.expected_sparsity.item()}


def weights(pixels: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the number of weights of a network with so many units."""
    return pixels.sum() * first.sum() + first.sum() * second.sum() + second.sum() * 10


def select() -> Found:
    """Select 10 of 64 pixels from which a linear map predicts all."""
    x, test, _, _ = digits()
    steps = 2000
    model = nn.Sequential(Selector(64, 10, temperature=c.Annealing(10.0, 0.1, steps=steps)), nn.Linear(64, 64))

    def loss() -> Tensor:
        batch = x[torch.randint(len(x), (256,))]
        return (model(batch) - batch).square().mean()

    descend(list(model.parameters()), loss, model, steps=steps, rate=1e-2)
    index = decide(model)["0"]
    one, two = (torch.cat([each[:, index], torch.ones(len(each), 1)], 1).double() for each in (x, test))
    solved = torch.linalg.lstsq(one, x.double()).solution
    return {"mse": (two @ solved - test).square().mean().item(), "distinct": float(len(set(index)))}


def explain() -> Found:
    """Find the two of ten features whose product decides a label."""
    x = torch.randn(10_000, 10)
    y = torch.bernoulli(torch.sigmoid(x[:, 0] * x[:, 1]))
    width = 100
    score, classify = (
        nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))
        for outputs in (10, 1)
    )
    choose = Choose(2, gradient="mean")
    model = nn.ModuleList([score, classify, choose])

    def loss() -> Tensor:
        index = torch.randint(len(x), (500,))
        batch = x[index]
        return binary_cross_entropy_with_logits(classify(batch * choose(score(batch))).squeeze(-1), y[index])

    descend(list(model.parameters()), loss, model, steps=2000, rate=1e-3)
    chosen = choose.eval()(score(torch.randn(10_000, 10)))
    return {"found": (chosen[:, :2].sum(-1) == 2).double().mean().item()}


def quantise() -> Found:
    """Code digits by 8 codes of 32, and compare with PCA of as many bits."""
    x, test, _, _ = digits()
    steps = 3000
    encode, decode = (nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(2))
    codebook = Codebook(64, 32, groups=8, temperature=c.Annealing(1.0, 0.1, steps=steps), kl=1e-4, diversity=1e-3)
    model = nn.ModuleList([encode, decode, codebook])

    def loss() -> Tensor:
        batch = x[torch.randint(len(x), (256,))]
        return (decode(codebook(encode(batch)).value) - batch).square().mean()

    descend(list(model.parameters()), loss, model, steps=steps, rate=2e-3)
    codebook.eval()
    indices = codebook(encode(torch.cat([x, test]))).indices
    used = torch.tensor([len(group.unique()) for group in indices.T]).sum().item() / (8 * 32)
    mse = (decode(codebook(encode(test)).value) - test).square().mean().item()
    return {"usage": used, "mse": mse, "pca": pca(x, test, bits=40)}


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


def route() -> Found:
    """Use all of four experts for four clusters."""
    centres, maps = torch.tensor([[3.0, 3.0], [3.0, -3.0], [-3.0, 3.0], [-3.0, -3.0]]), torch.randn(4, 2, 2)
    router, experts = Router(2, 4, 1, balance=3.0), nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
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

    descend(list(model.parameters()), loss, model, steps=600, rate=5e-2)
    return {"used": float(len(router.eval()(points(2000)[0]).indices.unique()))}


def order() -> Found:
    """Sort ten numbers."""
    steps = 500
    score = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 10))
    permute = Permute(10, temperature=c.Annealing(1.0, 0.1, steps=300))
    model = nn.ModuleList([score, permute])

    def sorted_by(x: Tensor) -> Tensor:
        return (permute(score(x.unsqueeze(-1))).mT @ x.unsqueeze(-1)).squeeze(-1)

    def loss() -> Tensor:
        x = torch.rand(50, 10)
        return (sorted_by(x) - x.sort(-1).values).square().mean()

    descend(list(model.parameters()), loss, model, steps=steps, rate=1e-1)
    permute.eval()
    x = torch.rand(1000, 10)
    return {"wrong": float((sorted_by(x) != x.sort(-1).values).any(-1).sum())}


def drop() -> Found:
    """Learn the noise of y = 2x + 8 + noise from 10,000 points, and less dropout than from 10."""
    few, many = fit_line(10), fit_line(10_000)
    return {"noise": many["noise"], "few": few["probability"], "many": many["probability"]}


def fit_line(points: int) -> Found:
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

    descend(list(model.parameters()), loss, model, steps=3000, rate=3e-3)
    model.eval()
    noise = (model(torch.randn(1000, 1))[:, 1] / 2).exp().mean().item()
    found = [each.probability.item() for each in report(model).values()]
    return {"noise": noise, "probability": sum(found) / len(found)}


TASKS: dict[str, tuple[Callable[[], Found], str]] = {
    "prune": (prune, "accuracy at least 0.97, sparsity within 0.01 of 0.9"),
    "select": (select, "mse at most 0.0290, 10 distinct"),
    "explain": (explain, "found at least 0.95"),
    "quantise": (quantise, "usage at least 0.95, mse at most that of PCA"),
    "route": (route, "4 used in all seeds"),
    "order": (order, "0 wrong"),
    "drop": (drop, "noise within 0.05 of 1, less dropout from many points than from few"),
}

if __name__ == "__main__":
    main()
