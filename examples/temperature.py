"""A learned temperature: an estimator of one's own whose temperature is a parameter, trained by `fit` with the model.

The objective is a bound on the likelihood of the relaxed model, whose prior has the temperature 1/2. The temperature of
the posterior is a parameter of that bound like any other. Run it with `python examples/temperature.py`.
"""

from typing import Any

import torch
from torch import nn

import concretely as c


class LearnedTemperature(nn.Module):
    """Pathwise gradients at a temperature that is learned."""

    def __init__(self, start: float = 2.0) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(start).log())

    def forward(self, target: Any, *inputs: Any, **how: Any) -> c.Estimate:
        return c.Pathwise(self.log_temperature.exp(), prior_temperature=1 / 2)(target, *inputs, **how)


def build() -> c.Model:
    return c.density("16H~64V")


def main(steps: int = 3000) -> dict[str, float]:
    data, learned = c.load_data("digits"), LearnedTemperature()
    found = {}
    for name, estimator in {"fixed at 2": c.Pathwise(2.0, prior_temperature=1 / 2), "learned": learned}.items():
        run = c.fit(build, data, estimator=estimator, steps=steps, lr=3e-3, valid=data.valid, every=250)
        found[f"{name}, NLL"] = c.evaluate(run.model, data.test, samples=200).nll
    found["learned temperature"] = learned.log_temperature.exp().item()
    for name, value in found.items():
        print(f"{name}: {value:.2f}")
    return found


if __name__ == "__main__":
    main()
