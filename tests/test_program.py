"""Programs that users write, each in a few lines of ordinary PyTorch."""

import copy
import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal, Poisson
from torch.nn import functional as F  # noqa: N812 (as users write it)
from torch.utils.data import DataLoader, TensorDataset

import concretely as c

BATCH = 6
SAMPLES = pytest.mark.parametrize("samples", [1, 2, BATCH])


def trained(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether every parameter has a finite gradient, and some of it is not zero."""
    gradients = [parameter.grad for parameter in parameters]
    return all(each is not None and each.isfinite().all() and each.abs().max() > 0 for each in gradients)


class Decoder(nn.Module):
    """Ordinary layers that want exactly one batch axis, with batch norm among them."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(3, 4))
        self.network = nn.Sequential(
            nn.Linear(12, 32), nn.Unflatten(1, (8, 2, 2)), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2)
        )

    def forward(self, draw: c.Draw, x: Tensor | None = None) -> Tensor:
        """Codes, then a picture."""
        code = draw("code", c.OneHotCategorical(logits=self.logits))
        return draw("x", c.Bernoulli(logits=self.network(code.flatten(1))), observed=x)


class Encoder(nn.Module):
    """Codes of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 8, 2, 2),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32, 12),
            nn.Unflatten(1, (3, 4)),
        )

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        """Draw the codes."""
        draw("code", c.OneHotCategorical(logits=self.network(x)))


@SAMPLES
@pytest.mark.parametrize("estimator", [c.Pathwise(0.5), c.Reinforce(), c.StraightThrough()])
def test_convolutional_autoencoder_with_batch_norm(estimator: c.Estimator, samples: int) -> None:
    model, x = c.Model(Decoder(), Encoder()), torch.randint(2, (BATCH, 1, 4, 4)).float()
    estimate = c.estimate(model, x, estimator=estimator, samples=samples)
    estimate.loss.backward()
    assert trained([model.p.logits, model.p.network[-1].weight, model.q.network[0].weight])
    assert model.p.network[2].num_batches_tracked == 1
    assert estimate.trace["code"].value.shape == (samples, BATCH, 3, 4)
    assert estimate.kl["code"].shape == estimate.log_likelihood["x"].shape == (BATCH,)
    assert (estimate.kl["code"] >= 0).all()
    assert model.sample(3).shape == (3, 1, 4, 4)
    assert math.isfinite(c.evaluate(model, x, samples=5).nll)


@SAMPLES
@pytest.mark.parametrize("estimator", [c.StraightThroughGumbelSoftmax(1.0), c.Reinforce()])
def test_gate_in_a_mixture_of_experts(estimator: c.Estimator, samples: int) -> None:
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


def test_gates_on_pixels_that_all_data_share() -> None:
    logits, network = nn.Parameter(torch.zeros(9)), nn.Linear(9, 2)

    def program(draw: c.Draw, x: Tensor, y: Tensor) -> Tensor:
        gate = draw("gate", c.Bernoulli(logits=logits))
        cost = F.cross_entropy(network(gate * x), y, reduction="none")
        return cost + 0.1 * torch.sigmoid(logits).sum()

    x, y = torch.randn(BATCH, 9), torch.randint(2, (BATCH,))
    for estimator in (c.Pathwise(2 / 3), c.Reinforce()):
        logits.grad = None
        estimate = c.estimate(program, x, y, estimator=estimator)
        estimate.loss.backward()
        assert estimate.trace["gate"].value.shape == (9,)
        assert estimate.trace["gate"].log_prob.shape == (1, BATCH)
        assert trained([logits])
    with pytest.raises(ValueError, match=r"^the batch shape of node 'gate' must begin with \(6,\).* torch.vmap"):
        c.estimate(program, x, y, estimator=c.RLOO(), samples=2)

    def loss(_: Tensor) -> Tensor:
        return c.estimate(program, x, y, estimator=c.Reinforce()).loss

    assert len(torch.vmap(loss, randomness="different")(torch.zeros(8)).unique()) > 1


def test_the_gradient_of_a_shared_gate_is_that_of_all_states() -> None:
    logits = nn.Parameter(torch.tensor([0.3, -0.7], dtype=torch.float64))
    x = torch.randn(3, 2, dtype=torch.float64)

    def cost(gate: Tensor) -> Tensor:
        return (gate * x).sum(-1).square()

    states = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    law = c.Bernoulli(logits=logits)
    log_probs = torch.stack([law.log_prob(state).sum() for state in states])
    exact = (log_probs.exp() * torch.stack([cost(state).mean() for state in states])).sum()
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    found = torch.zeros_like(expected)
    for state, log_prob in zip(states, log_probs.detach(), strict=True):

        def program(draw: c.Draw, x: Tensor) -> Tensor:
            return cost(draw("gate", c.Bernoulli(logits=logits)))

        trace = c.run(program, x, mode=c.mode.Replay({"gate": state}))
        assert trace["gate"].log_prob.shape == (3,)
        surrogate = (trace.output.detach() * trace["gate"].log_prob).mean()
        found += log_prob.exp() * torch.autograd.grad(surrogate, logits)[0]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@SAMPLES
def test_recurrent_network_with_a_draw_at_each_step(samples: int) -> None:
    cell, head, out = nn.GRUCell(4, 7), nn.Linear(7, 4), nn.Linear(7, 1)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 7)
        for step in range(3):
            symbol = draw(f"symbol{step}", c.OneHotCategorical(logits=head(state)))
            state = cell(symbol, c.tile(state, symbol))
        return (out(state).squeeze(1) - c.tile(x, state).sum(1)).square()

    x = torch.randn(BATCH, 2)
    for estimator in (c.Pathwise(1.0), c.VIMCO() if samples > 1 else c.Reinforce()):
        objective = c.bound if isinstance(estimator, c.VIMCO) else None
        estimate = c.estimate(program, x, estimator=estimator, samples=samples, objective=objective)
        estimate.loss.backward()
        assert estimate.trace["symbol2"].log_prob.shape == (samples, BATCH)
    assert trained(head.parameters())


def test_black_box_cost_in_numpy_is_called_once() -> None:
    encoder, calls = nn.Linear(3, 5), []

    def simulator(choice: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        calls.append(choice.shape)
        return (choice.argmax(-1) - 2.0) ** 2

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        choice = draw("choice", c.OneHotCategorical(logits=encoder(x)))
        return torch.from_numpy(simulator(choice.detach().numpy())).float()

    x = torch.randn(4, 3)
    c.estimate(program, x, estimator=c.RLOO(), samples=4).loss.backward()
    assert calls == [(16, 5)]
    assert trained(encoder.parameters())
    with pytest.raises(ValueError, match=r"^a cost must have a gradient with respect to the draws .* such as RLOO"):
        c.estimate(program, x, estimator=c.Pathwise(0.5))


def test_annealing_by_hand() -> None:
    logits = nn.Parameter(torch.zeros(4))
    falling = c.Annealing(1.0, 0.1, steps=10)

    def program(draw: c.Draw) -> Tensor:
        return (draw("bit", c.Bernoulli(logits=logits)) - 0.3).square().sum(-1)

    for step in range(10):
        estimate = c.estimate(program, estimator=c.Pathwise(falling(step)), samples=3)
        estimate.loss.backward()
        assert estimate.log_w.shape == (3,)
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
    assert estimate.log_w.shape == (samples, BATCH, 4)
    assert estimate.trace["bits"].value.shape == (samples, BATCH, 4, 2)
    assert trained(network.parameters())


@SAMPLES
@pytest.mark.parametrize("estimator", [c.Pathwise(0.5), c.Reinforce(), c.Pathwise(0.5, kl="analytic")])
def test_normal_and_discrete_latents_together(estimator: c.Estimator, samples: int) -> None:
    encoder, decoder = nn.Linear(5, 4 + 3), nn.Linear(2 + 3, 5)
    prior = nn.Linear(3, 2)

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
    repeated = [c.estimate(model, x, estimator=estimator, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(repeated[0].loss, repeated[1].loss)


def test_learned_temperature() -> None:
    log_temperature, network = nn.Parameter(torch.zeros(())), nn.Linear(3, 4)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return (draw("bits", c.Bernoulli(logits=network(x))) - 0.2).square().sum(-1)

    estimator = c.Pathwise(temperature=log_temperature.exp())
    c.estimate(program, torch.randn(BATCH, 3), estimator=estimator, samples=2).loss.backward()
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
    torch.testing.assert_close(c.exact_log_likelihood(other, x), c.exact_log_likelihood(model, x))


def test_a_model_refuses_a_tensor_that_it_cannot_train() -> None:
    logits = torch.zeros(2, requires_grad=True)
    with pytest.raises(TypeError, match=r"^p must use parameters that a model can find, got the tensor 'logits'"):
        c.Model(lambda draw: draw("z", c.Bernoulli(logits=logits)))


class Module(nn.Module):
    """A training step as in Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.model = c.Model(Decoder(), Encoder())

    def training_step(self, batch: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch, and what to log."""
        estimate = self.model(batch[0], estimator=c.Pathwise(2 / 3), samples=2)
        kl = {f"kl/{name}": kl.mean().item() for name, kl in estimate.kl.items()}
        return estimate.loss, {"bound": estimate.bound.mean().item(), **kl}


def test_a_data_loader_in_a_loop() -> None:
    torch.manual_seed(0)
    module = Module()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(torch.randint(2, (20, 1, 4, 4)).float()), batch_size=8)  # the last one is smaller
    for batch in loader:
        optimizer.zero_grad()
        loss, logs = module.training_step(batch)
        loss.backward()
        optimizer.step()
        assert logs.keys() == {"bound", "kl/code"}
    assert trained([module.model.p.logits, module.model.q.network[0].weight])


def test_inputs_may_be_dictionaries() -> None:
    network = nn.Linear(3, 4)

    def program(draw: c.Draw, batch: dict[str, Tensor]) -> Tensor:
        bits = draw("bits", c.Bernoulli(logits=network(batch["x"])))
        return (bits.sum(-1) - c.tile(batch["y"], bits)).square()

    batch = {"x": torch.randn(BATCH, 3), "y": torch.randn(BATCH)}
    assert c.estimate(program, batch, estimator=c.RLOO(), samples=3).log_w.shape == (3, BATCH)


@pytest.mark.parametrize(
    "node",
    [
        lambda x: torch.distributions.Bernoulli(logits=x),
        lambda x: Categorical(logits=x),
        lambda x: torch.distributions.OneHotCategorical(logits=x),
        lambda x: Poisson(x.exp()),
        lambda x: Independent(torch.distributions.Bernoulli(logits=x), 1),
    ],
)
@pytest.mark.parametrize("estimator", [c.Reinforce(), c.RLOO()])
def test_distributions_of_torch_are_nodes_of_score_function_estimators(estimator: c.Estimator, node: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(BATCH, 3, requires_grad=True)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        value = draw("z", node(x)).float()
        return (value.reshape(len(value), -1) - 0.3).square().sum(-1)

    estimate = c.estimate(program, x, estimator=estimator, samples=9)
    estimate.loss.backward()
    assert estimate.signal["z"].shape == (9, BATCH)
    assert trained([x])
    seeds = [c.run(program, x, mode=c.mode.Discrete(), generator=torch.Generator().manual_seed(7)).output for _ in "ab"]
    assert torch.equal(*seeds)


def test_attention_over_draws() -> None:
    attention, head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 4)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        words = draw("words", c.OneHotCategorical(logits=head(x)))
        found, _ = attention(words, words, words)
        return (found - c.tile(x, words)).square().sum((1, 2))

    c.estimate(program, torch.randn(BATCH, 5, 4), estimator=c.Pathwise(0.5), samples=3).loss.backward()
    assert trained(head.parameters())


def test_an_input_that_meets_a_draw_without_tile_is_explained() -> None:
    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return (draw("z", c.Bernoulli(logits=x)) - x).sum(-1)

    with pytest.raises(ValueError, match=r"^a tensor with 6 rows, .* met one with 18 rows, .* concretely.tile\(x, z\)"):
        c.estimate(program, torch.randn(BATCH, 3), estimator=c.RLOO(), samples=3)

    def classify(draw: c.Draw, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(draw("z", c.Bernoulli(logits=x)), y, reduction="none")

    with pytest.raises(ValueError, match=r"concretely\.tile"):
        c.estimate(classify, torch.randn(BATCH, 3), torch.zeros(BATCH).long(), estimator=c.RLOO(), samples=3)


def test_a_cost_that_was_averaged_over_samples_is_refused() -> None:
    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return draw("z", c.Bernoulli(logits=x)).sum(-1).view(3, BATCH).mean(0)

    with pytest.raises(ValueError, match=r"^a program must return a cost of shape \(18,\), .* got shape \(6,\)"):
        c.estimate(program, torch.randn(BATCH, 3), estimator=c.RLOO(), samples=3)


def test_a_model_that_needs_its_data_says_so_when_it_is_sampled() -> None:
    def p(draw: c.Draw, x: Tensor) -> Tensor:
        return draw("x", c.Bernoulli(logits=draw("z", c.Bernoulli(logits=torch.zeros(2)))), observed=x)

    with pytest.raises(TypeError, match=r"^p must have a default, such as None, for inputs that are not the context"):
        c.Model(p).sample(3)


def test_data_sets_of_the_library_are_evaluated() -> None:
    data = c.load_data("digits")
    assert math.isfinite(c.evaluate(c.density("4H-64V"), data.test, samples=2).nll)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: c.Bernoulli(0.3), "Bernoulli must be given logits= or probs=, got arguments without a name"),
        (lambda: c.Bernoulli(logits=0.0, probs=0.5), "Bernoulli must be given logits= or probs=, got both"),
        (lambda: c.Bernoulli(), "Bernoulli must be given logits= or probs=, got neither"),
        (
            lambda: c.BinaryConcrete(0.5, torch.zeros(3)),
            "BinaryConcrete must be given logits= or probs= and temperature=, got arguments without a name",
        ),
        (
            lambda: c.Concrete(logits=torch.zeros(3)),
            "temperature must be a number or a floating tensor, got none",
        ),
        (lambda: c.Bernoulli(probs=[0.1, 0.2]), "probs must be a floating tensor or a number, got list"),
        (
            lambda: c.tile(torch.zeros(6), torch.zeros(3)),
            "the rows of x must divide those of like, got 6 and 3: are the ",
        ),
        (
            lambda: c.Model(Decoder())(torch.zeros(2, 1, 4, 4), estimator=c.RLOO),
            "estimator must be an estimator, such as Pathwise(temperature=2/3), got the class RLOO: write RLOO(...)",
        ),
        (
            lambda: c.estimate(
                lambda draw, x: draw("z", c.Bernoulli(logits=x)), torch.zeros(2), estimator=c.Reinforce(), batch_dims=2
            ),
            "batch_dims must be at most 1, the axes of the first input, got 2",
        ),
        (
            lambda: c.Pathwise(c.Annealing(1.0, 0.5, steps=3)),
            "temperature must be a number or a tensor, got Annealing: call it with a step",
        ),
    ],
)
def test_mistakes_are_answered_in_one_sentence(call: Any, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        call()
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_a_trace_names_what_it_has() -> None:
    trace = c.run(lambda draw: draw("code", c.Bernoulli(logits=torch.zeros(2))), mode=c.mode.Discrete())
    with pytest.raises(KeyError, match="got 'cod'; did you mean 'code'"):
        trace["cod"]
    assert "cod" not in trace


ENCODER, DECODER = nn.Linear(4, 2), nn.Linear(2, 4)


def generative(draw: c.Draw, x: Tensor | None = None) -> Tensor:
    """Two bits, then four."""
    return draw("x", c.Bernoulli(logits=DECODER(draw("z", c.Bernoulli(logits=torch.tensor([0.3, -0.4]))))), observed=x)


def inference(draw: c.Draw, x: Tensor) -> None:
    """Two bits of four."""
    draw("z", c.Bernoulli(logits=ENCODER(x)))


def test_a_model_of_functions_is_not_copied() -> None:
    with pytest.raises(TypeError, match=r"^a model must have modules as p and q to be copied or pickled"):
        copy.deepcopy(c.Model(generative, inference))


def _wrapped(network: nn.Module) -> Any:
    return lambda value: network(value)


@pytest.mark.parametrize("way", ["closures", "default", "list", "object", "nested", "callable", "partial", "method"])
def test_the_parameters_of_a_function_are_found(way: str) -> None:
    first, second = nn.Linear(2, 3), nn.Linear(3, 4)
    one, two = _wrapped(first), _wrapped(second)
    holder, layers = SimpleNamespace(first=first, second=second), [first, {"second": second}]

    class Called:
        def __call__(self, draw: c.Draw, x: Tensor) -> Tensor:
            return second(first(x))

    class Owner:
        def __init__(self) -> None:
            self.networks = layers

        def program(self, draw: c.Draw, x: Tensor) -> None:
            raise NotImplementedError

    programs: dict[str, Any] = {
        "closures": lambda draw, x: two(one(x)),
        "default": lambda draw, x, f=first, *, g=second: g(f(x)),
        "list": lambda draw, x: layers[1]["second"](layers[0](x)),  # type: ignore[index, operator]
        "object": lambda draw, x: holder.second(holder.first(x)),
        "nested": lambda draw, x: [(lambda: second(first(x)))() for _ in range(2)],
        "callable": Called(),
        "partial": partial(lambda f, g, draw, x: g(f(x)), first, g=second),
        "method": Owner().program,
    }
    found = {id(parameter) for parameter in c.Model(programs[way]).parameters()}
    assert found == {id(parameter) for parameter in (*first.parameters(), *second.parameters())}


@pytest.mark.unchecked
@pytest.mark.parametrize("way", ["vmap", "script", "view", "len"])
def test_parents_are_found_where_functions_hide_them(way: str) -> None:
    scripted = torch.jit.script(double) if way == "script" else None

    def program(draw: c.Draw, x: Tensor) -> None:
        z = draw("z", c.Bernoulli(logits=x))
        if way == "vmap":
            logits = torch.vmap(DECODER)(z)
        elif way == "script":
            logits = scripted(z)  # type: ignore[misc]
        elif way == "view":
            logits = torch.zeros(len(x), 4)
            logits[:, 0].copy_(z[:, 0])
        else:
            logits = torch.zeros(len(z), 4)  # only the shape of z
        draw("y", c.Bernoulli(logits=logits))

    parents = c.run(program, torch.zeros(BATCH, 2), mode=c.mode.Discrete()).parents
    assert parents["y"] == (() if way == "len" else ("z",))


def double(z: Tensor) -> Tensor:
    """A function to compile."""
    return z * 2


def test_rows_of_programs_without_inputs() -> None:
    constant = torch.zeros(3)

    def program(draw: c.Draw) -> Tensor:
        z = draw("z", c.Bernoulli(logits=torch.zeros(3)))
        draw("like", Normal(torch.zeros_like(z), torch.ones_like(z)))
        draw("len", Normal(torch.zeros(len(z), 3), 1.0))
        draw("to", c.Bernoulli(logits=constant.to(z)))
        draw("x", Normal(z, 1.0), observed=torch.ones(3).expand(len(z), 3))
        draw("y", Normal(z, 1.0), observed=torch.ones(3))
        return z.sum(-1)

    for samples in (3, 5):
        trace = c.run(program, mode=c.mode.Discrete(), samples=samples)
        assert {name: trace[name].value.shape for name in ("z", "like", "len", "to")} == dict.fromkeys(
            ("z", "like", "len", "to"), (samples, 3)
        )
        torch.testing.assert_close(trace["x"].log_prob, trace["y"].log_prob)


def test_exact_logs_are_expectations() -> None:
    x = torch.tensor([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    estimate = c.estimate(c.Model(generative, inference), x, estimator=c.Exact(), objective=c.average)
    torch.testing.assert_close(estimate.bound, estimate.log_likelihood["x"] - estimate.kl["z"])


def test_a_prior_with_other_units_is_refused() -> None:
    def p(draw: c.Draw, x: Tensor) -> None:
        z = draw("z", c.Bernoulli(logits=torch.zeros(5)))
        draw("x", c.Bernoulli(logits=DECODER(z[:, :1].expand(-1, 2))), observed=x)

    def q(draw: c.Draw, x: Tensor) -> None:
        draw("z", c.Bernoulli(logits=ENCODER(x)[:, :1]))

    with pytest.raises(
        ValueError, match=r"^node 'z' must have as many units as its given value, got \(6, 1\) and \(5,\)"
    ):
        c.estimate(c.Model(p, q), torch.zeros(BATCH, 4), estimator=c.Reinforce())


def test_a_replay_of_other_rows_is_refused() -> None:
    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return draw("z", c.Bernoulli(logits=x)).sum(-1)

    x = torch.randn(BATCH, 2)
    trace = c.run(program, x, mode=c.mode.Discrete(), samples=3)
    for mode, given in ((c.mode.Replay({"z": trace["z"].value}), x), (c.mode.Replay(trace), x[:1])):
        with pytest.raises(ValueError, match=r"^the given value of node 'z' must have the rows of this run"):
            c.run(program, given, mode=mode)


def test_exact_leaves_the_modules_of_a_function_as_they_were() -> None:
    norm = nn.BatchNorm1d(2)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return norm(draw("z", c.Bernoulli(logits=ENCODER(x)))).sum(-1)

    c.estimate(program, torch.randn(BATCH, 4), estimator=c.Exact())
    assert norm.num_batches_tracked == 0
    assert norm.training


@pytest.mark.parametrize("node", [torch.distributions.Bernoulli, torch.distributions.OneHotCategorical])
def test_divergences_of_torch_distributions_are_logged(node: Any) -> None:
    prior = nn.Linear(2, 2)

    def p(draw: c.Draw, x: Tensor) -> None:
        z = draw("z", node(logits=torch.zeros(2)))
        draw("y", node(logits=prior(z)))
        draw("x", Normal(z.sum(-1), 1.0), observed=x[:, 0])

    def q(draw: c.Draw, x: Tensor) -> None:
        draw("z", node(logits=ENCODER(x)))
        draw("y", node(logits=ENCODER(x) / 2))

    estimate = c.estimate(c.Model(p, q), torch.randn(BATCH, 4), estimator=c.RLOO(), samples=3)
    assert {name: kl.shape for name, kl in estimate.kl.items()} == {"z": (BATCH,), "y": (BATCH,)}
    assert all((kl >= 0).all() for kl in estimate.kl.values())


def test_nvil_takes_dictionaries_and_two_batch_dimensions() -> None:
    def program(draw: c.Draw, batch: dict[str, Tensor]) -> Tensor:
        return draw("z", c.Bernoulli(logits=ENCODER(batch["x"]))).sum(-1)

    batch = {"x": torch.randn(3, 2, 4)}
    nvil = c.NVIL(program, batch, batch_dims=2)
    assert c.estimate(program, batch, estimator=nvil, samples=2, batch_dims=2).log_w.shape == (2, 3, 2)
