"""Eleven programs that users write, each in a few lines of ordinary PyTorch."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F  # noqa: N812 (as users write it)
from torch.utils.data import DataLoader, TensorDataset

import concretely as c

BATCH = 6
SAMPLES = pytest.mark.parametrize("samples", [1, 2, BATCH])


def trained(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether every parameter has a finite gradient that is not zero everywhere."""
    gradients = [parameter.grad for parameter in parameters]
    return all(each is not None and each.isfinite().all() and each.abs().max() > 0 for each in gradients)


def convolutional_autoencoder() -> c.Model:
    """Three codes of four states between convolutions and batch norm."""
    norm, codes = nn.BatchNorm2d(8), nn.Parameter(torch.zeros(3, 4))
    encoder = nn.Sequential(nn.Conv2d(1, 8, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 12), nn.Unflatten(1, (3, 4)))
    decoder = nn.Sequential(
        nn.Linear(12, 32), nn.Unflatten(1, (8, 2, 2)), norm, nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2)
    )

    def p(draw: c.Draw, x: Tensor | None = None) -> Tensor:
        code = draw("code", c.OneHotCategorical(logits=codes))
        return draw("x", c.Bernoulli(logits=decoder(code.flatten(1))), observed=x)

    return c.Model(p, lambda draw, x: draw("code", c.OneHotCategorical(logits=encoder(x))))


@SAMPLES
@pytest.mark.parametrize("estimator", [c.Pathwise(0.5), c.Reinforce(), c.StraightThrough()])
def test_a_convolutional_categorical_autoencoder(estimator: c.Estimator, samples: int) -> None:
    model, x = convolutional_autoencoder(), torch.randint(2, (BATCH, 1, 4, 4)).float()
    estimate = model(x, estimator=estimator, samples=samples)
    estimate.loss.backward()
    assert trained([model.p.codes, model.q.encoder[0].weight, model.p.decoder[-1].weight])
    assert model.p.decoder[2].num_batches_tracked == 1
    assert estimate.trace["code"].value.shape == (samples, BATCH, 3, 4)
    assert (estimate.kl["code"] >= 0).all()
    assert estimate.kl["code"].shape == estimate.log_likelihood["x"].shape == (BATCH,)
    assert model.sample(3).shape == (3, 1, 4, 4)
    assert math.isfinite(c.evaluate(model, x, samples=5).nll)


