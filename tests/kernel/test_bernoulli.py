"""Binary units are those of the library and round the relaxed ones, on either path, batched and compiled."""

import math

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from concretely import Bernoulli, Hypercube
from concretely.functional import bernoulli, logistic
from tests.budget import assert_frequency
from tests.cases import LOGITS
from tests.kernel import DEVICE, DTYPES, PATHS, SIZES, TINY, assert_precise, kernel, key, launched, on, opcheck
from tests.kernel.test_logistic import logits_of, noise, one_temperature

SQUASHES = pytest.mark.parametrize("squash", ["bit", "corner"])
INFINITE = (-math.inf, *LOGITS, math.inf)


def law(logits: Tensor, shape: tuple[int, ...]) -> Bernoulli:
    """The variable of the library, in float64."""
    return Bernoulli(logits=logits.double().unsqueeze(1).expand(shape))


def bit(value: Tensor, squash: str) -> Tensor:
    """A state as 0 or 1."""
    return ((1 + value) / 2 if squash == "corner" else value).double()


@PATHS
@SQUASHES
def test_draws_are_those_of_the_library_up_to_infinite_logits(squash: str, path: str) -> None:
    logits, keys = torch.tensor([INFINITE], device=DEVICE), key(1)
    shape = (1, 50, len(INFINITE))
    with on(path, "bernoulli"):
        value, log_mass = bernoulli.draw(logits, keys, 50, squash)
    states = law(logits, shape)
    assert torch.equal(bit(value, squash), states.push(noise(keys, *shape[1:])))
    torch.testing.assert_close(log_mass.double(), states.log_prob(bit(value, squash)), rtol=1e-5, atol=TINY)
    if squash == "corner":
        corner = Hypercube(logits=logits.unsqueeze(-1), validate_args=False)
        assert torch.equal(value.squeeze(0).unsqueeze(-1), corner.push(noise(keys, *shape[1:]).float().squeeze(0)))
    else:
        assert torch.equal(value, bit(value, squash).float())


@PATHS
@SQUASHES
def test_scores_and_gradients_are_precise_in_the_tails(squash: str, path: str) -> None:
    logits = torch.tensor([INFINITE], device=DEVICE, requires_grad=True)
    value = torch.tensor([[0.0], [1.0]], device=DEVICE).expand(1, 2, len(INFINITE))
    value = 2 * value - 1 if squash == "corner" else value
    truth = law(logits.detach(), value.shape).log_prob(bit(value, squash))
    with on(path, "bernoulli"):
        found = bernoulli.score(value, logits, squash)
        slopes = [torch.autograd.grad(each.sum(), logits, retain_graph=True)[0] for each in found.unbind(1)]
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=TINY)
    for slope, sign in zip(slopes, (-1, 1), strict=True):
        true = sign * torch.sigmoid(-sign * logits.detach().double())
        torch.testing.assert_close(slope.double(), true, rtol=1e-5, atol=TINY)


@PATHS
def test_states_are_what_nodes_round_to(path: str) -> None:
    logits, keys, temperature = logits_of(3, 33), key(3), one_temperature(0.7).expand(3)
    with on(path, "bernoulli", "logistic"):
        value, _ = bernoulli.draw(logits, keys, 7, "bit")
        node, _, _ = logistic.draw(logits, temperature, keys, 7, "none")
    assert torch.equal(value, (node >= 0).float())


def test_states_follow_their_law() -> None:
    logits = torch.tensor([[-3.0, 0.0, 1.0]], device=DEVICE)
    value, _ = bernoulli.draw(logits, key(1), 100_000, "bit")
    for hits, probability in zip(value.sum((0, 1)).tolist(), logits.sigmoid()[0].tolist(), strict=True):
        assert_frequency(int(hits), of=100_000, probability=probability)


@kernel
@SQUASHES
@SIZES
def test_kernel_is_its_definition(shape: tuple[int, int, int], dtype: torch.dtype, squash: str) -> None:
    members, samples, units = shape
    logits, prior, keys = logits_of(members, units, dtype), logits_of(members, units, dtype), key(members)
    given, by = (logits.requires_grad_(), keys, samples, squash), torch.randn(shape, device=DEVICE)
    with launched("bernoulli"):
        found, defined = bernoulli.draw(*given), bernoulli.draw.definition(*given)
        value = found[0]
        assert torch.equal(value, defined[0])
        assert_precise(found[1], defined[1], law(logits.detach(), shape).log_prob(bit(value, squash)))
        slopes = [
            torch.autograd.grad(each, logits, by)[0] for each in (found[1], bernoulli.score(value, logits, squash))
        ]
        assert torch.equal(*slopes)
        narrow, wide = (prior.to(to).requires_grad_() for to in (None, torch.float64))
        truth = law(wide, shape).log_prob(bit(value, squash))
        found, defined = (score(value, narrow, squash) for score in (bernoulli.score, bernoulli.score.definition))
        assert_precise(found, defined, truth)
        for slope in (by, by[..., :1].expand(shape), by.transpose(0, 1).contiguous().transpose(0, 1)):
            slopes = [
                torch.autograd.grad(each, leaf, slope, retain_graph=True)[0]
                for each, leaf in ((found, narrow), (defined, narrow), (truth, wide))
            ]
            assert_precise(*slopes)


