"""A study leaves everything as it was, is printed as a table, and refuses bad input before any work."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import concretely as c
from concretely.evaluation.finding import Finding, GradientStudy
from concretely.evaluation.gradient import gradient_study
from concretely.evaluation.reference import Aim, Reference
from concretely.evaluation.tally import Measure
from tests.evaluation.test_gradient import model_and_data, program, seeded


def test_the_same_generator_gives_the_same_study_and_no_other_randomness_is_used() -> None:
    model, x = model_and_data()
    estimators = {"nvil": c.NVIL(model, x), "concrete": c.Pathwise(0.5), "vimco": (c.VIMCO(), 2)}
    state = torch.get_rng_state()
    first, second = (gradient_study(model, x, estimators=estimators, repeats=20, generator=seeded(3)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    for name in estimators:
        assert_close(first[name].mean, second[name].mean, rtol=0, atol=0)
        assert first[name].variance == second[name].variance
        assert first[name].squared_bias == second[name].squared_bias
        assert first[name].seconds > 0


def test_a_study_leaves_everything_as_it_was() -> None:
    model = c.density("2H-2H-3V")
    x = torch.tensor([[0.0, 1.0, 1.0]])
    nvil = c.NVIL(model, x)
    model.p.eval()
    grads = {parameter: torch.randn_like(parameter) for parameter in list(model.parameters())[::2]}
    for parameter, grad in grads.items():
        parameter.grad = grad.clone()
    before = {name: tensor.clone() for part in (model, nvil) for name, tensor in part.state_dict().items()}
    flags = [module.training for module in (*model.modules(), *nvil.modules())]
    seen = []

    def look(module: nn.Module, *_: Any) -> None:
        seen.append((model.q.training, nvil.training))

    model.q.register_forward_pre_hook(look)
    with torch.no_grad():
        gradient_study(model, x, estimators={"nvil": nvil, "concrete": c.Pathwise(0.5)}, repeats=3)
    assert set(seen) == {(False, True)}
    with pytest.raises(ValueError, match="samples must be at least 2 for VIMCO"):
        gradient_study(model, x, estimators={"nvil": nvil, "vimco": c.VIMCO()})
    assert [module.training for module in (*model.modules(), *nvil.modules())] == flags
    for part in (model, nvil):
        for name, tensor in part.state_dict().items():
            assert_close(tensor, before[name], rtol=0, atol=0)
    for parameter in (*model.parameters(), *nvil.parameters()):
        assert (parameter.grad is None) == (parameter not in grads)
        if parameter in grads:
            assert torch.equal(parameter.grad, grads[parameter])


def test_only_the_parameters_that_count_are_counted() -> None:
    model, x = model_and_data()

    def mean(estimator: c.Estimator, **options: Any) -> tuple[Tensor, ...]:
        return gradient_study(model, x, estimators={"it": estimator}, repeats=2, **options)["it"].mean

    assert [part.shape for part in mean(c.NVIL(model, x))] == [parameter.shape for parameter in model.parameters()]
    frozen, used, *_ = model.parameters()
    frozen.requires_grad_(False)
    assert len(mean(c.Reinforce())) == len(list(model.parameters())) - 1
    unused = torch.zeros(5, requires_grad=True)
    zero, found = mean(c.Reinforce(), parameters=iter([unused, used]))
    assert_close(zero, torch.zeros(5, dtype=torch.float64))
    assert found.any()


@dataclass
class Counting:
    """An estimator that counts its calls."""

    calls: int = 0

    def __call__(self, *arguments: Any, **options: Any) -> c.Estimate:
        self.calls += 1
        return c.Reinforce()(*arguments, **options)


def test_what_one_estimator_refuses_is_refused_before_any_work() -> None:
    target, counting = program(), Counting()
    with pytest.raises(ValueError, match=r"^objective must be `bound` for VIMCO"):
        gradient_study(
            target,
            estimators={"it": counting, "vimco": c.VIMCO()},
            samples=2,
            parameters=[target.logits],
            reference=counting,
        )
    assert counting.calls == 1
    gradient_study(target, estimators={"it": counting}, repeats=7, parameters=[target.logits])
    assert counting.calls == 1 + 1 + 7


def test_a_study_is_printed_as_a_table() -> None:
    gradient = (torch.tensor([3.0, 4.0], dtype=torch.float64),)
    exact = Reference(Aim(c.bound, 5), gradient, "Exact", repeats=1, error=0.0)
    sampled = Reference(Aim(c.average, 1), gradient, "RLOO", repeats=1000, error=3.0)
    findings = {
        "vimco": Finding(5, exact, gradient, Measure(-0.01, 0.02), 0.3, Measure(6.25, 0.25), 0.002),
        "hot": Finding(12, sampled, gradient, Measure(36.0, 0.1), 1e-5, Measure(400.0, 20.0), 0.11),
    }
    assert str(GradientStudy(findings)) == (
        "estimator  samples  objective    bias         noise   ms  ms × noise²\n"
        "vimco            5      bound  ≤ 0.04  0.5 ± 0.0099    2          0.5\n"
        "hot             12    average     1.5      5 ± 0.12  110        2,750\n"
        "\n"
        "gradient: of the bound of 5 samples, exact, of length 5\n"
        "gradient: of the average, from 1000 estimates by RLOO, of length 4 with an error of 3\n"
        "bias: of the mean estimate, relative to the gradient; ≤ x, an upper limit, where none is significant\n"
        "noise: the standard deviation of one estimate, relative to the gradient\n"
        "ms: the time of one estimate; ms × noise² is the time to average the noise down to 1"
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"estimators": {}}, "estimators must be a map from names to estimators, got {}"),
        ({"repeats": 1}, "repeats must be a whole number of at least 2, got 1"),
        ({"reference_repeats": 1}, "reference_repeats must be a whole number of at least 2, got 1"),
        ({"samples": 0}, "samples must be a positive whole number, got 0"),
        ({"estimators": {"rloo": (c.RLOO(), -1)}}, "samples must be a positive whole number, got -1"),
        *[
            (
                {"parameters": none},
                "parameters must hold at least one tensor, got none: pass those of a program that is not a module",
            )
            for none in (None, [])
        ],
        (
            {"parameters": [torch.zeros(1)]},
            "parameters must be tensors that require a gradient, got another at index 0",
        ),
        (
            {"parameters": [torch.zeros(1, requires_grad=True)]},
            "parameters must be used by the target, got none that is",
        ),
        (
            {"reference": c.RLOO(), "objective": c.bound, "samples": 2},
            "reference must estimate the bound, as 'score' does, got RLOO",
        ),
        (
            {"reference": c.VIMCO()},
            "objective must be `bound` for VIMCO: pass objective=bound if the cost is minus a log-weight",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(options: dict[str, Any], error: str) -> None:
    target = program()
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        gradient_study(target, **{"estimators": {"score": c.Reinforce()}, "parameters": [target.logits], **options})


def test_inputs_without_a_data_point_are_refused() -> None:
    layer = nn.Linear(2, 2)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return draw("b", c.Bernoulli(logits=layer(x))).sum(-1)

    given: dict[str, Any] = {"estimators": {"score": c.Reinforce()}, "parameters": layer.parameters()}
    with pytest.raises(ValueError, match=r"^inputs must have at least one data point, got none$"):
        gradient_study(program, torch.zeros(0, 2), **given)


def test_a_target_that_nothing_moves_has_no_gradient_to_study() -> None:
    def program(draw: c.Draw) -> Tensor:
        return draw("b", c.Bernoulli(logits=torch.zeros(2))).sum(-1)

    with pytest.raises(ValueError, match=r"^parameters must be used by the target, got none that is$"):
        gradient_study(program, estimators={"score": c.Reinforce()}, parameters=[torch.zeros(1, requires_grad=True)])


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"estimators": [c.Reinforce()]}, "estimators must be a map from names to estimators, got [Reinforce()]"),
        ({"parameters": [3]}, "parameters must be tensors that require a gradient, got another at index 0"),
        ({"repeats": 2.5}, "repeats must be a whole number of at least 2, got 2.5"),
        ({"repeats": True}, "repeats must be a whole number of at least 2, got True"),
        ({"samples": 1.0}, "samples must be a positive whole number, got 1.0"),
    ],
)
def test_values_of_another_type_are_refused_in_a_sentence(options: dict[str, Any], error: str) -> None:
    test_bad_input_is_refused_in_a_sentence(options, error)


@pytest.mark.unchecked
@pytest.mark.parametrize("it", [3, c.RLOO, (c.RLOO(), 4, 4)])
@pytest.mark.parametrize("role", ["estimators", "reference"])
def test_what_is_no_estimator_is_refused_in_a_sentence(role: str, it: Any) -> None:
    target = program()
    options = {"estimators": {"score": c.Reinforce()}, role: {"it": it} if role == "estimators" else it}
    with pytest.raises(
        TypeError, match=r"^estimator must be an estimator, such as .*, got (int|the class RLOO: .*|tuple)$"
    ):
        gradient_study(target, parameters=[target.logits], **options)


def test_progress_is_shown_on_stderr_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    model = c.density("1H-2V")
    for progress in (False, True):
        estimators = {"score": c.Reinforce()}
        c.gradient_study(model, torch.zeros(1, 2), estimators=estimators, repeats=2, progress=progress)
        shown = capsys.readouterr()
        assert not shown.out
        assert [title in shown.err for title in ("references", "estimators")] == [progress, progress]
