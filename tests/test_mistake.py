"""The mistakes of a first afternoon are answered in one sentence that says what to do."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (as users write it)

import concretely as c
from tests.test_program import BATCH, convolutional_autoencoder

pytestmark = pytest.mark.unchecked
X = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(0))
ENCODER, DECODER = nn.Linear(4, 2), nn.Linear(2, 4)


def bits(draw: c.Draw, x: Tensor) -> Tensor:
    """Four bits."""
    return draw("z", c.Bernoulli(logits=x))


def mistaken(program: Callable[..., Any], *inputs: Any, **options: Any) -> Callable[[], object]:
    """Estimate a program that is wrong."""
    return lambda: c.estimate(program, *inputs, **{"estimator": c.RLOO(), "samples": 3, **options})


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "parameter without a name": (
        lambda: c.Bernoulli(0.3),
        "Bernoulli must be given logits= or probs=, got arguments without a name",
    ),
    "temperature first, as in torch": (
        lambda: c.BinaryConcrete(0.5, torch.zeros(3)),
        "BinaryConcrete must be given logits= or probs= and temperature=, got arguments without a name",
    ),
    "no temperature": (
        lambda: c.Concrete(logits=torch.zeros(3)),
        "temperature must be a number or a floating tensor, got none",
    ),
    "string for a number": (
        lambda: c.BinaryConcrete(logits=torch.zeros(3), temperature="0.5"),
        "temperature must be a number or a floating tensor, got str",
    ),
    "string for a temperature of an estimator": (
        lambda: c.Pathwise("0.5"),
        "temperature must be a number or a tensor, got str",
    ),
    "schedule for a temperature": (
        lambda: c.Pathwise(c.Annealing(1.0, 0.5, steps=3)),
        "temperature must be a number or a tensor, got Annealing: call it with a step, or pass it to fit as "
        "temperature=",
    ),
    "swapped arguments of tile": (
        lambda: c.tile(torch.zeros(6), torch.zeros(3)),
        "the rows of x must divide those of like, got 6 and 3: are the arguments swapped?",
    ),
    "estimator that is a class": (
        lambda: convolutional_autoencoder()(torch.zeros(2, 1, 4, 4), estimator=c.RLOO),
        "estimator must be an estimator, such as Pathwise() or RLOO(), got the class RLOO: write RLOO(...)",
    ),
    "mode that is a class": (
        lambda: c.run(bits, X, mode=c.mode.Discrete),
        "mode must be a mode, such as concretely.mode.Discrete(), got the class Discrete: call it",
    ),
    "seed for a generator": (
        mistaken(lambda draw, x: bits(draw, x).sum(-1), X, generator=0),
        "generator must be a torch.Generator, such as torch.Generator().manual_seed(0), got int",
    ),
    "too many batch dimensions": (
        mistaken(bits, torch.zeros(2), batch_dims=2),
        "batch_dims must be at most 1, the axes of the first input, got 2",
    ),
    "draw without a name": (
        mistaken(lambda draw, x: draw(c.Bernoulli(logits=x)), X),
        "draw must be given a name and a distribution, got Bernoulli and NoneType",
    ),
    "draw from logits": (
        mistaken(lambda draw, x: draw("z", x), X),
        "draw must be given a name and a distribution, got str and Tensor",
    ),
    "tensor for a program": (
        mistaken(X),
        "a program must be a function of draw and inputs, or a module, got Tensor",
    ),
    "program without draw": (
        mistaken(lambda x: x.sum(-1), X),
        "a program must be callable with draw and 1 input, got '<lambda>': too many positional arguments",
    ),
    "forgotten inputs": (
        mistaken(bits),
        "a program must be callable with draw and 0 inputs, got 'bits': missing a required argument: 'x'",
    ),
    "model that is run as a program": (
        lambda: c.run(c.density("2H-4V"), X, mode=c.mode.Discrete()),
        "a program must be callable with draw and 1 input, got 'Model': missing a required",
    ),
    "cost of whole numbers": (
        mistaken(lambda draw, x: bits(draw, x).argmax(-1), X),
        "a program must return a floating cost, got torch.int64: convert it with cost.float()",
    ),
    "cost in a dictionary": (
        mistaken(lambda draw, x: {"cost": bits(draw, x).sum(-1)}, X),
        "a program must return a cost of shape (18,), a number for each sample and data point, or a tuple whose first "
        "entry is one, got dict",
    ),
    "cost that was averaged over rows": (
        mistaken(lambda draw, x: bits(draw, x).mean(), X),
        "a program must return a cost of shape (18,), a number for each sample and data point, got shape (): use "
        "reduction='none', not an average over rows",
    ),
    "cost that was averaged over samples": (
        mistaken(lambda draw, x: bits(draw, x).sum(-1).view(3, BATCH).mean(0), X),
        "a program must return a cost of shape (18,), a number for each sample and data point, got shape (6,)",
    ),
    "cost without a gradient": (
        mistaken(lambda draw, x: bits(draw, ENCODER(x)).argmax(-1).float(), X, estimator=c.Pathwise(0.5)),
        "a cost must have a gradient with respect to the draws for this estimator, got one without: use an estimator "
        "that needs only its values, such as RLOO() or Reinforce()",
    ),
    "notation that is a number": (lambda: c.density(20), "notation must be a string, got int"),
}


@pytest.mark.parametrize(("call", "sentence"), list(MISTAKES.values()), ids=list(MISTAKES))
def test_mistakes_are_answered_in_one_sentence(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        call()
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


CELL = nn.GRUCell(4, 4)
LABELS = torch.zeros(BATCH, dtype=torch.long)
UNTILED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda z, x: z + x,
    "concatenation": lambda z, x: torch.cat([z, x], 1),
    "cross-entropy": lambda z, x: F.cross_entropy(z, LABELS, reduction="none"),
    "binary cross-entropy": lambda z, x: F.binary_cross_entropy_with_logits(z, x.sigmoid(), reduction="none"),
    "recurrent cell": CELL,
    "log probability of torch": lambda z, x: torch.distributions.Normal(z, 1.0).log_prob(x),
    "log probability of ours": lambda z, x: c.Bernoulli(logits=z).log_prob((x > 0).float()),
    "gather": lambda z, x: x.gather(1, z.long()),
    "mask": lambda z, x: x[z[:, 0] > 0],
    "batched product": lambda z, x: torch.bmm(z.unsqueeze(1), x.unsqueeze(2)),
}


@pytest.mark.parametrize("meet", UNTILED.values(), ids=UNTILED)
def test_an_input_that_meets_a_draw_without_tile_is_explained(meet: Callable[[Tensor, Tensor], Tensor]) -> None:
    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return meet(bits(draw, x), x).flatten(1).sum(1)

    with pytest.raises(ValueError, match=r"^a tensor with 6 rows, .* met one with 18 rows, .* concretely.tile\(x, z\)"):
        mistaken(program, X)()


def test_other_errors_of_shapes_get_a_note() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        found, _ = attention(bits(draw, x).unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1))
        return found.sum((1, 2))

    with pytest.raises(RuntimeError, match="is invalid for input of size") as error:
        mistaken(program, X)()
    assert re.match(r"Perhaps a tensor with 6 rows, .* met one with 18 rows", error.value.__notes__[0])


def test_the_error_of_a_program_stays_as_it_is() -> None:
    def program(draw: c.Draw, x: Tensor) -> Tensor:
        raise error

    for error in (TypeError("no 6 of 18"), ValueError("no 6 of 18"), KeyError("no 6 of 18")):
        with pytest.raises(type(error), match="no 6 of 18") as raised:
            mistaken(program, X)()
        assert raised.value is error


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


def test_a_trace_names_what_it_has() -> None:
    trace = c.run(lambda draw: draw("code", c.Bernoulli(logits=torch.zeros(2))), mode=c.mode.Discrete())
    with pytest.raises(KeyError, match="got 'cod'; did you mean 'code'"):
        trace["cod"]
    assert "cod" not in trace
