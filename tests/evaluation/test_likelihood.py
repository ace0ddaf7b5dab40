"""The log-likelihood of the discrete graph: right by enumeration, bounded in memory, and leaving the model alone."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from threading import Barrier, Event, Thread, current_thread

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import concretely as c
from concretely.environment import install_command
from concretely.evaluation.likelihood import Likelihood, evaluate, exact_log_likelihood
from concretely.functional.bound import bound, effective_sample_size
from concretely.objective import log_weights
from tests.budget import assert_likely, assert_mean

from .example import NOTATIONS, data_of, models, seeded, spread


def of_pairs(units: int, seen: list[Tensor] | None = None) -> tuple[c.Model, Callable[[Tensor], Tensor]]:
    """A model of pairs of pixels, each with a unit of its own, with its exact posterior as q; and its log-likelihood.

    Every log-weight is the log-likelihood, whatever was drawn.
    """
    prior = torch.randn(units, dtype=torch.float64)
    pixels = torch.randn(2, units, 2, dtype=torch.float64)  # by the state of the unit

    def log_joint(x: Tensor) -> Tensor:
        pairs = x.double().unflatten(-1, (units, 2))
        log_prior = torch.stack([-prior, prior]).sigmoid().log()
        return log_prior.unsqueeze(1) + ((2 * pairs - 1) * pixels.unsqueeze(1)).sigmoid().log().sum(-1)

    def p(draw: c.Draw, x: Tensor) -> Tensor:
        state = draw("z", c.Hypercube(logits=prior.unsqueeze(-1)))
        if seen is not None:
            seen.append(state)
        logits = torch.where(state > 0, pixels[1], pixels[0]).flatten(-2)
        return draw("x", c.Bernoulli(logits=logits), observed=x.double())

    def q(draw: c.Draw, x: Tensor) -> None:
        off, on = log_joint(x)
        draw("z", c.Hypercube(logits=(on - off).unsqueeze(-1)))

    return c.Model(p, q), lambda x: log_joint(x).logsumexp(0).sum(-1)


# --- against the definition ---


@models
def test_exact_log_likelihood_is_the_sum_over_all_states(build: Callable[[], c.Model]) -> None:
    model = spread(build())
    data = data_of(model, 7)
    names = model.p.names
    log_joint = []

    def states(name: str, distribution: c.Hypercube) -> list[Tensor]:
        corners = distribution.enumerate_support(expand=False).view(-1, *distribution.event_shape)
        choice = torch.cartesian_prod(*[torch.arange(len(corners))] * distribution.batch_shape[-1])
        return list(corners[choice.view(-1, distribution.batch_shape[-1])])

    def visit(values: dict[str, Tensor]) -> None:
        """Fix the nodes one after the other, and score the run when all are."""
        score = torch.zeros(7, dtype=torch.float64)

        def draw(name: str, distribution: c.Bernoulli, *, observed: Tensor | None = None) -> Tensor:
            nonlocal score
            if observed is None and name not in values:
                raise LookupError(name, distribution)
            value = values[name] if observed is None else observed
            score = score + distribution.log_prob(value).sum(-1)
            return value

        try:
            model.p(draw, *data)
        except LookupError as open_node:
            for state in states(*open_node.args):
                visit({**values, open_node.args[0]: state})
        else:
            assert list(values) == names
            log_joint.append(score)

    with torch.no_grad():
        visit({})
    torch.testing.assert_close(
        exact_log_likelihood(model, *data), torch.stack(log_joint).logsumexp(0), rtol=1e-12, atol=1e-12
    )


@models
def test_likelihoods_of_all_data_sum_to_one(build: Callable[[], c.Model]) -> None:
    model = spread(build())
    x = torch.cartesian_prod(*[torch.arange(2)] * 5)
    data = (x,) if model.q else (torch.randint(2, (4,)).expand(32, -1), x)
    assert exact_log_likelihood(model, *data).exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_exact_log_likelihood_of_more_data_than_fit_at_once_is_that_of_each() -> None:
    model = spread(c.density("10H-5V"))
    (x,) = data_of(model, 40)
    apart = torch.cat([exact_log_likelihood(model, point.unsqueeze(0)) for point in x])
    torch.testing.assert_close(exact_log_likelihood(model, x), apart, rtol=1e-12, atol=1e-12)


@models
def test_log_likelihood_is_that_of_enumeration(build: Callable[[], c.Model]) -> None:
    model = spread(build())
    data = data_of(model, 6)
    result = evaluate(model, *data, samples=50_000, generator=seeded())
    error = (1 / result.effective_sample_size - 1 / result.samples).sqrt()
    z = (result.log_likelihood - exact_log_likelihood(model, *data)).expm1() / error
    assert_likely(2 * stats.norm.sf(abs(z.sum().item()) / math.sqrt(len(z))), "of the sum")
    assert_likely(stats.chi2.sf(z.square().sum().item(), len(z)), "of the squares")


@pytest.mark.parametrize(("chunk", "copies"), [(1, 20), (7, 100), (100, 1000), (10**9, 1000)])
@pytest.mark.parametrize("build", [NOTATIONS["two layers"], NOTATIONS["prediction"]], ids=["density", "prediction"])
def test_likelihood_is_unbiased_at_any_chunk(build: Callable[[], c.Model], chunk: int, copies: int) -> None:
    model = spread(build())
    data = data_of(model, 1)
    copied = [tensor.expand(copies, -1) for tensor in data]
    result = evaluate(model, *copied, samples=10, chunk=chunk, generator=seeded())
    assert_mean(result.log_likelihood.exp(), exact_log_likelihood(model, *data).exp().item(), f"at chunk {chunk}")


@models
def test_one_chunk_is_the_bound_of_its_log_weights(build: Callable[[], c.Model]) -> None:
    model = spread(build())
    data = data_of(model, 6)
    for samples in (1, 20):
        result = evaluate(model, *data, samples=samples, generator=seeded())
        log_w = log_weights(model, *data, mode=c.mode.Discrete(), samples=samples, generator=seeded()).log_w.detach()
        torch.testing.assert_close(result.log_likelihood, bound(log_w), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(result.effective_sample_size, effective_sample_size(log_w), rtol=1e-12, atol=1e-12)


@models
def test_several_chunks_are_the_bound_of_all_their_log_weights(build: Callable[[], c.Model]) -> None:
    model = spread(build())
    data = data_of(model, 3)
    result = evaluate(model, *data, samples=17, chunk=7, generator=seeded())
    generator, log_w = seeded(), []
    for point in range(3):
        part = [tensor[point : point + 1] for tensor in data]
        drawn = [
            log_weights(model, *part, mode=c.mode.Discrete(), samples=samples, generator=generator).log_w.detach()
            for samples in (6, 6, 5)
        ]
        log_w.append(torch.cat(drawn))
    torch.testing.assert_close(result.log_likelihood, bound(torch.cat(log_w, 1)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        result.effective_sample_size, effective_sample_size(torch.cat(log_w, 1)), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("chunk", [1, 7, 64, 16_384])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
def test_hundreds_of_units_with_their_posterior_have_a_known_likelihood(chunk: int, dtype: torch.dtype) -> None:
    model, log_likelihood = of_pairs(300)
    x = torch.randint(2, (5, 600)).to(dtype)
    result = evaluate(model, x, samples=20, chunk=chunk)
    torch.testing.assert_close(result.log_likelihood, log_likelihood(x), rtol=1e-12, atol=0)
    torch.testing.assert_close(result.effective_sample_size, torch.full((5,), 20.0).double(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64, torch.float16, torch.float64])
def test_bits_of_any_dtype_have_the_same_likelihood(dtype: torch.dtype) -> None:
    model = c.density("3H-5V")
    (x,) = data_of(model, 4)
    torch.testing.assert_close(exact_log_likelihood(model, x.to(dtype)), exact_log_likelihood(model, x))
    torch.testing.assert_close(
        evaluate(model, x.to(dtype), samples=5, generator=seeded()).log_likelihood,
        evaluate(model, x, samples=5, generator=seeded()).log_likelihood,
    )


def test_impossible_data_have_a_log_likelihood_of_minus_infinity() -> None:
    certain = torch.tensor([math.inf, 0.0], dtype=torch.float64)

    def p(draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=torch.zeros(len(x), 1)))
        return draw("x", c.Bernoulli(logits=certain + 0 * z), observed=x)

    x = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    result = evaluate(c.Model(p), x, samples=9, chunk=4)
    assert result.log_likelihood.tolist() == [pytest.approx(math.log(0.5)), -math.inf]
    assert result.effective_sample_size.tolist() == [pytest.approx(9), 0]
    assert (result.nll, result.standard_error) == (math.inf, math.inf)
    assert exact_log_likelihood(c.Model(p), x).tolist() == [pytest.approx(math.log(0.5)), -math.inf]


def test_weights_far_below_what_floats_hold_are_added_without_underflow() -> None:
    logits = torch.full((3000,), 5.0, dtype=torch.float64)

    def p(draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=torch.zeros(len(x), 1)))
        return draw("x", c.Bernoulli(logits=logits + 0 * z), observed=x)

    result = evaluate(c.Model(p), torch.zeros(2, 3000), samples=5, chunk=2)
    expected = c.Bernoulli(logits=logits).log_prob(torch.zeros(3000)).sum()
    assert expected < -10_000
    torch.testing.assert_close(result.log_likelihood, expected.expand(2))
    torch.testing.assert_close(result.effective_sample_size, torch.full((2,), 5.0, dtype=torch.float64))


# --- the discrete graph, and nothing but it ---


def test_latents_are_drawn_as_states_and_not_relaxed() -> None:
    seen: list[Tensor] = []
    model, _ = of_pairs(4, seen)
    evaluate(model, torch.zeros(3, 8), samples=30, chunk=20)
    assert seen
    assert all(((state == 1) | (state == -1)).all() for state in seen)


def test_same_generator_gives_the_same_result() -> None:
    model = spread(c.density("2H-3H-5V"))
    (x,) = data_of(model, 5)
    first, again, other = (evaluate(model, x, samples=30, chunk=17, generator=seeded(seed)) for seed in (1, 1, 2))
    assert first.log_likelihood.equal(again.log_likelihood)
    assert first.effective_sample_size.equal(again.effective_sample_size)
    assert not first.log_likelihood.isclose(other.log_likelihood).any()


def test_without_a_generator_the_global_one_is_used_and_with_one_it_is_not() -> None:
    model = spread(c.density("3H-5V"))
    (x,) = data_of(model, 5)
    torch.manual_seed(3)
    first = evaluate(model, x, samples=30)
    torch.manual_seed(3)
    evaluate(model, x, samples=30, generator=seeded())
    assert evaluate(model, x, samples=30).log_likelihood.equal(first.log_likelihood)


# --- the model is left alone ---


def is_in_training(model: c.Model) -> list[bool]:
    return [module.training for module in model.modules()]


def test_modules_are_evaluated_and_afterwards_as_they_were() -> None:
    model = c.density("2H-3H~5V")
    model.q.layers[0].eval()
    before = is_in_training(model)
    assert len(set(before)) == 2
    offset = model.q.centres[0].offset
    offset.fill_(0.25)
    version = offset._version
    evaluate(model, torch.zeros(4, 5), samples=10)
    exact_log_likelihood(model, torch.zeros(4, 5))
    assert is_in_training(model) == before
    assert (offset == 0.25).all()
    assert offset._version == version
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("function", [evaluate, exact_log_likelihood])
def test_modules_are_as_they_were_after_an_error(function: Callable[..., object], error: type[BaseException]) -> None:
    class Failing(nn.Module):
        def forward(self, draw: c.Draw, x: Tensor) -> None:
            assert not self.training
            raise error

    model = c.Model(c.density("2H-5V").p, Failing())
    model.p.visible.eval()
    before = is_in_training(model)
    with pytest.raises(error):
        function(model, torch.zeros(4, 5))
    assert is_in_training(model) == before
    assert torch.is_grad_enabled()


def test_two_threads_evaluate_in_evaluation_mode_and_leave_the_modules_as_they_were() -> None:
    starts, ends = Barrier(2, timeout=60), {"first": Event(), "second": Event()}
    found: dict[str, list[bool]] = {}

    class Waiting(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, draw: c.Draw, x: Tensor) -> object:
            name = current_thread().name
            if name in ends and name not in found:
                starts.wait()  # both evaluate from here on
                ends[name].wait(60)
                found[name] = is_in_training(model)
            return self.inner(draw, x)

    parts = c.density("2H-3H~5V")
    model = c.Model(parts.p, Waiting(parts.q))
    parts.q.layers[0].eval()
    before = is_in_training(model)
    given = {"target": evaluate, "args": (model, torch.zeros(4, 5)), "kwargs": {"samples": 3}}
    threads = [Thread(**given, name=name) for name in ends]
    for thread in threads:
        thread.start()
    for name, thread in zip(ends, threads, strict=True):
        ends[name].set()
        thread.join()
    assert is_in_training(model) == before
    assert len(found) == 2
    assert not any(found["first"] + found["second"])


# --- memory ---


def result_of(*log_likelihood: float, samples: int = 50_000) -> Likelihood:
    found = torch.tensor(log_likelihood, dtype=torch.float64)
    return Likelihood(found, torch.full_like(found, 1811.6), samples, seconds=41.23)


def test_result_is_told_in_one_line() -> None:
    result = result_of(-92.0, -91.0, -93.0, -92.0)
    assert (result.mean, result.nll) == (-92, 92)
    assert result.standard_error == pytest.approx(math.sqrt(2 / 3) / 2)
    assert str(result) == "NLL 92.00 ± 0.41 (50,000 samples, mean effective sample size 1,812, 41.2 s)"
    assert "(1 sample," in str(result_of(-1.0, samples=1))
    survey = replace(result, effective_sample_size=result.effective_sample_size[:3])
    assert "(50,000 samples for 3 of 4 data points, mean effective sample size 1,812," in str(survey)


@pytest.mark.parametrize(("effective", "is_loose"), [(9.94, True), (10.0, False)])
def test_a_loose_result_says_so(effective: float, is_loose: bool) -> None:
    result = result_of(-92.0, -91.0)
    text = str(replace(result, effective_sample_size=torch.full_like(result.effective_sample_size, effective)))
    sentence = "The NLL would fall with more samples: the mean effective sample size is below 10."
    end = (
        f"mean effective sample size 9.9, 41.2 s). {sentence}" if is_loose else "mean effective sample size 10, 41.2 s)"
    )
    assert text.endswith(end)


def test_a_result_from_few_samples_that_all_count_is_not_loose() -> None:
    result = result_of(-92.0, -91.0, samples=9)
    for effective, is_loose in ((8.9, False), (6.0, True)):
        sizes = torch.full_like(result.effective_sample_size, effective)
        assert ("more samples" in str(replace(result, effective_sample_size=sizes))) == is_loose


def test_standard_error_of_a_single_data_point_is_infinite() -> None:
    assert result_of(-92.0).standard_error == math.inf
    assert str(result_of(-92.0)).startswith("NLL 92.00 ± inf (")


def test_result_is_in_double_precision_with_one_number_for_each_data_point() -> None:
    result = evaluate(c.density("2H-5V"), torch.zeros(3, 5), samples=10, chunk=7)
    for found in (result.log_likelihood, result.effective_sample_size):
        assert found.shape == (3,)
        assert found.dtype == torch.float64
        assert not found.requires_grad
    assert result.samples == 10
    assert result.seconds > 0


def test_progress_is_shown_on_stderr_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = c.density("2H-5V"), torch.zeros(3, 5)
    shown = evaluate(model, x, samples=10, chunk=7, generator=seeded(), progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "log-likelihood" in captured.err
    assert "100%" in captured.err
    quiet = evaluate(model, x, samples=10, chunk=7, generator=seeded())
    assert capsys.readouterr() == ("", "")
    assert quiet.log_likelihood.equal(shown.log_likelihood)


def test_progress_without_rich_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError) as caught:
        evaluate(c.density("2H-5V"), torch.zeros(3, 5), progress=True)
    assert str(caught.value) == f"progress needs rich, which is not installed: {install_command('command')}"


# --- bad input ---