@SAMPLES
@pytest.mark.parametrize("estimator", [c.StraightThroughGumbelSoftmax(1.0), c.Reinforce()])
def test_a_gate_in_a_mixture_of_experts(estimator: c.Estimator, samples: int) -> None:
    gate, experts = nn.Linear(5, 3), nn.ModuleList(nn.Linear(5, 4) for _ in range(3))

    def program(draw: c.Draw, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        choice = draw("expert", c.OneHotCategorical(logits=gate(x)))
        outputs = c.tile(torch.stack([expert(x) for expert in experts], 1), choice)
        logits = (choice.unsqueeze(-1) * outputs).sum(1)
        return F.cross_entropy(logits, c.tile(y, choice), reduction="none"), {"logits": logits}

    x, y = torch.randn(BATCH, 5), torch.randint(4, (BATCH,))
    estimate = c.estimate(program, x, y, estimator=estimator, samples=samples)
    estimate.loss.backward()
    assert trained(gate.parameters())
    assert estimate.output[1]["logits"].shape == (samples * BATCH, 4)


@pytest.mark.parametrize("estimator", [c.Pathwise(2 / 3), c.Reinforce()])
def test_gates_on_pixels_that_all_data_points_share(estimator: c.Estimator) -> None:
    logits, network = nn.Parameter(torch.zeros(1, 9)), nn.Linear(9, 2)

    def program(draw: c.Draw, x: Tensor, y: Tensor) -> Tensor:
        gate = draw("gate", c.Bernoulli(logits=logits))
        return F.cross_entropy(network(gate * x), y, reduction="none") + 0.1 * torch.sigmoid(logits).sum()

    x, y = torch.randn(BATCH, 9), torch.randint(2, (BATCH,))
    estimate = c.estimate(program, x, y, estimator=estimator)
    estimate.loss.backward()
    assert trained([logits])
    assert estimate.trace["gate"].value.shape == (1, 9)
    with pytest.raises(ValueError, match=r"^the batch shape of node 'gate' must begin with \(6,\).* torch.vmap"):
        c.estimate(program, x, y, estimator=estimator, samples=2)
    losses = torch.vmap(lambda _: c.estimate(program, x, y, estimator=estimator).loss, randomness="different")
    assert len(losses(torch.zeros(8)).unique()) > 1


@SAMPLES
@pytest.mark.parametrize("estimator", [c.Pathwise(1.0), c.Reinforce()])
def test_a_recurrent_network_with_a_draw_at_each_step(estimator: c.Estimator, samples: int) -> None:
    cell, head, out = nn.GRUCell(4, 7), nn.Linear(7, 4), nn.Linear(7, 1)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 7)
        for step in range(3):
            symbol = draw(f"symbol{step}", c.OneHotCategorical(logits=head(state)))
            state = cell(symbol, c.tile(state, symbol))
        return (out(state).squeeze(1) - c.tile(x, state).sum(1)).square()

    estimate = c.estimate(program, torch.randn(BATCH, 2), estimator=estimator, samples=samples)
    estimate.loss.backward()
    assert trained(head.parameters())
    assert estimate.trace.parents["symbol2"] == ("symbol0", "symbol1")
    assert estimate.trace["symbol2"].log_prob.shape == (samples, BATCH)


