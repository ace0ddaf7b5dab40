"""Prune LeNet-5 by gates, and select 50 pixels of digits, on grey MNIST with labels and one GPU.

Run it with `python -m benchmarks.lenet --data FILE`, where FILE is a `.npz` file with the arrays `train`,
`train_labels`, `test` and `test_labels`, pixels from 0 to 255, such as those of `torchvision.datasets.MNIST`. The last
5,000 points of the shuffled training set are the validation set. Without `--test`, only numbers of the validation set
are computed, and no record is written: settings are chosen that way, with other seeds than those of the record.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from sklearn.ensemble import ExtraTreesClassifier
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

import concretely as c
from concretely import layer
from concretely.schedule import lr_factor
from concretely.training.capture import Captured

from . import record

RECORD = Path(__file__).parent / "records" / "lenet.json"
VALID = 5_000
EVERY = 10
"""The number of steps after which schedules move, which waits for the GPU."""


class Points(NamedTuple):
    """Images with values between 0 and 1, of shape (points, 1, 28, 28), and their labels."""

    x: Tensor
    labels: Tensor


class LeNet(nn.Module):
    """LeNet-5 with gates behind the second convolution, before the first linear layer and between the linear layers.

    `units` are the numbers of units that the gates leave. The gates of inputs are those of 16 positions of a channel.
    """

    def __init__(self, units: tuple[int, int, int], *, warm_up: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
        self.hidden, self.last, self.pool = nn.Linear(800, 500), nn.Linear(500, 10), nn.MaxPool2d(2)
        self.channels, self.inputs, self.outputs = layer.Gate(50, axis=-3), layer.Gate(800), layer.Gate(500)
        channels, inputs, outputs = units
        self.targets = nn.ModuleList(
            layer.Target(gates, sparsity=c.Warmup(warm_up, end=1 - left / whole), size=size)
            for gates, left, whole, size in (
                ([self.channels], channels, 50, None),
                ([self.channels, self.inputs], inputs, 800, _inputs),
                ([self.outputs], outputs, 500, None),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the classes."""
        x = self.pool(torch.relu(self.first(x)))
        x = self.inputs(self.channels(self.pool(torch.relu(self.second(x)))).flatten(1))
        return self.last(self.outputs(torch.relu(self.hidden(x))))

    def match(self) -> None:
        """Let the gates leave the numbers of units that were asked for. The inputs come last, as they need channels."""
        for target, gate in zip(self.targets, (self.channels, self.inputs, self.outputs), strict=True):
            target.match(gate)

    def units(self) -> list[int]:
        """Return the numbers of units that are left: filters of both convolutions, inputs, hidden units."""
        channels, inputs, outputs = (gate.values() > 0 for gate in (self.channels, self.inputs, self.outputs))
        return [20, int(channels.sum()), int(_inputs(channels, inputs)), int(outputs.sum())]


def _inputs(channels: Tensor, inputs: Tensor) -> Tensor:
    """Return the number of inputs that are left: those of a closed channel are closed."""
    return (channels.repeat_interleave(16) * inputs).sum()


