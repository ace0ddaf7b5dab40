"""A module for the `Trainer` of Hugging Face: its forward pass takes a batch by name and returns the loss.

It needs `pip install 'transformers[torch]'`. Run it with `python examples/hugging_face.py`.
"""

from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import concretely as c

WIDTH, CHOICES, CLASSES = 16, 8, 4


class RoutedClassifier(nn.Module):
    """A classifier that sends each row through one of several experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, CHOICES)
        self.experts = nn.Parameter(torch.randn(CHOICES, WIDTH, CLASSES) / WIDTH**0.5)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits of the classes, as `Trainer` expects."""
        logits = self.router(x)
        one_hot = F.one_hot(logits.argmax(-1), CHOICES).to(x.dtype)
        choice = c.straight_through(logits, "reinmax") if self.training else one_hot
        classes = torch.einsum("bk,bi,kij->bj", choice, x, self.experts)
        return F.cross_entropy(classes, labels), classes


class Rows(Dataset[dict[str, Tensor]]):
    """Rows whose label depends on the signs of two entries and on the largest of four others."""

    def __init__(self, size: int, seed: int) -> None:
        self.x = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(seed))
        shift = 2 * (self.x[:, 0] > 0).long() + (self.x[:, 1] > 0).long()
        self.labels = (self.x[:, 2:6].argmax(-1) + shift) % CLASSES

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"x": self.x[place], "labels": self.labels[place]}


def main(steps: int = 2000) -> dict[str, float]:
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(0)
    model, test = RoutedClassifier(), Rows(2000, seed=1)
    with TemporaryDirectory() as folder:
        how = {"max_steps": steps, "per_device_train_batch_size": 64, "learning_rate": 1e-2}
        quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
        Trainer(model, TrainingArguments(folder, **how, **quiet), train_dataset=Rows(20_000, seed=0)).train()
    with torch.no_grad():
        _, classes = model.eval()(test.x, test.labels)
    found = {"accuracy": (classes.argmax(-1) == test.labels).double().mean().item()}
    print(f"accuracy {found['accuracy']:.3f}")
    return found


if __name__ == "__main__":
    main()
