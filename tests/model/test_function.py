"""Models whose p and q are functions: their parameters are found, and what cannot work is refused."""

import copy
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import concretely as c

ENCODER, DECODER = nn.Linear(4, 2), nn.Linear(2, 4)


def generative(draw: c.Draw, x: Tensor | None = None) -> Tensor:
    """Two bits, then four."""
    z = draw("z", c.Bernoulli(logits=torch.tensor([0.3, -0.4])))
    return draw("x", c.Bernoulli(logits=DECODER(z)), observed=x)


def inference(draw: c.Draw, x: Tensor) -> None:
    """Two bits of four."""
    draw("z", c.Bernoulli(logits=ENCODER(x)))


def test_a_model_of_functions_is_not_copied() -> None:
    with pytest.raises(TypeError, match=r"^a model must have modules as p and q to be copied or pickled"):
        copy.deepcopy(c.Model(generative, inference))


def _wrapped(network: nn.Module) -> Any:
    return lambda value: network(value)


WAYS = ["closures", "default", "list", "object", "nested", "callable", "partial", "method"]
WAYS += ["module", "class", "helper", "slots", "inherited"]


@pytest.mark.parametrize("way", WAYS)
def test_the_parameters_of_a_function_are_found(way: str) -> None:
    first, second = nn.Linear(2, 3), nn.Linear(3, 4)
    one, two = _wrapped(first), _wrapped(second)
    holder, layers = SimpleNamespace(first=first, second=second), [first, {"second": second}]
    package = ModuleType("package")
    package.networks = ModuleType("package.networks")  # type: ignore[attr-defined]
    vars(package.networks).update(first=first, second=second, other=nn.Linear(1, 1))

    class Called:
        def __call__(self, draw: c.Draw, x: Tensor) -> Tensor:
            return second(first(x))

    class Owner:
        def __init__(self) -> None:
            self.networks = layers

        def program(self, draw: c.Draw, x: Tensor) -> Tensor:
            return x

    class Helped:
        def program(self, draw: c.Draw, x: Tensor) -> Tensor:
            return self._helper(x)

        def _helper(self, x: Tensor) -> Tensor:
            return second(self._static_helper(x))

        @staticmethod
        def _static_helper(x: Tensor) -> Tensor:
            return first(x)

    class Slotted:
        __slots__ = ("networks",)

        def __call__(self, draw: c.Draw, x: Tensor) -> Tensor:
            return x

    class Heir(Called):
        pass

    class Namespace:
        pass

    Namespace.first, Namespace.second = first, second  # type: ignore[attr-defined]
    slotted = Slotted()
    slotted.networks = layers
    programs: dict[str, Any] = {
        "closures": lambda draw, x: two(one(x)),
        "default": lambda draw, x, f=first, *, g=second: g(f(x)),
        "list": lambda draw, x: layers[1]["second"](layers[0](x)),  # type: ignore[index, operator]
        "object": lambda draw, x: holder.second(holder.first(x)),
        "nested": lambda draw, x: [(lambda: second(first(x)))() for _ in range(2)],
        "callable": Called(),
        "partial": partial(lambda f, g, draw, x: g(f(x)), first, g=second),
        "method": Owner().program,
        "module": lambda draw, x: package.networks.second(package.networks.first(x)),
        "class": lambda draw, x: Namespace.second(Namespace.first(x)),  # type: ignore[attr-defined]
        "helper": Helped().program,
        "slots": slotted,
        "inherited": Heir(),
    }
    found = {id(parameter) for parameter in c.Model(programs[way]).parameters()}
    assert found == {id(parameter) for parameter in (*first.parameters(), *second.parameters())}


def test_a_model_refuses_a_tensor_that_it_cannot_train() -> None:
    logits = torch.zeros(2, requires_grad=True)
    with pytest.raises(TypeError, match=r"^p must use parameters that a model can find, got the tensor 'logits'"):
        c.Model(lambda draw: draw("z", c.Bernoulli(logits=logits)))


def test_a_model_that_needs_its_data_says_so_when_it_is_sampled() -> None:
    def p(draw: c.Draw, x: Tensor) -> Tensor:
        return draw("x", c.Bernoulli(logits=draw("z", c.Bernoulli(logits=torch.zeros(2)))), observed=x)

    with pytest.raises(TypeError, match=r"^p must have a default, such as None, for inputs that are not the context"):
        c.Model(p).sample(3)


def test_a_module_beside_a_function_trains_with_it() -> None:
    class Inference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(4, 2)

        def forward(self, draw: c.Draw, x: Tensor) -> None:
            draw("z", c.Bernoulli(logits=self.encoder(x)))

    model = c.Model(generative, Inference())
    model(torch.ones(3, 4), estimator=c.RLOO(), samples=5).loss.backward()
    assert len(list(model.parameters())) == 4
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_module_that_p_and_q_share_counts_once() -> None:
    shared = nn.Linear(2, 2)

    def p(draw: c.Draw, x: Tensor) -> None:
        z = draw("z", c.Bernoulli(logits=torch.zeros(2)))
        draw("x", c.Bernoulli(logits=shared(z)), observed=x)

    assert len(list(c.Model(p, lambda draw, x: draw("z", c.Bernoulli(logits=shared(x)))).parameters())) == 2
