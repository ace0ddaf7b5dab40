"""Prune LeNet-5 by gates, and select 50 pixels of digits, on grey MNIST with labels and one GPU.

Run it with `python -m benchmarks.lenet --data FILE`, where FILE is a `.npz` file with the arrays `train`,
`train_labels`, `test` and `test_labels`, pixels from 0 to 255, such as those of `torchvision.datasets.MNIST`. The last
5,000 points of the shuffled training set are the validation set. The settings of pruning come from a few earlier runs,
whose validation and test errors were both seen; those of the selection were not tuned.
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
) -> None:
    """Train the tasks and write the record."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    parts, results = load(data, device), []
    for name, task in (("prune", prune), ("select", select)):
        for seed in range(seeds if only in ("", name) else 0):
            torch.manual_seed(seed)
            start = time.perf_counter()
            found = task(*parts, epochs=epochs)
            results.append({"task": name, "seed": seed, **found, "seconds": round(time.perf_counter() - start, 1)})
            print(results[-1], flush=True)
            recipe = {"benchmark": "lenet", "epochs": epochs, "matmul_precision": "high"}
            record.write(out, recipe, seed=0, results=results, on=str(device))


def load(path: Path, device: torch.device) -> tuple[Points, Points, Points]:
    """Return the points to train, to validate and to test with."""
    with np.load(path) as file:
        order = np.random.RandomState(0).permutation(len(file["train"]))
        arrays = file["train"][order], file["train_labels"][order], file["test"], file["test_labels"]
    x, labels, test, others = (torch.as_tensor(each, device=device) for each in arrays)
    images = (each.view(-1, 1, 28, 28).float() / 255 for each in (x[:-VALID], x[-VALID:], test))
    return tuple(map(Points, images, (labels[:-VALID].long(), labels[-VALID:].long(), others.long())))  # type: ignore[return-value]


def prune(train: Points, valid: Points, test: Points, *, epochs: int) -> dict[str, Any]:
    """Prune LeNet-5 to fewer units than 20-25-45-462, trained on images that are moved by up to two pixels."""
    steps = epochs * len(train.x) // 128
    model = LeNet((24, 43, 440), warm_up=steps * 2 // 5).to(train.x.device)
    gates = [each for each in model.modules() if isinstance(each, layer.Gate)]
    groups = {
        1e-3: [model.first, model.second, model.hidden, model.last],
        1e-2: gates,
        2e-3: [model.targets],
    }

    def loss() -> Tensor:
        index = torch.randint(len(train.x), (128,), device=train.x.device)
        return cross_entropy(model(moved(train.x[index], 2)), train.labels[index]) + layer.penalty(model)

    descend(model, groups, loss, steps=steps)
    with torch.no_grad():
        errors = {name: error(model.eval(), each) for name, each in (("valid_error", valid), ("test_error", test))}
    return {"steps": steps, "units": model.units(), **errors}


def select(train: Points, valid: Points, test: Points, *, epochs: int) -> dict[str, Any]:
    """Select 50 pixels from which a network predicts all pixels, and classify digits by these 50 with trees."""
    steps = epochs * len(train.x) // (6 * 256)
    selector = layer.Selector(784, 50, temperature=c.Annealing(10.0, 0.1, steps=steps))
    model = nn.Sequential(selector, nn.Linear(784, 320), nn.LeakyReLU(0.1), nn.Linear(320, 784)).to(train.x.device)
    pixels = [each.x.flatten(1) for each in (train, valid, test)]

    def loss() -> Tensor:
        batch = pixels[0][torch.randint(len(pixels[0]), (256,), device=train.x.device)]
        return (model(batch) - batch).square().mean() + layer.penalty(model)

    descend(model, {1e-3: list(model[1:]), 1e-2: [selector]}, loss, steps=steps)
    model.eval()
    index = selector.decide()
    with torch.no_grad():
        mse = (model(pixels[2]) - pixels[2]).square().mean().item()
    shown = [each[:, index].cpu().numpy() for each in pixels]
    trees = ExtraTreesClassifier(100, random_state=0, n_jobs=-1).fit(shown[0], train.labels.cpu().numpy())
    scores = (trees.score(x, points.labels.cpu().numpy()) for x, points in zip(shown[1:], (valid, test), strict=True))
    valid_accuracy, test_accuracy = scores
    distinct = len(set(index))
    return {
        "steps": steps,
        "distinct": distinct,
        "test_mse": mse,
        "valid_accuracy": float(valid_accuracy),
        "test_accuracy": float(test_accuracy),
    }


def descend(model: nn.Module, groups: dict[float, list[Any]], loss: Callable[[], Tensor], *, steps: int) -> None:
    """Minimise a loss by Adam with cosine schedules, with steps that are captured on a GPU."""
    device = next(model.parameters()).device
    rates = {rate: torch.tensor(rate, device=device) for rate in groups}
    parameters = [
        {"params": [each for part in parts for each in part.parameters()], "lr": rates[rate]}
        for rate, parts in groups.items()
    ]
    optimizer = torch.optim.Adam(parameters, capturable=device.type == "cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    take = Captured(step, torch.cuda.Stream(device) if device.type == "cuda" else None)
    model.train()
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