def test_a_black_box_cost_in_numpy() -> None:
    encoder, calls = nn.Linear(3, 5), []

    def simulator(choice: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        calls.append(choice.shape)
        return (choice.argmax(-1) - 2.0) ** 2

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        choice = draw("choice", c.OneHotCategorical(logits=encoder(x)))
        return torch.from_numpy(simulator(choice.detach().numpy()))

    x = torch.randn(4, 3)
    c.estimate(program, x, estimator=c.RLOO(), samples=4).loss.backward()
    assert calls == [(16, 5)]
    assert trained(encoder.parameters())
    for estimator in (c.Pathwise(0.5), c.StraightThrough()):
        with pytest.raises(ValueError, match=r"^a cost must have a gradient with respect to the draws .* such as RLOO"):
            c.estimate(program, x, estimator=estimator)


def test_annealing_by_hand() -> None:
    logits, temperature = nn.Parameter(torch.zeros(4)), c.Annealing(1.0, 0.1, steps=10)

    def program(draw: c.Draw) -> Tensor:
        return (draw("bit", c.Bernoulli(logits=logits)) - 0.3).square().sum(-1)

    for step in range(10):
        c.estimate(program, estimator=c.Pathwise(temperature(step)), samples=3).loss.backward()
    assert trained([logits])


@SAMPLES
def test_two_batch_dimensions(samples: int) -> None:
    network = nn.Linear(3, 2)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        bits = draw("bits", c.Bernoulli(logits=network(x)))
        return (bits.sum(-1) - c.tile(x, bits).sum(-1)).square()

    x = torch.randn(BATCH, 4, 3)
    estimate = c.estimate(program, x, estimator=c.Reinforce(), samples=samples, batch_dims=2)
    estimate.loss.backward()
    assert trained(network.parameters())
    assert estimate.log_w.shape == (samples, BATCH, 4)
    assert estimate.trace["bits"].value.shape == (samples, BATCH, 4, 2)


@SAMPLES
@pytest.mark.parametrize("estimator", [c.Pathwise(0.5), c.Reinforce(), c.Pathwise(0.5, kl="analytic")])
def test_normal_and_discrete_latents_together(estimator: c.Estimator, samples: int) -> None:
    encoder, decoder, prior = nn.Linear(5, 2 + 2 + 3), nn.Linear(2 + 3, 5), nn.Linear(3, 2)

    def p(draw: c.Draw, x: Tensor | None = None) -> Tensor:
        kind = draw("kind", c.OneHotCategorical(logits=torch.zeros(3)))
        style = draw("style", Normal(prior(kind), 1.0))
        return draw("x", Normal(decoder(torch.cat([style, kind], 1)), 1.0), observed=x)

    def q(draw: c.Draw, x: Tensor) -> None:
        mean, log_scale, logits = encoder(x).split([2, 2, 3], 1)
        draw("style", Normal(mean, log_scale.exp()))
        draw("kind", c.OneHotCategorical(logits=logits))

    model, x = c.Model(p, q), torch.randn(BATCH, 5)
    estimate = c.estimate(model, x, estimator=estimator, samples=samples)
    estimate.loss.backward()
    assert trained(model.parameters())
    assert {name: kl.shape for name, kl in estimate.kl.items()} == {"style": (BATCH,), "kind": (BATCH,)}
    assert model.sample(4).shape == (4, 5)
    repeated = [model(x, estimator=estimator, generator=torch.Generator().manual_seed(1)).loss for _ in range(2)]
    assert torch.equal(*repeated)


def test_a_learned_temperature() -> None:
    log_temperature, network = nn.Parameter(torch.zeros(())), nn.Linear(3, 4)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return (draw("bits", c.Bernoulli(logits=network(x))) - 0.2).square().sum(-1)

    for temperature in (log_temperature.exp(), {"bits": log_temperature.exp()}):
        log_temperature.grad = None
        c.estimate(program, torch.randn(BATCH, 3), estimator=c.Pathwise(temperature), samples=2).loss.backward()
        assert trained([log_temperature, *network.parameters()])


def test_a_model_of_functions_is_saved_and_loaded(tmp_path: Path) -> None:
    def build() -> c.Model:
        encoder, decoder, logits = nn.Linear(6, 2), nn.Linear(2, 6), nn.Parameter(torch.randn(2))

        def p(draw: c.Draw, x: Tensor | None = None) -> Tensor:
            z = draw("z", c.Bernoulli(logits=logits))
            return draw("x", c.Bernoulli(logits=decoder(z)), observed=x)

        return c.Model(p, lambda draw, x: draw("z", c.Bernoulli(logits=encoder(x))))

    model, other = build(), build()
    names = ["p.decoder.bias", "p.decoder.weight", "p.logits", "q.encoder.bias", "q.encoder.weight"]
    assert sorted(model.state_dict()) == names
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    x = torch.randint(2, (BATCH, 6)).float()
    assert torch.equal(c.exact_log_likelihood(other, x), c.exact_log_likelihood(model, x))


class Module(nn.Module):
    """A training step as in Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.model = convolutional_autoencoder()

    def training_step(self, batch: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch, and what to log."""
        estimate = self.model(batch[0], estimator=c.Pathwise(2 / 3), samples=2)
        kl = {f"kl/{name}": kl.mean().item() for name, kl in estimate.kl.items()}
        return estimate.loss, {"bound": estimate.bound.mean().item(), **kl}


def test_a_data_loader_in_a_loop() -> None:
    module = Module()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    before = [parameter.clone() for parameter in module.parameters()]
    loader = DataLoader(TensorDataset(torch.randint(2, (20, 1, 4, 4)).float()), batch_size=8)  # the last one is smaller
    for batch in loader:
        optimizer.zero_grad()
        loss, logs = module.training_step(batch)
        loss.backward()
        optimizer.step()
        assert logs.keys() == {"bound", "kl/code"}
    assert not any(torch.equal(*pair) for pair in zip(before, module.parameters(), strict=True))
