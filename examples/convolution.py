"""A model of one's own: convolutions before and after 8-way discrete codes, trained with two estimators.

The programs p and q are ordinary modules for batches of images. They do not depend on whether the codes are relaxed or
discrete, or on the number of samples: a draw of m samples turns a batch of B rows into one of m·B rows. Run it with
`python examples/convolution.py`.
"""

import torch
from torch import Tensor, nn

import concretely as c

SIDE, CODES, CATEGORIES = 8, 4, 8


def stripes(count: int, generator: torch.Generator) -> Tensor:
    """Draw pictures of 8 × 8 pixels with horizontal or vertical stripes; one pixel in fifty is flipped."""
    line = torch.rand(count, 1, SIDE, 1, generator=generator) < 0.4
    upright = torch.rand(count, 1, 1, 1, generator=generator) < 0.5
    picture = torch.where(upright, line, line.mT).expand(-1, -1, SIDE, SIDE)
    flip = torch.rand(picture.shape, generator=generator) < 0.02
    return (picture ^ flip).float()


class Generative(nn.Module):
    """Codes from learned logits, then a picture from the codes."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(CODES, CATEGORIES))
        self.decoder = nn.Sequential(
            nn.Linear(CODES * CATEGORIES, 32 * 4),
            nn.Tanh(),
            nn.Unflatten(1, (32, 2, 2)),
            nn.ConvTranspose2d(32, 32, 4, stride=2, padding=1),
            nn.Tanh(),
            nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1),
        )

    def forward(self, draw: c.Draw, x: Tensor | None = None) -> Tensor:
        code = draw("code", c.OneHotCategorical(logits=self.logits))
        return draw("x", c.Bernoulli(logits=self.decoder(code.flatten(1))), observed=x)


class Inference(nn.Module):
    """Codes from a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 4, stride=2, padding=1),
            nn.Tanh(),
            nn.Conv2d(32, 32, 4, stride=2, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(32 * 4, CODES * CATEGORIES),
            nn.Unflatten(1, (CODES, CATEGORIES)),
        )

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        draw("code", c.OneHotCategorical(logits=self.encoder(2 * x - 1)))


def train(model: c.Model, estimator: c.Estimator, *, samples: int, data: Tensor, steps: int) -> None:
    """Minimise the loss of an estimator; another estimator is another argument."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = data[torch.randint(len(data), (64,))]
        optimizer.zero_grad()
        model(batch, estimator=estimator, samples=samples).loss.backward()
        optimizer.step()


def main(steps: int = 600) -> None:
    torch.manual_seed(0)
    data, held_out = (stripes(size, torch.Generator().manual_seed(size)) for size in (2000, 100))
    rate = data.mean(0).clamp(1e-3, 1 - 1e-3)
    independent = -c.Bernoulli(probs=rate).log_prob(held_out).flatten(1).sum(-1).mean()
    print(f"independent pixels: {independent:.2f} nats a picture")
    for name, estimator in {"pathwise": c.Pathwise(), "vimco": c.VIMCO()}.items():
        model = c.Model(Generative(), Inference())
        train(model, estimator, samples=5, data=data, steps=steps)
        print(f"{name}: {c.evaluate(model, held_out, samples=200)}")
        print(f"{name}: pictures drawn from the model have shape {tuple(model.sample(3).shape)}")


if __name__ == "__main__":
    main()