def main(
    data: Annotated[Path, typer.Option(help="The `.npz` file.")],
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of pruning; a sixth of them of selecting.")] = 60,
    only: Annotated[str, typer.Option(help="Train only the task with this name.")] = "",
    out: Annotated[Path, typer.Option(help="Where to write the record.")] = RECORD,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    test: Annotated[bool, typer.Option(help="Measure on the test set too, and write the record.")] = False,
) -> None:
    """Train the tasks and write the record."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    train, valid, held_out = load(data, device)
    parts, results = {"valid": valid} | ({"test": held_out} if test else {}), []
    for name, task in (("prune", prune), ("select", select)):
        for seed in range(first, first + (seeds if only in ("", name) else 0)):
            torch.manual_seed(seed)
            start = time.perf_counter()
            numbers = task(train, parts, epochs=epochs)
            results.append({"task": name, "seed": seed, **numbers, "seconds": round(time.perf_counter() - start, 1)})
            print(results[-1], flush=True)
            if test:
                recipe = {"benchmark": "lenet", "epochs": epochs, "matmul_precision": "high"}
                record.write(out, recipe, seed=0, results=results, on=str(device))


def load(path: Path, device: torch.device) -> tuple[Points, Points, Points]:
    """Return the points to train, to validate and to test with."""
    with np.load(path) as file:
        order = np.random.RandomState(0).permutation(len(file["train"]))
        arrays = file["train"][order], file["train_labels"][order], file["test"], file["test_labels"]
    x, labels, test, others = (torch.as_tensor(array, device=device) for array in arrays)
    images = (part.view(-1, 1, 28, 28).float() / 255 for part in (x[:-VALID], x[-VALID:], test))
    return tuple(map(Points, images, (labels[:-VALID].long(), labels[-VALID:].long(), others.long())))  # type: ignore[return-value]


def prune(
    train: Points,
    parts: dict[str, Points],
    *,
    epochs: int,
    units: tuple[int, int, int] = (24, 43, 440),
    tune: float = 0.2,
    gate_rate: float = 1e-2,
) -> dict[str, Any]:
    """Prune LeNet-5 to fewer units than 20-25-45-462, trained on images that are moved by up to two pixels.

    The gates are trained until a share `tune` of the steps is left. They are then matched to the targets, and the
    weights are trained on with gates that no longer move.
    """
    steps = epochs * len(train.x) // 128
    last = round(steps * tune)
    model = LeNet(units, warm_up=steps * 2 // 5).to(train.x.device)
    gates = [module for module in model.modules() if isinstance(module, layer.Gate)]
    weights = [model.first, model.second, model.hidden, model.last]

    def loss() -> Tensor:
        index = torch.randint(len(train.x), (128,), device=train.x.device)
        return cross_entropy(model(moved(train.x[index], 2)), train.labels[index])

    model.train()
    descend(
        model,
        {1e-3: weights, gate_rate: gates, 2e-3: [model.targets]},
        lambda: loss() + layer.penalty(model),
        steps=steps - last,
    )
    before = model.units()
    model.match()
    for gate in gates:
        gate.eval().requires_grad_(False)
    if last:
        descend(model, {5e-4: weights}, loss, steps=last)
    with torch.no_grad():
        errors = {f"{name}_error": error(model.eval(), part) for name, part in parts.items()}
    return {"steps": steps, "units_before": before, "units": model.units(), **errors}


def select(train: Points, parts: dict[str, Points], *, epochs: int) -> dict[str, Any]:
    """Select 50 pixels from which a network predicts all pixels, and classify digits by these 50 with trees."""
    steps = epochs * len(train.x) // (6 * 256)
    selector = layer.Selector(784, 50, temperature=c.Annealing(10.0, 0.1, steps=steps))
    model = nn.Sequential(selector, nn.Linear(784, 320), nn.LeakyReLU(0.1), nn.Linear(320, 784)).to(train.x.device)
    pixels = train.x.flatten(1)

    def loss() -> Tensor:
        batch = pixels[torch.randint(len(pixels), (256,), device=train.x.device)]
        return (model(batch) - batch).square().mean() + layer.penalty(model)

    model.train()
    descend(model, {1e-3: list(model[1:]), 1e-2: [selector]}, loss, steps=steps)
    model.eval()
    index = selector.decide()
    trees = ExtraTreesClassifier(100, random_state=0, n_jobs=-1)
    trees.fit(pixels[:, index].cpu().numpy(), train.labels.cpu().numpy())
    numbers: dict[str, Any] = {"steps": steps, "distinct": len(set(index))}
    for name, points in parts.items():
        x = points.x.flatten(1)
        with torch.no_grad():
            numbers[f"{name}_mse"] = (model(x) - x).square().mean().item()
        score = trees.score(x[:, index].cpu().numpy(), points.labels.cpu().numpy())
        numbers[f"{name}_accuracy"] = float(score)
    return numbers


def descend(model: nn.Module, groups: dict[float, list[Any]], loss: Callable[[], Tensor], *, steps: int) -> None:
    """Minimise a loss by Adam with cosine schedules, with steps that are captured on a GPU."""
    device = next(model.parameters()).device
    rates = {rate: torch.tensor(rate, device=device) for rate in groups}
    parameters = [
        {"params": [parameter for part in parts for parameter in part.parameters()], "lr": rates[rate]}
        for rate, parts in groups.items()
    ]
    optimizer = torch.optim.Adam(parameters, capturable=device.type == "cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    take = Captured(step, torch.cuda.Stream(device) if device.type == "cuda" else None)
    for taken in range(0, steps, EVERY):
        for rate, tensor in rates.items():
            tensor.fill_(rate * max(lr_factor("cosine", taken, steps), 1e-3))
        for _ in range(EVERY):
            take()
        layer.advance(model, EVERY)


def moved(x: Tensor, most: int) -> Tensor:
    """Return images that are each moved by up to some pixels in both directions."""
    size = x.shape[-1]
    shift = torch.randint(2 * most + 1, (2, len(x), 1), device=x.device) + torch.arange(size, device=x.device)
    rows = torch.arange(len(x), device=x.device).view(-1, 1, 1)
    return pad(x, [most] * 4)[rows, 0, shift[0].unsqueeze(-1), shift[1].unsqueeze(1)].unsqueeze(1)


def error(model: nn.Module, points: Points) -> float:
    """Return the share of points that are misclassified."""
    parts = zip(points.x.split(VALID), points.labels.split(VALID), strict=True)
    wrong = [(model(x).argmax(-1) != labels).sum() for x, labels in parts]
    return torch.stack(wrong).sum().item() / len(points.x)


if __name__ == "__main__":
    typer.run(main)
