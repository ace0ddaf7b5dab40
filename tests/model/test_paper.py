"""The paper's models: their shape, their initial state, and centring."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import concretely as c
from concretely.model.paper import Centre


def linears(module: nn.Module) -> list[tuple[int, int]]:
    return [(linear.in_features, linear.out_features) for linear in module.modules() if isinstance(linear, nn.Linear)]


@pytest.mark.parametrize(
    ("notation", "p", "q"),
    [
        ("200H-784V", [(200, 784)], [(784, 200)]),
        ("200H-200H-784V", [(200, 200), (200, 784)], [(784, 200), (200, 200)]),
        (
            "200H~784V",
            [(200, 200), (200, 200), (200, 784)],
            [(784, 200), (200, 200), (200, 200)],
        ),
        (
            "30H~20H-50V",
            [(30, 30), (30, 30), (30, 20), (20, 50)],
            [(50, 20), (20, 20), (20, 20), (20, 30)],
        ),
        ("240H:8-784V", [(240, 784)], [(784, 80 * 8)]),
        ("12H:4-12H-20V", [(12, 12), (12, 20)], [(20, 12), (12, 6 * 4)]),
    ],
)
def test_networks_have_the_sizes_of_the_notation(notation: str, p: Any, q: Any) -> None:
    model = c.density(notation)
    assert linears(model.p) == p
    assert linears(model.q) == q


def test_networks_of_a_prediction_have_the_sizes_of_the_notation() -> None:
    assert linears(c.prediction("392V-240H-240H-392V").p) == [(392, 240), (240, 240), (240, 392)]
    wide = [(392, 240), (240, 240), (240, 240), (240, 240), (240, 240), (240, 392)]
    assert linears(c.prediction("392V~240H~392V").p) == wide
    assert linears(c.prediction("392V~240H-392V", encoder_width=392).p)[:2] == [(392, 392), (392, 392)]


def test_the_encoder_may_be_as_wide_as_the_data() -> None:
    assert linears(c.density("20H~50V", encoder_width=50).q) == [(50, 50), (50, 50), (50, 20)]


def test_arity_by_suffix_and_by_argument_are_the_same_model() -> None:
    shapes = [
        {name: parameter.shape for name, parameter in model.named_parameters()}
        for model in (c.density("6H:8~4V"), c.density("6H~4V", arity=8), c.density(c.parse("6H~4V", arity=8)))
    ]
    assert shapes[0] == shapes[1] == shapes[2]
    assert shapes[0]["p.top.logits"] == (2, 8)


@pytest.mark.parametrize("arity", [2, 4, 8, 16])
def test_states_are_corners_whatever_the_arity(arity: int) -> None:
    model = c.density("12H~12H-5V", arity=arity)
    p, q = model.trace(torch.zeros(3, 5), mode=c.mode.Discrete(), samples=4)
    bits = int(math.log2(arity))
    for trace in (p, q):
        for name in ("h1", "h2"):
            assert trace[name].value.shape == (4, 3, 12 // bits, bits)
            assert set(trace[name].value.unique().tolist()) == {-1.0, 1.0}
    assert p["x"].log_prob.shape == (4, 3)


def test_weights_start_as_glorot_and_biases_at_zero_but_for_the_base_rate() -> None:
    rate = torch.linspace(0, 1, 784)
    model = c.density("200H~784V", base_rate=rate)
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            edge = math.sqrt(6 / sum(parameter.shape))
            assert parameter.abs().max() <= edge
            assert parameter.abs().max() > 0.99 * edge
            assert abs(parameter.std().item() - edge / math.sqrt(3)) < 0.02 * edge
        elif name == "p.visible.network.4.bias":
            torch.testing.assert_close(parameter.detach(), torch.logit(rate.clamp(0.001, 0.999)))
        else:
            assert not parameter.any()


def test_the_same_generator_builds_the_same_model_and_no_other_randomness_is_used() -> None:
    state = torch.get_rng_state()
    one, two = (c.density("6H~8V", generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert torch.equal(state, torch.get_rng_state())


def test_both_networks_are_fed_plus_and_minus_one() -> None:
    model, fed = c.density("3H-4V").double(), []
    for network in (model.p.visible.network, model.q.layers[0].network):
        network.register_forward_hook(lambda module, inputs, output: fed.append(inputs[0]))
    x = torch.tensor([[0, 1, 1, 0]], dtype=torch.uint8)
    model.trace(x, mode=c.mode.Discrete(), samples=2)
    encoder, decoder = fed
    assert torch.equal(encoder, torch.tensor([[-1.0, 1.0, 1.0, -1.0]], dtype=torch.float64))
    assert set(decoder.unique().tolist()) <= {-1.0, 1.0}


def test_log_weights_are_those_written_by_hand() -> None:
    torch.manual_seed(1)
    model = c.density("3H-2H~4V").double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    model.q.centres[0].offset.normal_()
    x = torch.randint(2, (5, 4)).double()
    p, q = model.trace(x, mode=c.mode.Discrete(), samples=6)
    h1, h2 = (q[name].value.squeeze(-1) for name in ("h1", "h2"))

    def log_mass(logits: Tensor, state: Tensor) -> Tensor:
        return torch.log(torch.sigmoid(logits * state)).sum(-1)

    down, up = model.p, model.q
    by_hand = {
        "h2": log_mass(down.top.logits.squeeze(-1), h2),
        "h1": log_mass(down.layers[0].network(h2), h1),
        "x": log_mass(down.visible.network(h1), 2 * x - 1),
    }
    for name, expected in by_hand.items():
        torch.testing.assert_close(p[name].log_prob, expected)
    torch.testing.assert_close(q["h1"].log_prob, log_mass(up.layers[0].network(2 * x - 1), h1))
    torch.testing.assert_close(q["h2"].log_prob, log_mass(up.layers[1].network(h1 - up.centres[0].offset), h2))


def test_centring_subtracts_the_running_average_before_it_is_updated() -> None:
    """Three steps, replayed by hand: subtract, then decay by 0.9 and add a tenth of the mean of the batch."""
    centre = Centre(2)
    states = torch.randn(3, 5, 4, 2)
    average = torch.zeros(2)
    for state in states:
        state = state.clone().requires_grad_()
        centred = centre(state)
        torch.testing.assert_close(centred.detach(), state.detach() - average)
        (slope,) = torch.autograd.grad(centred.sum(), state)
        assert torch.equal(slope, torch.ones_like(state))  # no gradient passes through the average
        average = 0.9 * average + 0.1 * state.detach().mean((0, 1))
        torch.testing.assert_close(centre.offset, average)
    centre.eval()
    torch.testing.assert_close(centre(states[0]), states[0] - average)
    torch.testing.assert_close(centre.offset, average)


def test_centring_happens_between_the_stochastic_layers_of_the_inference_network() -> None:
    model = c.density("3H-2H-4V")
    fed: list[Tensor] = []
    model.q.layers[1].network.register_forward_hook(lambda module, inputs, output: fed.append(inputs[0]))
    x, average = torch.randint(2, (5, 4)).float(), torch.zeros(2)
    for _ in range(3):
        _, q = model.trace(x, mode=c.mode.Relaxed(0.5), samples=6)
        state = q["h1"].value.flatten(-2)
        torch.testing.assert_close(fed[-1], (state - average).flatten(0, 1))
        average = 0.9 * average + 0.1 * state.detach().mean((0, 1))
    assert not any(isinstance(module, Centre) for module in model.p.modules())
    assert [name for name, _ in model.named_buffers()] == ["q.centres.0.offset"]


@pytest.mark.parametrize("samples", [5, 6])
def test_centring_is_updated_once_a_run_even_if_samples_are_as_many_as_data(samples: int) -> None:
    model = c.density("3H-2H-4V")
    _, q = model.trace(torch.zeros(5, 4), mode=c.mode.Discrete(), samples=samples)
    torch.testing.assert_close(model.q.centres[0].offset, 0.1 * q["h1"].value.flatten(-2).mean((0, 1)))


def test_sampling_the_model_needs_no_data() -> None:
    assert c.density("3H-2H:4~7V").sample(9).shape == (9, 7)
    bits = c.prediction("6V~4H:4-5V").sample(3, torch.zeros(2, 6))
    assert bits.shape == (3, 2, 5)
    assert set(bits.unique().tolist()) <= {0.0, 1.0}


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda: c.density("4V-2H-4V"),
            "a density must begin with a latent layer, got 4V-2H-4V: use `prediction` for models with a context",
        ),
        (
            lambda: c.prediction("2H-4V"),
            "a prediction must begin with an observed layer, got 2H-4V: use `density` without a context",
        ),
        (
            lambda: c.density("2H-4V", base_rate=torch.zeros(3)),
            "base_rate must have shape (4,), one rate for each observed unit, got (3,)",
        ),
        (
            lambda: c.density("2H-4V", base_rate=torch.tensor([0.0, 0.5, 1.5, 1.0])),
            "base_rate must lie between 0 and 1, got 1.5 at index 2",
        ),
        (lambda: trace(torch.zeros(5, 3)), "x must have a last axis of 4 bits, got shape (5, 3)"),
        (lambda: trace(torch.full((5, 4), 0.25)), "x must be bits of 0 and 1, got 0.25 at index (0, 0)"),
        (lambda: trace(torch.tensor([[0, 1, 255, 0]])), "x must be bits of 0 and 1, got 255 at index (0, 2)"),
        (lambda: trace(torch.full((5, 4), math.nan)), "x must be bits of 0 and 1, got nan at index (0, 0)"),
        (lambda: trace([[0, 1, 1, 0]]), "x must be a tensor, got list"),
        (
            lambda: c.prediction("3V-2H-4V").sample(1, torch.zeros(5, 4)),
            "context must have a last axis of 3 bits, got shape (5, 4)",
        ),
    ],
)
def test_bad_input_is_refused_with_one_sentence(build: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        build()
    assert str(error.value) == sentence


def trace(x: Any) -> Any:
    return c.density("2H-4V").trace(x, mode=c.mode.Discrete())
