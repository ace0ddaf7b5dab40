"""NVIL: local signals, input-dependent baselines, and a running mean and variance that are updated before use."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import concretely as c
from tests.estimator.expectation import forced, ways
from tests.estimator.target import ONE_LAYER, PROGRAM, TARGETS, TWO_BETWEEN, TWO_LAYERS, Target, each, randomised


def test_local_signal_of_a_layer_has_the_terms_at_or_above_it() -> None:
    model, x = TWO_LAYERS.made(), TWO_LAYERS.inputs[0]
    estimator = c.NVIL(model, x, baseline=False, centre=False, scale=False)
    for point, states in zip(x, TWO_LAYERS.listed(model), strict=True):
        for state in states:
            with forced({name: value[None, None] for name, value in state.values.items()}):
                signal = c.estimate(model, point[None], estimator=estimator).signal
            p, q = state.log_p, state.log_q
            above = p["h1"] + p["h2"] - q["h2"]
            torch.testing.assert_close(signal["h2"].squeeze(), above.detach())
            torch.testing.assert_close(signal["h1"].squeeze(), (above + p["x"] - q["h1"]).detach())


def test_local_signal_without_inference_is_the_log_probability_of_what_is_predicted() -> None:
    model = TWO_BETWEEN.made()
    estimator = c.NVIL(model, *TWO_BETWEEN.inputs, baseline=False, centre=False, scale=False)
    for *point, states in zip(*TWO_BETWEEN.inputs, TWO_BETWEEN.listed(model), strict=True):
        for state in states:
            with forced({name: value[None, None] for name, value in state.values.items()}):
                signal = c.estimate(model, *(entry[None] for entry in point), estimator=estimator).signal
            for name in ("h1", "h2"):
                torch.testing.assert_close(signal[name].squeeze(), state.log_p["x"].detach())


@each(*TARGETS)
def test_signal_of_several_samples_is_shared_among_them(target: Target) -> None:
    module = target.made()
    estimator = randomised(c.NVIL(module, *target.inputs, width=4), seed=1)
    values, _ = ways(target.listed(module)[0], 2)
    inputs = tuple(entry[:1] for entry in target.inputs)
    # a tuple of two unlike states, and each of them alone
    both = {name: value[1] for name, value in values.items()}
    with forced(both):
        together = c.estimate(module, *inputs, estimator=estimator, samples=2).signal
    for row in range(2):
        with forced({name: value[row : row + 1] for name, value in both.items()}):
            alone = c.estimate(module, *inputs, estimator=estimator).signal
        for name, signal in alone.items():
            torch.testing.assert_close(together[name][row], signal[0] / 2)


def baseline(network: nn.Module, seen: Tensor) -> Tensor:
    """A baseline by hand: one hidden layer of tanh units."""
    first, _, last = network
    return (seen @ first.weight.T + first.bias).tanh() @ last.weight.squeeze(0) + last.bias


def test_running_mean_and_variance_are_updated_before_they_are_used() -> None:
    model, x = ONE_LAYER.made(), torch.tensor([[0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 0], [0, 0, 0]]).double()
    estimator = randomised(c.NVIL(model, x, width=4), seed=1).train()
    with torch.no_grad():
        estimator.offset.copy_(x.mean(0))
        estimator.mean.zero_()
        estimator.variance.fill_(1)
        model.p.visible.network[0].weight.mul_(4)  # so that the deviation exceeds 1
    mean, variance, scaled = 0.0, 1.0, []
    for step in range(3):
        estimate = c.estimate(model, x, estimator=estimator, generator=torch.Generator().manual_seed(step))
        signal = (estimate.log_w - baseline(estimator.baselines[0], x - x.mean(0))).detach()
        mean = 0.8 * mean + 0.2 * signal.mean().item()
        variance = 0.8 * variance + 0.2 * (signal - signal.mean()).square().mean().item()
        scaled.append(variance > 1)
        torch.testing.assert_close(estimator.mean, torch.tensor([mean], dtype=x.dtype))
        torch.testing.assert_close(estimator.variance, torch.tensor([variance], dtype=x.dtype))
        torch.testing.assert_close(estimate.signal["h1"], (signal - mean) / max(1, variance**0.5))
    assert any(scaled)


def test_deviation_below_one_does_not_raise_the_signal() -> None:
    model, x = ONE_LAYER.made(), ONE_LAYER.inputs[0]
    estimator = c.NVIL(model, x, baseline=False, centre=False).eval()
    estimator.variance.fill_(0.25)
    estimate = c.estimate(model, x, estimator=estimator)
    torch.testing.assert_close(estimate.signal["h1"], estimate.log_w)
    estimator.variance.fill_(4.0)
    estimate = c.estimate(model, x, estimator=estimator)
    torch.testing.assert_close(estimate.signal["h1"], estimate.log_w / 2)


def test_first_input_of_a_baseline_is_centred_by_the_batch_it_was_built_with() -> None:
    model, x = ONE_LAYER.made(), ONE_LAYER.inputs[0]
    torch.testing.assert_close(c.NVIL(model, x).offset, x.mean(0))


def test_baseline_of_a_layer_sees_the_layer_below() -> None:
    model, x = TWO_LAYERS.made(), TWO_LAYERS.inputs[0]
    estimator = randomised(c.NVIL(model, x, width=4, centre=False, scale=False), seed=1)
    (state, *_), _ = TWO_LAYERS.listed(model)
    with forced({name: value[None, None] for name, value in state.values.items()}):
        signal = c.estimate(model, x[:1], estimator=estimator).signal
    p, q = state.log_p, state.log_q
    expected = p["h1"] + p["h2"] - q["h2"] - baseline(estimator.baselines[1], state.values["h1"].flatten())
    torch.testing.assert_close(signal["h2"].flatten(), expected.detach())


@each(*TARGETS)
@pytest.mark.parametrize("samples", [1, 2])
def test_gradient_of_a_baseline_is_the_normalised_signal_times_its_own(target: Target, samples: int) -> None:
    module = target.made()
    estimator = randomised(c.NVIL(module, *target.inputs, width=4), seed=1).train()
    states = [ways(states, samples)[0] for states in target.listed(module)]
    values = {
        name: torch.cat([entry[name][row] for entry, row in zip(states, (1, 2), strict=True)], 1) for name in states[0]
    }
    with forced(values):
        estimate = c.estimate(module, *target.inputs, estimator=estimator, samples=samples)
    actual = torch.autograd.grad(estimate.loss, list(estimator.parameters()))
    before = {"h2": "h1"}
    rows = []
    for name, network in zip(estimate.signal, estimator.baselines, strict=True):
        if name in before:
            seen = values[before[name]].flatten(2)
        else:
            seen = (target.inputs[0] - estimator.offset).expand(samples, -1, -1)
        rows.append((estimate.signal[name] * baseline(network, seen)).sum(0).mean())
    expected = torch.autograd.grad(-torch.stack(rows).sum(), list(estimator.parameters()))
    assert max(entry.abs().max() for entry in expected) > 1e-3
    torch.testing.assert_close(actual, expected)


@each(TWO_LAYERS, PROGRAM)
def test_nothing_is_updated_in_evaluation(target: Target) -> None:
    module = target.made()
    estimator = c.NVIL(module, *target.inputs)
    c.estimate(module, *target.inputs, estimator=estimator)
    before = {name: value.clone() for name, value in estimator.state_dict().items()}
    assert before["mean"].abs().min() > 0
    estimator.eval()
    c.estimate(module, *target.inputs, estimator=estimator)
    torch.testing.assert_close(estimator.state_dict(), before, rtol=0, atol=0)


@each(TWO_LAYERS)
def test_baselines_pass_no_gradient_to_the_target(target: Target) -> None:
    module = target.made()
    plain = c.NVIL(module, *target.inputs, centre=False, scale=False, baseline=False)
    zero = c.NVIL(module, *target.inputs, centre=False, scale=False, width=4).eval()
    with torch.no_grad():
        for network in zero.baselines:
            network[-1].weight.zero_()
            network[-1].bias.zero_()
    gradients = []
    for estimator in (plain, zero):
        loss = c.estimate(module, *target.inputs, estimator=estimator, generator=torch.Generator().manual_seed(0)).loss
        gradients.append(torch.autograd.grad(loss, list(module.parameters())))
    torch.testing.assert_close(*gradients)


@torch.jit.script
def agrees(z: Tensor) -> Tensor:
    """Whether all bits of a row are ones, as a function that neither autograd nor a mode of torch sees into."""
    return z.all(-1, keepdim=True)


@pytest.mark.unchecked
@pytest.mark.parametrize("depends", ["where", "script", "if"])
def test_terms_that_depend_on_a_node_by_a_comparison_are_part_of_its_signal(depends: str) -> None:
    encoder, bias = nn.Linear(1, 2).double(), nn.Parameter(torch.tensor([0.7, -0.4], dtype=torch.float64))

    def p(draw: c.Draw, x: Tensor) -> None:
        z = draw("z", c.Bernoulli(logits=torch.zeros(2, dtype=torch.float64)))
        if depends == "if":
            logits = (bias[0] if z.all() else bias[1]).expand(len(z), 1)
        else:
            logits = torch.where(agrees(z) if depends == "script" else z.all(-1, keepdim=True), *bias)
        draw("x", c.Bernoulli(logits=logits), observed=x)

    model = c.Model(p, lambda draw, x: draw("z", c.Bernoulli(logits=encoder(x))))
    x = torch.ones(1, 1, dtype=torch.float64)
    estimator = randomised(c.NVIL(model, x, width=4, centre=False, scale=False), seed=1)
    expected, bound = [torch.zeros_like(each) for each in model.parameters()], torch.zeros((), dtype=torch.float64)
    for state in itertools.product((0.0, 1.0), repeat=2):
        z = torch.tensor(state, dtype=torch.float64)
        log_q = c.Bernoulli(logits=encoder(x)).log_prob(z).sum()
        chosen = bias[0] if all(state) else bias[1]
        log_p = c.Bernoulli(logits=chosen).log_prob(x).squeeze() - math.log(4)
        bound = bound + log_q.exp() * (log_p - log_q)
        with forced({"z": z.view(1, 1, 2)}):
            loss = c.estimate(model, x, estimator=estimator).loss
        gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True, allow_unused=True)
        for total, gradient in zip(expected, gradients, strict=True):
            total += log_q.exp().detach() * gradient
    exact = torch.autograd.grad(-bound, list(model.parameters()))
    assert min(gradient.abs().max() for gradient in exact) > 1e-3
    torch.testing.assert_close(tuple(expected), exact, rtol=1e-10, atol=1e-10)


def test_terms_that_are_scored_before_a_node_is_drawn_are_not_part_of_its_signal() -> None:
    def p(draw: c.Draw, x: Tensor) -> None:
        state = torch.zeros(1)
        for t in range(3):
            state = draw(f"z{t}", c.Bernoulli(logits=state))
            draw(f"x{t}", c.Bernoulli(logits=state), observed=x[:, t : t + 1])

    def q(draw: c.Draw, x: Tensor) -> None:
        for t in range(3):
            draw(f"z{t}", c.Bernoulli(logits=x[:, t : t + 1]))

    terms = c.NVIL(c.Model(p, q), torch.zeros(4, 3)).terms
    assert terms["z2"] == ["z2", "x2"]
    assert terms["z1"] == ["z1", "x1", *terms["z2"]]
    assert c.NVIL(c.Model(p), torch.zeros(4, 3)).terms == {"z0": ["x0", "x1", "x2"], "z1": ["x1", "x2"], "z2": ["x2"]}
