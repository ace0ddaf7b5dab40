"""Variables in exported programs with a dynamic number of rows, and in compiled ones with a changing temperature."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import concretely as c
from concretely.functional.draw import of_member
from tests.budget import assert_frequency
from tests.cases import CONTINUOUS, EDGE, MASSES, TEMPERED, Case, exhaustive

pytestmark = [EDGE, pytest.mark.unchecked]


def some(*cases: Case, names: tuple[str, ...]) -> list[Any]:
    """Cases, of which `make test` runs those with these names."""
    return [*(each for each in cases if each.name in names), *exhaustive(*(e for e in cases if e.name not in names))]


class Drawing(nn.Module):
    """Draws and scores a variable."""

    def __init__(self, case: Case, *temperature: float) -> None:
        super().__init__()
        self.case, self.temperature = case, temperature

    def forward(self, logits: Tensor) -> tuple[Tensor, ...]:
        """The value and its log probabilities."""
        variable = self.case.build(logits, *self.temperature)
        if self.case in MASSES:
            return variable.sample_and_log_prob()
        value, log_prob = variable.rsample_and_log_prob()
        return value, log_prob, variable.log_prob(value)


def sizes(case: Case) -> tuple[int, ...]:
    """Numbers of categories: elements of a row that four divides, and others."""
    return (2,) if case.determined == 2 else (3, 4) if case.has_categories and case.name != "Hypercube" else (4,)


@pytest.mark.parametrize("strict", [False, *exhaustive(True)])
@pytest.mark.parametrize(
    "case", some(*MASSES, *CONTINUOUS, names=("Bernoulli", "Concrete")), ids=lambda case: case.name
)
def test_exported_draw_takes_any_number_of_rows(case: Case, strict: bool) -> None:
    temperature = () if case in MASSES else (0.5,)
    for n in sizes(case)[: 1 if strict else None]:
        program = torch.export.export(
            Drawing(case, *temperature),
            (case.logits(n, batch=(5,), dtype=torch.float32),),
            dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=1024)},),
            strict=strict,
        ).module()
        for rows in (2, 3, 4, 7, 8, 30):
            logits = case.logits(n, batch=(rows,), dtype=torch.float32)
            variable = case.build(logits, *temperature)
            value, *log_probs = program(logits)
            assert value.shape == variable.batch_shape + variable.event_shape
            assert variable.support.check(value).all()
            assert all(log_prob.shape == (rows,) and log_prob.isfinite().all() for log_prob in log_probs)
            torch.testing.assert_close(log_probs[-1], variable.log_prob(value), rtol=1e-5, atol=1e-5)
            assert not torch.equal(program(logits)[0], value) or case in MASSES


def test_exported_draw_of_one_row_takes_any_length() -> None:
    for case in (each for each in (*MASSES, *TEMPERED) if each.name in ("Bernoulli", "BinaryConcrete")):
        program = torch.export.export(
            Drawing(case, *(() if case in MASSES else (0.5,))),
            (torch.zeros(6),),
            dynamic_shapes=({0: torch.export.Dim("length", min=2, max=1024)},),
        ).module()
        for length in (2, 3, 4, 5, 9):
            assert program(torch.zeros(length))[0].shape == (length,)


@pytest.mark.parametrize("case", some(*TEMPERED, names=("BinaryConcrete",)), ids=lambda case: case.name)
def test_compiled_draw_takes_any_number_of_temperatures(case: Case) -> None:
    def loss(logits: Tensor, temperature: float) -> Tensor:
        value, log_prob, score = Drawing(case, temperature)(logits)
        return value.sum() + log_prob.sum() + score.sum()

    logits = case.logits(case.determined, batch=(5,), dtype=torch.float32).requires_grad_()
    temperature = c.Annealing(start=1.0, end=0.5, steps=12)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for step in range(12):
        (gradient,) = torch.autograd.grad(compiled(logits, temperature(step)), logits)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("diverges", [False, *exhaustive(True)])
def test_compiled_properties_take_any_number_of_temperatures(diverges: bool) -> None:
    def properties(logits: Tensor, temperature: float) -> tuple[Tensor, ...]:
        node = c.Logistic(logits=logits, temperature=temperature)
        if diverges:
            return (torch.distributions.kl_divergence(node, c.Logistic(logits=-logits, temperature=0.5)),)
        return node.entropy(), node.variance, node.temperature, of_member(logits, temperature)

    compiled = torch.compile(properties, fullgraph=True, backend="aot_eager")
    for step in range(12):
        temperature = 0.6 + 0.1 * step
        torch.testing.assert_close(compiled(torch.ones(3), temperature), properties(torch.ones(3), temperature))


def test_law_of_an_exported_draw_is_right() -> None:
    logits = torch.linspace(-3, 3, 7)
    program = torch.export.export(
        Drawing(MASSES[0]), (logits.expand(6, 7),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    value, _ = program.module()(logits.expand(5001, 7))
    for column, probability in zip(value.T, torch.sigmoid(logits), strict=True):
        assert_frequency(int(column.sum()), of=5001, probability=probability.item())
