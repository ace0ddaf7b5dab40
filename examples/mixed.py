"""Normal and discrete latents in one model: a kind (10-way) and a style (eight Normal units) of each digit.

`c.RLOO` differentiates the discrete draw by its score and the Normal draw by its path. Run it with
`python examples/mixed.py`.
"""

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F

import concretely as c

KINDS, STYLES, PIXELS = 10, 8, 64


class Generative(nn.Module):
    """A kind, a style that depends on the kind, and a picture of both."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(KINDS))
        self.style = nn.Linear(KINDS, STYLES)
        self.decoder = nn.Sequential(nn.Linear(KINDS + STYLES, 100), nn.Tanh(), nn.Linear(100, PIXELS))

    def forward(self, draw: c.Draw, x: Tensor | None = None) -> Tensor:
        kind = draw("kind", c.OneHotCategorical(logits=self.logits))
        mean = self.style(kind)
        style = draw("style", Normal(mean, torch.ones_like(mean)))
        return draw("x", c.Bernoulli(logits=self.decoder(torch.cat([kind, style], -1))), observed=x)


class Inference(nn.Module):
    """A kind and a style from a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(PIXELS, 100), nn.Tanh())
        self.kind = nn.Linear(100, KINDS)
        self.style = nn.Linear(100 + KINDS, 2 * STYLES)

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        features = self.features(2 * x - 1)
        kind = draw("kind", c.OneHotCategorical(logits=self.kind(features)))
        mean, raw = self.style(torch.cat([c.tile(features, kind), kind], -1)).chunk(2, -1)
        draw("style", Normal(mean, F.softplus(raw) + 1e-3))


def build() -> c.Model:
    return c.Model(Generative(), Inference())


def main(steps: int = 3000) -> dict[str, float]:
    torch.manual_seed(0)
    data = c.load_data("digits")
    train, valid, test = (part[:].float() for part in (data.train, data.valid, data.test))
    rate = train.mean(0).clamp(1e-3, 1 - 1e-3)
    run = c.fit(build, train, estimator=c.RLOO(), samples=4, steps=steps, lr=2e-3, valid=valid, every=250)
    found = {
        "independent pixels": -c.Bernoulli(probs=rate).log_prob(test).sum(-1).mean().item(),
        "kind and style": c.evaluate(run.model, test, samples=500).nll,
    }
    for name, nll in found.items():
        print(f"{name}: {nll:.2f} nats a picture")
    kl = {name: value for name, value in run.rows[-1].metrics.items() if name.startswith("kl/")}
    print(", ".join(f"{name} {value:.2f}" for name, value in kl.items()))
    return found


if __name__ == "__main__":
    main()