@PATHS
@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0)], ids=str)
def test_nothing_is_drawn_and_scored(shape: tuple[int, int, int], path: str) -> None:
    logits = logits_of(2, shape[2]).requires_grad_()
    with on(path, "bernoulli"):
        value, log_mass = bernoulli.draw(logits, key(2), shape[1], "bit")
        scores = bernoulli.score(value, logits, "bit")
        assert value.shape == log_mass.shape == scores.shape == shape
        for each in (log_mass, scores):
            assert torch.equal(torch.autograd.grad(each.sum(), logits)[0], torch.zeros_like(logits))


def loss(logits: Tensor, prior: Tensor, key: Tensor, squash: str = "corner") -> Tensor:
    """What uses all there is to draw and to score."""
    value, log_q = bernoulli.draw(logits, key, 5, squash)
    log_p = bernoulli.score(value, prior, squash)
    return ((log_p - log_q).sum(-1) * (1 + value.sum(-1))).square().mean()


@PATHS
@SQUASHES
def test_a_batch_of_programs_is_a_loop_over_them(squash: str, path: str) -> None:
    logits = torch.randn(2, 2, 6, device=DEVICE, requires_grad=True)
    prior = torch.randn(2, 6, device=DEVICE, requires_grad=True)
    keys = key(4).view(2, 2, 2)
    with on(path, "bernoulli"):
        together = vmap(lambda logits, key: loss(logits, prior, key, squash))(logits, keys)
        alone = torch.stack([loss(each, prior, key, squash) for each, key in zip(logits, keys, strict=True)])
        torch.testing.assert_close(together, alone)
        by = [torch.autograd.grad(each.sum(), (logits, prior)) for each in (together, alone)]
    torch.testing.assert_close(*by)


@PATHS
@SQUASHES
def test_gradients_can_be_differentiated(squash: str, path: str) -> None:
    logits, prior = (tensor.requires_grad_() for tensor in torch.randn(2, 2, 3, device=DEVICE))
    keys = key(2)

    def true_loss(logits: Tensor, prior: Tensor) -> Tensor:
        value = bernoulli.draw(logits.detach().float(), keys, 5, squash)[0].double()
        log_p, log_q = (law(each, value.shape).log_prob(bit(value, squash)) for each in (prior, logits))
        return ((log_p - log_q).sum(-1) * (1 + value.sum(-1))).square().mean()

    def curvature(loss: Tensor, by: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        grads = torch.autograd.grad(loss, by, create_graph=True)
        return *grads, *torch.autograd.grad(sum(grad.square().sum() for grad in grads), by)

    with on(path, "bernoulli"):
        found = curvature(loss(logits, prior, keys, squash), (logits, prior))
    wide = tuple(tensor.detach().double().requires_grad_() for tensor in (logits, prior))
    for one, other in zip(found, curvature(true_loss(*wide), wide), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@PATHS
@DTYPES
def test_only_log_masses_have_a_gradient(dtype: torch.dtype, path: str) -> None:
    logits, prior = (logits_of(2, 3, dtype).requires_grad_() for _ in range(2))
    with on(path, "bernoulli"):
        value, log_mass = bernoulli.draw(logits, key(2), 5, "bit")
        assert not value.requires_grad
        assert log_mass.requires_grad
        given = value.clone().requires_grad_()
        (log_mass + bernoulli.score(given, prior, "bit")).sum().backward()
    assert given.grad is None
    assert logits.grad.dtype == prior.grad.dtype == dtype


@kernel
@pytest.mark.parametrize("path", [pytest.param("plain", marks=pytest.mark.exhaustive), "fast"])
def test_units_compile(path: str) -> None:
    logits, prior = (torch.randn(3, 2, 4, device=DEVICE, requires_grad=True) for _ in range(2))
    keys = key(6).view(3, 2, 2)

    def run(*arguments: Tensor) -> Tensor:
        return vmap(loss)(*arguments).sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    with on(path, "bernoulli"):
        by = [torch.autograd.grad(each(logits, prior, keys), (logits, prior)) for each in (run, compiled)]
    torch.testing.assert_close(*by)


@kernel
def test_units_are_operators() -> None:
    logits, by = torch.randn(2, 3, device=DEVICE), torch.randn(2, 2, 3, device=DEVICE)
    with launched("bernoulli"):
        drawn = (logits, key(2), 2, "bit", 1)
        value, log_mass = bernoulli.draw(*drawn)
        opcheck(bernoulli.draw, (logits.clone().requires_grad_(), *drawn[1:]))
        torch.library.opcheck(bernoulli.draw.backward, ([None, by], *drawn, [value, log_mass], [True, *[False] * 4]))
        scored = (value.sub(0.5).sign(), logits, "corner", 1)
        opcheck(bernoulli.score, (scored[0], logits.clone().requires_grad_(), *scored[2:]))
        outputs, needs = [bernoulli.score(*scored)], [False, True, False, False]
        torch.library.opcheck(bernoulli.score.backward, ([by], *scored, outputs, needs))
