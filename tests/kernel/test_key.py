"""A key of two numbers draws what the same key in memory draws, and a draw has one autograd node with its density."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import concretely as c
from concretely.functional import bernoulli, categorical, draw, exp_concrete, exp_logistic_normal, logistic
from concretely.functional import key as source
from concretely.functional.key import numbers_of
from concretely.functional.log_simplex import noise_of_key
from concretely.functional.noise import Keys
from concretely.functional.slice import Slice
from tests.kernel import DEVICE, fast, kernel, launched

KEY = 2**62 + 5, 2**62 + 8
NODES: dict[str, Callable[[Tensor], Any]] = {
    "logistic": lambda logits: c.Logistic(logits=logits, temperature=0.5),
    "exp_concrete": lambda logits: c.ExpConcrete(logits=logits, temperature=0.5),
    "hypercube": lambda logits: c.HypercubeConcrete(logits=logits, temperature=0.5),
}
KERNELS = {"hypercube": "exp_concrete"}


class Seen(TorchDispatchMode):
    """A mode that sees every operation."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return function(*arguments, **(named or {}))


@contextmanager
def drawing(name: str) -> Iterator[None]:
    """Have kernels draw from one key of two numbers, as on a GPU."""
    with launched(name), mock.patch.object(draw, "_key", return_value=KEY):
        yield


def given(name: str) -> Tensor:
    return torch.randn((8, 5) if name == "logistic" else (8, 5, 4), device=DEVICE, requires_grad=True)


@kernel
@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("law", [logistic, exp_concrete, exp_logistic_normal, bernoulli, categorical], ids=repr)
def test_two_numbers_draw_what_a_tensor_of_them_does(law: Any, length: int) -> None:
    logits = torch.randn((1, 21, 4) if law.category_axes else (1, 21), device=DEVICE)
    is_node = law in (logistic, exp_concrete, exp_logistic_normal)
    temperature = [torch.tensor([0.5], dtype=torch.float64, device=DEVICE)] * is_node
    squash = "none" if is_node else "one-hot" if law.category_axes else "bit"
    kernels = getattr(fast(law.draw.kernel), law.draw.__name__)
    found, expected = (
        kernels(logits, *temperature, key, 4, squash, length) for key in (KEY, torch.tensor([KEY], device=DEVICE))
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@kernel
@pytest.mark.parametrize("name", NODES)
def test_a_draw_and_its_log_density_are_one_autograd_node(name: str) -> None:
    logits = given(name)
    with drawing(KERNELS.get(name, name)):
        value, log_prob = NODES[name](logits).rsample_and_log_prob((3,))
        assert type(log_prob.grad_fn).__name__ == type(value.grad_fn).__name__ == "KernelBackward"
        (alone,) = torch.autograd.grad(log_prob.sum(), logits, retain_graph=True)
        assert torch.equal(alone, torch.zeros_like(logits))
        by = torch.randn_like(value)
        both = torch.autograd.grad((value, log_prob), logits, (by, torch.ones_like(log_prob)), retain_graph=True)
        assert torch.equal(both[0], torch.autograd.grad(value, logits, by, retain_graph=True)[0])
        log_prob.mul_(2)  # modified in place, it still has its gradient, and the value its own
        last = torch.autograd.grad((value, log_prob), logits, (by, torch.ones_like(log_prob)))
    assert torch.equal(both[0], last[0])


@kernel
@pytest.mark.parametrize("name", NODES)
def test_second_derivatives_are_those_of_the_definition_on_the_same_key(name: str) -> None:
    logits, key = given(name), torch.tensor([KEY], device=DEVICE)
    node, of_key = NODES[name](logits), logistic.noise_of_key if name == "logistic" else noise_of_key
    noise = of_key(key, 1, 40, *logits.shape[2:]).view(logits.shape)

    def derivatives(value: Tensor, by: Tensor) -> list[Tensor]:
        (slope,) = torch.autograd.grad(value.square(), logits, by, create_graph=True)
        return [value, slope, *torch.autograd.grad(slope.square().sum(), logits)]

    with drawing(KERNELS.get(name, name)):
        drawn = node.rsample_and_log_prob()[0]
        by = torch.randn_like(drawn)
        found = derivatives(drawn, by)
    torch.testing.assert_close(found, derivatives(node.push(noise), by), rtol=1e-3, atol=1e-3)


@kernel
def test_torch_sees_a_key_of_two_numbers_as_a_tensor() -> None:
    logits = given("logistic")
    with drawing("logistic"):
        drawn = c.Logistic(logits=logits, temperature=0.5).drawn((3,), axes=1)
        assert drawn.summed is not None
        expected = drawn.summed(0)
        with Seen():
            found = drawn.summed(0)
    torch.testing.assert_close(found, expected)


def test_numbers_are_of_a_generator_that_moves_on() -> None:
    generator = mock.Mock(spec=torch.Generator)
    generator.initial_seed.return_value, generator.get_offset.return_value = 7, 12
    seed, nonce = numbers_of(generator, torch.device("cuda:0"))
    generator.set_offset.assert_called_once_with(16)
    assert 2**62 <= seed < 2**63
    assert nonce == 12 | 2**62


@pytest.mark.parametrize("reason", ["none", "ranks", "keys", "captured", "traced", "watched", "other device"])
def test_a_draw_that_is_recorded_has_its_key_in_memory(reason: str) -> None:
    in_memory = torch.tensor([[1, 2]])
    logits = mock.Mock(spec=Tensor, is_cuda=True, device=torch.device("cuda:0"))
    generator = mock.Mock(spec=torch.Generator, device=torch.device("cuda:0"))
    generator = Keys(torch.tensor([[1, 2]])) if reason == "keys" else generator
    if reason == "ranks":
        generator = Slice(generator, rank=0, ranks=2)
    if reason == "other device":
        generator.device = torch.device("cpu")
    with (
        mock.patch.object(draw, "is_plain", return_value=True),
        mock.patch.object(draw, "is_watched", return_value=reason == "watched"),
        mock.patch("torch.cuda.is_current_stream_capturing", return_value=reason == "captured"),
        mock.patch("torch._C._get_tracing_state", return_value=object() if reason == "traced" else None),
        mock.patch.object(source, "numbers_of", return_value=KEY),
        mock.patch.object(source, "key_of", return_value=in_memory),
        mock.patch.object(draw, "key_of", return_value=in_memory),
    ):
        assert draw._key(generator, logits) is (KEY if reason in ("none", "ranks") else in_memory)
