"""Stochastic graphs: one program, run in every mode."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

import concretely as c
from tests.budget import assert_frequency
from tests.cases import named

MODES = {
    "discrete": c.mode.Discrete(),
    "relaxed": c.mode.Relaxed(0.5),
    "straight-through": c.mode.Surrogate(),
    "straight-through-relaxed": c.mode.Surrogate(0.5),
}
MASSES = {
    "bernoulli": lambda logits: c.Bernoulli(logits=logits[..., 0]),
    "discrete": named(c.OneHotCategorical),
    "hypercube": named(c.Hypercube),
    "hypercube-binary": lambda logits: c.Hypercube(logits=logits[..., :1]),
}

each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
each_mass = pytest.mark.parametrize("mass", MASSES.values(), ids=MASSES)


def diamond(draw: c.Draw, x: Tensor) -> Tensor:
    """Two independent nodes of different rank and one that depends on both."""
    a = draw("a", c.Bernoulli(logits=x))
    b = draw("b", c.Bernoulli(logits=-x[..., 0]))
    both = draw("c", c.Bernoulli(logits=a.sum(-1) - b))
    return both + a.sum(-1)


@each_mode
def test_sample_axis_appears_at_the_first_draw_of_every_path(mode: c.mode.Mode) -> None:
    trace = c.run(diamond, torch.randn(7, 3), mode=mode, samples=5)
    assert {name: each.value.shape for name, each in trace.items()} == {"a": (5, 7, 3), "b": (5, 7), "c": (5, 7)}
    assert all(trace[name].log_prob.shape == (5, 7) for name in trace)
    assert trace.output.shape == (35,)


@pytest.mark.parametrize(
    ("samples", "batch", "units"), [(3, 3, 3), (3, 3, 2), (2, 3, 3), (3, 2, 3), (1, 1, 1), (4, 1, 4)]
)
def test_equal_lengths_of_samples_batch_and_units_do_not_confuse_the_axes(samples: int, batch: int, units: int) -> None:
    trace = c.run(diamond, torch.randn(batch, units), mode=c.mode.Discrete(), samples=samples)
    assert trace["a"].value.shape == (samples, batch, units)
    assert trace["b"].value.shape == trace["c"].value.shape == (samples, batch)


def test_independent_nodes_without_a_batch_get_independent_samples_of_their_own() -> None:
    def program(draw: c.Draw) -> Tensor:
        return draw("a", c.Bernoulli(logits=torch.zeros(2))) * draw("b", c.Bernoulli(logits=torch.zeros(2)))

    trace = c.run(program, mode=c.mode.Discrete(), samples=2)
    assert trace["a"].value.shape == trace["b"].value.shape == trace.output.shape == (2, 2)


def test_what_depends_on_the_input_alone_is_computed_once() -> None:
    seen = []

    class Encoder(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.shape)
            return x

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return draw("a", c.Bernoulli(logits=Encoder()(x))).sum(-1)

    c.run(program, torch.zeros(4, 3), mode=c.mode.Relaxed(0.5), samples=50)
    assert seen == [(4, 3)]


def test_samples_of_a_node_are_independent() -> None:
    def program(draw: c.Draw) -> Tensor:
        return draw("a", c.Bernoulli(logits=torch.zeros(()))) == draw("b", c.Bernoulli(logits=torch.zeros(())))

    equal = c.run(program, mode=c.mode.Discrete(), samples=10_000).output
    assert_frequency(int(equal.sum()), of=10_000, probability=0.5)


@each_mass
def test_modes_agree_on_the_state_that_noise_becomes(mass: Any) -> None:
    logits = torch.randn(6, 4)

    def program(draw: c.Draw) -> Tensor:
        return draw("z", mass(logits))

    def value(mode: c.mode.Mode) -> Tensor:
        return c.run(program, mode=mode, samples=50, generator=torch.Generator().manual_seed(0))["z"].value

    hard = value(c.mode.Discrete())
    assert torch.equal(hard, value(c.mode.Surrogate()))
    assert torch.equal(hard, value(c.mode.Surrogate(0.3)))
    soft = value(c.mode.Relaxed(1e-3))
    # a noisy logit within the temperature of another leaves a relaxed value between states
    assert (soft - hard).abs().lt(1e-3).float().mean() > 0.97


@each_mass
def test_relaxed_nodes_are_scored_at_their_node(mass: Any) -> None:
    logits = torch.randn(6, 4)

    def program(draw: c.Draw) -> Tensor:
        return draw("z", mass(logits))

    trace = c.run(program, mode=c.mode.Relaxed(0.5), samples=3)
    node = trace["z"].node
    torch.testing.assert_close(
        trace["z"].unit_log_prob, mass(logits).relax(0.5).node.log_prob(node), rtol=1e-5, atol=1e-5
    )


@each_mass
def test_mass_scores_of_relaxed_nodes_weigh_the_states(mass: Any) -> None:
    logits = torch.randn(6, 4, dtype=torch.float64)

    def program(draw: c.Draw) -> Tensor:
        return draw("z", mass(logits))

    trace = c.run(program, mode=c.mode.Relaxed(0.5, scored_by="mass"), samples=3)
    node = trace["z"].node
    log_probs = mass(logits).log_prob(mass(logits).enumerate_support()).movedim(0, -1)
    weight = torch.stack([torch.sigmoid(-node), torch.sigmoid(node)], -1) if log_probs.shape[-1] == 2 else node.exp()
    torch.testing.assert_close(trace["z"].unit_log_prob, (weight * log_probs).sum(-1))


def test_straight_through_passes_the_gradient_of_the_mean() -> None:
    logits = torch.randn(5, requires_grad=True)

    def program(draw: c.Draw) -> Tensor:
        return draw("z", c.Bernoulli(logits=logits))

    c.run(program, mode=c.mode.Surrogate()).output.sum().backward()
    torch.testing.assert_close(logits.grad, torch.sigmoid(logits) * torch.sigmoid(-logits))


def test_straight_through_with_a_temperature_passes_the_gradient_of_the_relaxed_twin() -> None:
    logits = torch.randn(5, requires_grad=True)

    def program(draw: c.Draw) -> Tensor:
        return draw("z", c.Bernoulli(logits=logits))

    def gradient(mode: c.mode.Mode) -> Tensor:
        output = c.run(program, mode=mode, generator=torch.Generator().manual_seed(1)).output
        return torch.autograd.grad(output.sum(), logits)[0]

    torch.testing.assert_close(gradient(c.mode.Surrogate(0.4)), gradient(c.mode.Relaxed(0.4)))


def test_enumeration_runs_through_every_joint_state_once() -> None:
    def program(draw: c.Draw, x: Tensor) -> Tensor:
        a = draw("a", c.Bernoulli(logits=x))
        b = draw("b", c.OneHotCategorical(logits=torch.stack([a.sum(-1), -a.sum(-1), a[..., 0]], -1)))
        draw("c", c.Hypercube(logits=b.sum(-1, keepdim=True).unsqueeze(-1).expand(*b.shape[:-1], 1, 4)))
        return a.sum(-1)

    trace = c.run(program, torch.randn(5, 2, dtype=torch.float64), mode=c.mode.Enumerate())
    assert trace.samples == 2**2 * 3 * 4
    joint = torch.cat([value.flatten(2) for value in (each.value for each in trace.values())], -1)
    assert joint.shape[:2] == (48, 5)
    assert len(joint[:, 0].unique(dim=0)) == 48
    total = sum(trace[name].log_prob for name in trace)
    torch.testing.assert_close(total.exp().sum(0), torch.ones(5, dtype=torch.float64))


def test_replay_gives_the_values_and_the_scores_of_another_run() -> None:
    x = torch.randn(7, 3)
    for mode in (c.mode.Discrete(), c.mode.Relaxed(0.5)):
        trace = c.run(diamond, x, mode=mode, samples=5)
        again = c.run(diamond, x, mode=c.mode.Replay(trace, mode))
        assert again.samples == 5
        for name in trace:
            assert again[name].seen is trace[name].seen
            torch.testing.assert_close(again[name].unit_log_prob, trace[name].unit_log_prob, rtol=1e-5, atol=1e-5)


def test_replay_of_plain_values_scores_them() -> None:
    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return draw("a", c.Bernoulli(logits=x))

    x = torch.randn(4, 3)
    trace = c.run(program, x, mode=c.mode.Replay({"a": torch.ones(4, 3)}))
    torch.testing.assert_close(trace["a"].log_prob, torch.nn.functional.logsigmoid(x).sum(-1))


@each_mode
def test_observed_values_are_scored_by_their_log_mass_in_every_mode(mode: c.mode.Mode) -> None:
    x = torch.randint(2, (4, 3)).float()

    def program(draw: c.Draw, x: Tensor) -> None:
        z = draw("z", c.Bernoulli(logits=x))
        draw("x", c.Bernoulli(logits=z), observed=x)

    trace = c.run(program, x, mode=mode, samples=2)
    assert trace.observed == ["x"]
    assert trace.latent == ["z"]
    torch.testing.assert_close(trace["x"].unit_log_prob, c.Bernoulli(logits=trace["z"].value).log_prob(x))


def test_observed_nodes_that_depend_on_no_draw_are_summed_over_their_units_alone() -> None:
    logits, x = torch.tensor([0.0, 5.0, -5.0, 9.0]), torch.zeros(4, 4)

    def program(draw: c.Draw, x: Tensor) -> None:
        draw("z", c.Bernoulli(logits=torch.zeros(len(x), 2)))
        draw("x", c.Bernoulli(logits=logits), observed=x)

    trace = c.run(program, x, mode=c.mode.Discrete(), samples=4)
    expected = torch.nn.functional.logsigmoid(-logits).sum()
    torch.testing.assert_close(trace["x"].log_prob, expected.expand(4, 4))


def test_scores_have_the_gradient_of_their_draw_whoever_looks_first() -> None:
    logits = torch.zeros(3, requires_grad=True)
    trace = c.run(lambda draw: draw("b", c.Bernoulli(logits=logits)), mode=c.mode.Discrete())
    with torch.no_grad():
        assert trace["b"].log_prob.shape == ()
    assert trace["b"].log_prob.requires_grad


def test_parents_are_found_in_distributions_made_of_others_and_in_tables() -> None:
    table, labels = torch.tensor([0.0, 5.0]), torch.zeros(4, dtype=torch.long)

    def program(draw: c.Draw, x: Tensor) -> None:
        z = draw("z", c.Bernoulli(logits=x))
        draw("independent", torch.distributions.Independent(Normal(z, 1.0), 1), observed=x)
        draw("transformed", torch.distributions.LogNormal(z, 1.0), observed=x.exp())
        draw("table", Normal(table[(z[..., 0] != z[..., 1]).long()], 1.0), observed=x[..., 0])
        draw("label", torch.distributions.Categorical(logits=z), observed=labels)

    parents = c.run(program, torch.zeros(4, 2), mode=c.mode.Discrete()).parents
    assert all(parents[name] == ("z",) for name in ("independent", "transformed", "table", "label"))


def test_runs_that_only_look_teach_a_module_nothing() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
            return draw("a", c.Bernoulli(logits=x)).sum(-1) + draw("b", c.Bernoulli(logits=self.norm(x))).sum(-1)

    module = Normed()
    for runs in (1, 2, 3):
        c.run(module, torch.randn(4, 4), mode=c.mode.Discrete(), samples=4)
        assert module.norm.num_batches_tracked == runs


def test_continuous_nodes_are_pathwise_in_every_mode() -> None:
    mean = torch.zeros(3, requires_grad=True)

    def program(draw: c.Draw) -> Tensor:
        return draw("normal", Normal(mean, 1.0)) + draw("b", c.Bernoulli(logits=torch.zeros(3)))

    for mode in MODES.values():
        trace = c.run(program, mode=mode, samples=2)
        (gradient,) = torch.autograd.grad(trace.output.sum(), mean)
        assert torch.equal(gradient, torch.full((3,), 2.0))
        assert trace["normal"].unit_log_prob.shape == (2, 3)


def test_scores_are_worked_out_when_asked_for_and_once() -> None:
    trace = c.run(diamond, torch.zeros(4, 3), mode=c.mode.Relaxed(0.5), samples=2)
    assert trace["a"].log_prob is trace["a"].log_prob
    assert trace["a"].log_prob is trace["a"].log_prob


def test_parents_are_the_nodes_that_a_distribution_depends_on() -> None:
    trace = c.run(diamond, torch.randn(4, 3), mode=c.mode.Discrete(), samples=2)
    assert trace.parents == {"a": (), "b": (), "c": ("a", "b")}
    model = c.density("2H-3H~4V")
    p, q = model.trace(torch.zeros(5, 4), mode=c.mode.Discrete(), samples=2)
    assert p.parents == {"h2": (), "h1": ("h2",), "x": ("h1",)}
    assert q.parents == {"h1": (), "h2": ("h1",)}


def test_parents_are_found_through_steps_without_a_derivative() -> None:
    def program(draw: c.Draw) -> None:
        a = draw("a", c.Bernoulli(logits=torch.zeros(())))
        b = draw("b", c.OneHotCategorical(logits=torch.zeros(3)))
        d = draw("d", c.Hypercube(logits=torch.zeros(2, 4)))
        draw("of a", c.Bernoulli(logits=(a > 0.5).float()))
        draw("of b", c.Bernoulli(logits=b.argmax(-1).float()))
        draw("of d", c.Bernoulli(logits=d[0].prod()))

    parents = c.run(program, mode=c.mode.Discrete()).parents
    assert {name: parents[name] for name in ("of a", "of b", "of d")} == {
        "of a": ("a",),
        "of b": ("b",),
        "of d": ("d",),
    }


def test_asking_for_parents_teaches_the_model_nothing() -> None:
    model = c.density("3H-2H-4V")
    _, q = model.trace(torch.zeros(5, 4), mode=c.mode.Discrete(), samples=3)
    before = model.q.centres[0].offset.clone()
    assert q.parents["h2"] == ("h1",)
    assert torch.equal(model.q.centres[0].offset, before)
    assert all(module.training for module in model.modules())


def test_a_generator_makes_a_run_repeat() -> None:
    runs = [
        c.run(diamond, torch.zeros(4, 3), mode=c.mode.Relaxed(0.5), generator=torch.Generator().manual_seed(3)).output
        for _ in range(2)
    ]
    assert torch.equal(*runs)


@pytest.mark.parametrize("shape", [(8, 1, 1), (5, 1, 1)])
def test_a_temperature_that_would_add_axes_is_refused(shape: tuple[int, ...]) -> None:
    mode = c.mode.Relaxed(torch.full(shape, 0.5))
    with pytest.raises(
        ValueError, match="temperature must broadcast to the batch shape \\(8, 2\\) of node 'a', got one"
    ):
        c.run(lambda draw, x: draw("a", c.Bernoulli(logits=x)), torch.zeros(8, 2), mode=mode, samples=5)


def test_a_temperature_by_name_reaches_its_node() -> None:
    mode = c.mode.Relaxed({"a": 1e-4, "b": 10.0, "c": 1.0})
    trace = c.run(diamond, torch.randn(50, 3), mode=mode, samples=20)
    inside = {
        name: ((value > 0.1) & (value < 0.9)).float().mean()
        for name, value in {name: each.value for name, each in trace.items()}.items()
    }
    assert inside["a"] < 0.01
    assert inside["b"] > 0.9


@pytest.mark.unchecked
@each_mode
def test_runs_compile_without_a_break(mode: c.mode.Mode) -> None:
    def loss(x: Tensor) -> Tensor:
        trace = c.run(diamond, x, mode=mode, samples=3)
        return trace.output.sum() + trace["c"].log_prob.sum()

    assert torch.compile(loss, fullgraph=True, backend="aot_eager")(torch.randn(4, 2)).isfinite()


@pytest.mark.unchecked
@each_mode
def test_runs_are_mapped_over_a_batch_of_inputs(mode: c.mode.Mode) -> None:
    def outputs(x: Tensor) -> tuple[Tensor, Tensor]:
        trace = c.run(diamond, x, mode=mode, samples=3)
        return trace.output, trace["a"].log_prob

    x = torch.randn(6, 4, 2)
    output, log_prob = torch.func.vmap(outputs, randomness="different")(x)
    assert (output.shape, log_prob.shape) == ((6, 12), (6, 3, 4))
    assert len(output.flatten(1).unique(dim=0)) > 1


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_with_normal_noise_a_node_is_the_control_with_its_logits(size: int) -> None:
    logits = torch.randn(3, size, dtype=torch.float64)
    control = c.HypercubeLogisticNormal(logits=logits, temperature=0.5)
    mode = c.mode.Relaxed(0.5, noise="normal")
    trace = c.run(lambda draw: draw("a", c.Hypercube(logits=logits)), mode=mode, samples=4)
    value = trace["a"].value
    node = trace["a"].node
    torch.testing.assert_close(trace["a"].unit_log_prob, control.node.log_prob(node))
    assert (value.abs() <= 1).all()
    assert control.discretize().logits.shape == c.Hypercube(logits=logits).logits.shape
    other = c.HypercubeLogisticNormal(logits=logits + 1 + torch.arange(size), temperature=0.7)
    scored = mode.score("a", other.discretize(), value, node=node)
    torch.testing.assert_close(
        scored, c.HypercubeLogisticNormal(logits=other.logits, temperature=0.5).node.log_prob(node)
    )


def test_discrete_nodes_have_a_control_and_bits_have_none() -> None:
    mode = c.mode.Relaxed(0.5, noise="normal")
    value = c.run(lambda draw: draw("a", c.OneHotCategorical(logits=torch.zeros(5, 3))), mode=mode)["a"].value
    torch.testing.assert_close(value.sum(-1), torch.ones(5))
    with pytest.raises(NotImplementedError, match="Bernoulli has no relaxation by normal noise"):
        c.run(lambda draw: draw("a", c.Bernoulli(logits=torch.zeros(5))), mode=mode)
