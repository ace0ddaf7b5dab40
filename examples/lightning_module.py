"""A LightningModule around a model of this library: `training_step` returns the loss of an estimate.

It needs `pip install lightning`. Run it with `python examples/lightning_module.py`.
"""

from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import concretely as c


class DigitModel(lightning.LightningModule):
    """A model of digits with 20 bits, trained by VIMCO."""

    def __init__(self, samples: int = 5) -> None:
        super().__init__()
        self.model, self.estimator, self.samples = c.density("20H~64V"), c.VIMCO(), samples

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        estimate = self.model(*batch, estimator=self.estimator, samples=self.samples)
        self.log_dict({f"kl/{name}": kl.mean() for name, kl in estimate.kl.items()})
        return estimate.loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(steps: int = 2000) -> dict[str, float]:
    lightning.seed_everything(0)
    data = c.load_data("digits")
    loader = DataLoader(TensorDataset(data.train[:]), batch_size=64, shuffle=True)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    module = DigitModel()
    lightning.Trainer(max_steps=steps, accelerator="cpu", **quiet).fit(module, loader)
    found = {"NLL": c.evaluate(module.model, data.test, samples=100).nll}
    print(f"{found['NLL']:.2f} nats a picture")
    return found


if __name__ == "__main__":
    main()
