"""A VAE with convolutions and ten 8-way codes, trained on digits by `fit` with two estimators.

The programs p and q are ordinary modules for batches of pictures. They do not depend on whether the codes are relaxed
or discrete, or on the number of samples: a draw of m samples turns a batch of B rows into one of m·B rows. Run it with
`python examples/convolution.py`.
"""

import torch
from torch import Tensor, nn

import concretely as c

CODES, CATEGORIES = 10, 8


class Generative(nn.Module):
    """Codes from learned logits, then a picture from the codes."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(CODES, CATEGORIES))
        self.decoder = nn.Sequential(
            nn.Linear(CODES * CATEGORIES, 16 * 4),
            nn.ReLU(),
            nn.Unflatten(1, (16, 2, 2)),
            nn.ConvTranspose2d(16, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        )

    def forward(self, draw: c.Draw, x: Tensor | None = None) -> Tensor:
        code = draw("code", c.OneHotCategorical(logits=self.logits))
        return draw("x", c.Bernoulli(logits=self.decoder(code.flatten(1))), observed=x)


class Inference(nn.Module):
    """Codes from a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 4, CODES * CATEGORIES),
            nn.Unflatten(1, (CODES, CATEGORIES)),
        )

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        draw("code", c.OneHotCategorical(logits=self.encoder(2 * x - 1)))


def build() -> c.Model:
    return c.Model(Generative(), Inference())


def main(steps: int = 1200) -> dict[str, float]:
    torch.manual_seed(0)
    data = c.load_data("digits")
    train, valid, test = (part[:].float().view(-1, 1, 8, 8) for part in (data.train, data.valid, data.test))
    rate = train.mean(0).clamp(1e-3, 1 - 1e-3)
    found = {"independent pixels": -c.Bernoulli(probs=rate).log_prob(test).flatten(1).sum(-1).mean().item()}
    warm_up = c.Warmup(max(1, steps // 3))
    for name, estimator, samples in (("RLOO", c.RLOO(), 4), ("Pathwise", c.Pathwise(), 1)):
        how = {"estimator": estimator, "samples": samples, "beta": warm_up, "valid": valid, "every": 250}
        run = c.fit(build, train, steps=steps, lr=3e-3, **how)
        found[name] = c.evaluate(run.model, test, samples=100).nll
    for name, nll in found.items():
        print(f"{name}: {nll:.2f} nats a picture")
    return found


if __name__ == "__main__":
    main()
