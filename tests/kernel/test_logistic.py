"""Logistic nodes are those of the library: drawn, scored and differentiated, on either path, batched and compiled."""

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import vmap

from concretely import BinaryConcrete, HypercubeConcrete, Logistic
from concretely.functional import logistic
from concretely.functional.edge import smallest
from concretely.functional.philox import fractions
from tests.budget import assert_likely
from tests.cases import LOGITS, TEMPERATURES
from tests.kernel import (
    DEVICE,
    DTYPES,
    PATHS,
    SIZES,
    assert_precise,
    fast,
    gradients,
    kernel,
    key,
    launched,
    on,
    opcheck,
)

SQUASHES = pytest.mark.parametrize("squash", ["none", "unit", "corner"])
FEW_SQUASHES = pytest.mark.parametrize("squash", ["none", pytest.param("unit", marks=pytest.mark.exhaustive), "corner"])
EPS = torch.finfo(torch.float32).eps


def logits_of(members: int, units: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Ordinary logits."""
    return (4 * torch.randn(members, units)).to(DEVICE, dtype)


def temperatures(members: int) -> Tensor:
    """A temperature for every member."""
    return torch.linspace(0.5, 1.1, members, dtype=torch.float64, device=DEVICE)


def one_temperature(temperature: float) -> Tensor:
    """A temperature for a single member."""
    return torch.tensor([temperature], dtype=torch.float64, device=DEVICE)


def noise(key: Tensor, samples: int, units: int) -> Tensor:
    """The noise of a key, in float64."""
    signed = fractions(key, samples * units, torch.float32, True).double()
    return torch.logit(signed.abs()).copysign(signed).view(len(key), samples, units)


def true_draw(logits: Tensor, temperature: Tensor, noise: Tensor, squash: str) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes, values and log densities by the variables of the library in float64."""
    logits, temperature = logits.double().unsqueeze(1).expand_as(noise), temperature.view(-1, 1, 1)
    law = Logistic(logits=logits, temperature=temperature)
    node = law.push(noise)
    value = node
    if squash == "unit":
        value = BinaryConcrete(logits=logits, temperature=temperature).push(noise)
    if squash == "corner":
        value = HypercubeConcrete(logits=logits.unsqueeze(-1), temperature=temperature).push(noise).squeeze(-1)
    return node, value, law.log_prob(node)


def true_score(node: Tensor, logits: Tensor, temperature: Tensor) -> Tensor:
    """Log densities by the variable of the library in float64."""
    return Logistic(
        logits=logits.double().unsqueeze(1).expand_as(node), temperature=temperature.view(-1, 1, 1)
    ).log_prob(node.double())


@PATHS
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_draws_are_those_of_the_library_at_every_size_and_temperature(temperature: float, path: str) -> None:
    logits, keys, own = torch.tensor([LOGITS], device=DEVICE), key(1), one_temperature(temperature)
    drawn = noise(keys, 50, len(LOGITS))
    size = (1 + drawn.abs() + logits.abs()).squeeze(0)
    for squash in ("unit", "corner"):
        with on(path, "logistic"):
            node, value, log_density = logistic.draw(logits, own, keys, 50, squash)
        truth = true_draw(logits, own, drawn, squash)
        assert ((node - truth[0]).abs() <= 2 * EPS * size / temperature).all()
        assert ((log_density - truth[2]).abs() <= 2 * EPS * (1 + truth[2].abs())).all()
        again = true_draw(node[:, 0] * temperature, own, torch.zeros_like(drawn[:, :1]), squash)[1]
        assert ((value[:, :1] - again).abs() <= 2 * EPS).all()
        if squash == "unit":  # precise at the end where it can be
            assert ((value[:, :1] - again).abs() <= 1e-5 * again + 2 * smallest(torch.float32)).all()
            assert 0 < value.min() < value.max() < 1


@kernel
@pytest.mark.parametrize("temperature", [10.0, 2.0**-120])  # whose logarithm cancels, whose densities are no numbers
def test_log_densities_of_many_draws_are_precise(temperature: float) -> None:
    logits, keys, own = torch.zeros(1, 1, device=DEVICE), key(1), one_temperature(temperature)
    with launched("logistic"):
        found = logistic.draw(logits, own, keys, 8_000, "none")[2]
    truth = true_draw(logits, own, noise(keys, 8_000, 1), "none")[2]
    assert ((found - truth).abs() <= 2 * EPS * (1 + truth.abs())).all()


@PATHS
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_scores_are_those_of_the_library_at_every_size_and_temperature(temperature: float, path: str) -> None:
    logits, own = torch.tensor([LOGITS], device=DEVICE), one_temperature(temperature)
    node = ((logits + 5 * torch.randn(1, 50, len(LOGITS), device=DEVICE)) / temperature).requires_grad_()
    logits.requires_grad_()
    truth = true_score(node, logits, own)
    with on(path, "logistic"):
        found = logistic.score(node, logits, own)
        slopes = torch.autograd.grad(found.sum(), (node, logits))
    assert ((found - truth).abs() <= 4 * EPS * (1 + truth.abs())).all()
    for slope, true in zip(slopes, torch.autograd.grad(truth.sum(), (node, logits)), strict=True):
        torch.testing.assert_close(slope, true, rtol=1e-5, atol=2e-6 * max(1, temperature))


def test_noise_follows_its_law() -> None:
    zeros, one = torch.zeros(4, 1, device=DEVICE), torch.ones(4, dtype=torch.float64, device=DEVICE)
    drawn, _, _ = logistic.draw(zeros, one, key(4), 25_001, "none")
    assert_likely(stats.kstest(drawn.flatten().cpu().numpy(), "logistic").pvalue)


@PATHS
def test_bits_are_the_signs_of_their_nodes_with_the_gradient_of_gates(path: str) -> None:
    logits, keys, slopes = logits_of(2, 33), key(2), []
    with on(path, "logistic"):
        for squash in ("unit", "bit"):
            leaf = logits.clone().requires_grad_()
            node, value, _ = logistic.draw(leaf, temperatures(2), keys, 3, squash)
            slopes.append(torch.autograd.grad(value, leaf, torch.cos(node.detach() + 1))[0])
    assert torch.equal(value, (node >= 0).float())
    torch.testing.assert_close(*slopes)


@kernel
@SQUASHES
@SIZES
def test_kernel_draws_as_its_definition(shape: tuple[int, int, int], dtype: torch.dtype, squash: str) -> None:
    members, samples, units = shape
    logits, temperature, keys = logits_of(members, units, dtype).requires_grad_(), temperatures(members), key(members)
    given = logits, temperature, keys, samples, squash
    wide = logits.detach().double().requires_grad_()
    truth = true_draw(wide, temperature, noise(keys, samples, units), squash)
    by_node, by_value = torch.randn(2, *shape, device=DEVICE)
    with launched("logistic"):
        found, defined = logistic.draw(*given), logistic.draw.definition(*given)
        assert not found[2].requires_grad  # it is the same for all logits
        assert not defined[2].requires_grad
        for k in range(3):
            if k == 1 and squash == "none":
                assert found[k].shape == defined[k].shape == (members, 0)
            else:
                assert_precise(found[k], defined[k], truth[k])
        for by in ((by_node, by_value), (by_node, None), (None, by_value), (by_node[..., :1].expand(shape), None)):
            by = (by[0], None if squash == "none" else by[1])
            if by != (None, None):
                each = (gradients(out[:2], [leaf], by, retain_graph=True)[0] for out, leaf in (
                    (found, logits), (defined, logits), (truth, wide),
                ))  # fmt: skip
                assert_precise(*each)


@kernel
@SIZES
def test_kernel_scores_as_its_definition(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    members, _, units = shape
    logits, temperature = logits_of(members, units, dtype), temperatures(members)
    node, by = 5 * torch.randn(2, *shape, device=DEVICE)
    narrow, wide = ([tensor.to(to).requires_grad_() for tensor in (node, logits)] for to in (None, torch.float64))
    truth = true_score(*wide, temperature)
    with launched("logistic"):
        found, defined = (score(*narrow, temperature) for score in (logistic.score, logistic.score.definition))
        assert_precise(found, defined, truth)
        for given in (by, by[..., :1].expand(shape), by.transpose(0, 1).contiguous().transpose(0, 1)):
            slopes = (
                torch.autograd.grad(each, leaves, given, retain_graph=True)
                for each, leaves in ((found, narrow), (defined, narrow), (truth, wide))
            )
            for each, sums in zip(zip(*slopes, strict=True), (False, True), strict=True):
                # the definition adds samples in float64
                assert_precise(*each, drift=EPS / 2 * each[-1].abs() if sums else 0.0)


@kernel
@pytest.mark.parametrize("needed", [0, 1])
def test_gradients_that_nobody_needs_are_not_computed(needed: int) -> None:
    leaves = [5 * torch.randn(3, 2, 33, device=DEVICE), logits_of(3, 33)]
    leaves[needed].requires_grad_()
    with launched("logistic"):
        found, defined = (score(*leaves, temperatures(3)) for score in (logistic.score, logistic.score.definition))
        slopes = [torch.autograd.grad(each.sum(), leaves[needed])[0] for each in (found, defined)]
    torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-6)


@kernel
def test_sums_over_many_samples_are_taken_in_parts() -> None:
    triton = fast("row")
    for members, samples, units in ((1, 3200, 200), (1, 1, 1), (3, 17, 640_000), (2, 50, 20_000), (1, 10**6, 1)):
        for sums in (True, False):
            tile = triton.tiling(members, samples, units, sums=sums)
            step = tile.rows * tile.steps
            assert step * (tile.parts - 1) < samples <= step * tile.parts
            assert tile.parts <= triton.BUSY or not sums
    assert triton.tiling(1, 3200, 200, sums=True).parts > 16
    for members, samples, units in ((1, 1, 12_800), (1, 50, 12_800), (8, 50, 12_800)):
        assert triton.tiling(members, samples, units, sums=True).parts == 1


@PATHS
def test_nan_logits_give_nan(path: str) -> None:
    logits = torch.tensor([[0.0, torch.nan]], device=DEVICE)
    for squash in ("unit", "corner"):
        with on(path, "logistic"):
            drawn = logistic.draw(logits, temperatures(1), key(1), 3, squash)[:2]
        for each in drawn:
            assert torch.equal(each.isnan(), logits.isnan().expand(1, 3, 2))


@PATHS
@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0)], ids=str)
def test_nothing_is_drawn_and_scored(shape: tuple[int, int, int], path: str) -> None:
    logits, temperature = logits_of(2, shape[2]).requires_grad_(), temperatures(2)
    with on(path, "logistic"):
        node, _, log_density = logistic.draw(logits, temperature, key(2), shape[1], "unit")
        scores = logistic.score(node, logits, temperature)
        assert node.shape == log_density.shape == scores.shape == shape
        for each in (node, scores):
            (by_logits,) = torch.autograd.grad(each.sum(), logits, retain_graph=True)
            assert torch.equal(by_logits, torch.zeros_like(logits))


def loss(logits: Tensor, prior: Tensor, temperature: Tensor, key: Tensor, squash: str = "corner") -> Tensor:
    """What uses all there is to draw and to score."""
    node, value, log_density = logistic.draw(logits, temperature, key, 5, squash)
    log_p = logistic.score(node, prior, temperature)
    return ((node if squash == "none" else value).sin() + log_p - log_density).sum(-1).square().mean()


@PATHS
@FEW_SQUASHES
def test_a_batch_of_programs_is_a_loop_over_them(squash: str, path: str) -> None:
    logits = torch.randn(2, 2, 6, device=DEVICE, requires_grad=True)
    prior = torch.randn(2, 6, device=DEVICE, requires_grad=True)
    temperature, keys = temperatures(4).view(2, 2), key(4).view(2, 2, 2)

    def run(logits: Tensor, temperature: Tensor, key: Tensor) -> Tensor:
        return loss(logits, prior, temperature, key, squash)

    with on(path, "logistic"):
        together = vmap(run)(logits, temperature, keys)
        moved = vmap(run, (2, 1, 0))(logits.movedim(0, 2), temperature.T, keys)
        alone = torch.stack([run(*each) for each in zip(logits, temperature, keys, strict=True)])
        for found in (together, moved):
            torch.testing.assert_close(found, alone)
            by = [torch.autograd.grad(each.sum(), (logits, prior), retain_graph=True) for each in (found, alone)]
            torch.testing.assert_close(*by)


@PATHS
def test_batches_nest(path: str) -> None:
    if path == "plain" and DEVICE == "cuda":
        pytest.skip("torch's logsigmoid does not nest vmap on a GPU")
    logits, temperature, keys = torch.randn(2, 3, 1, 4, device=DEVICE), temperatures(2).view(2, 1), key(3).unsqueeze(1)

    def run(logits: Tensor, temperature: Tensor, key: Tensor) -> Tensor:
        return logistic.draw(logits, temperature, key, 2, "unit")[1]

    with on(path, "logistic"):
        found = vmap(vmap(run, (0, None, 0)), (0, 0, None))(logits, temperature, keys)
        for i in range(2):
            for j in range(3):
                assert torch.equal(found[i, j], run(logits[i, j], temperature[i], keys[j]))


@PATHS
@SQUASHES
def test_gradients_can_be_differentiated(squash: str, path: str) -> None:
    logits, prior = (tensor.requires_grad_() for tensor in torch.randn(2, 2, 3, device=DEVICE))
    temperature, keys = temperatures(2), key(2)

    def true_loss(logits: Tensor, prior: Tensor) -> Tensor:
        node, value, log_density = true_draw(logits, temperature, noise(keys, 5, 3), squash)
        log_p = true_score(node, prior, temperature)
        return (value.sin() + log_p - log_density.detach()).sum(-1).square().mean()

    def curvature(loss: Tensor, by: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        grads = torch.autograd.grad(loss, by, create_graph=True)
        return *grads, *torch.autograd.grad(sum(grad.square().sum() for grad in grads), by)

    with on(path, "logistic"):
        found = curvature(loss(logits, prior, temperature, keys, squash), (logits, prior))
    wide = tuple(tensor.detach().double().requires_grad_() for tensor in (logits, prior))
    for one, other in zip(found, curvature(true_loss(*wide), wide), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@PATHS
@DTYPES
def test_gradients_have_the_dtype_of_what_they_are_of(dtype: torch.dtype, path: str) -> None:
    logits, prior = (logits_of(2, 3, dtype).requires_grad_() for _ in range(2))
    with on(path, "logistic"):
        loss(logits, prior, temperatures(2), key(2)).backward()
    assert logits.grad.dtype == prior.grad.dtype == dtype


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
def test_nodes_compile(path: str) -> None:
    logits, prior = (torch.randn(3, 2, 4, device=DEVICE, requires_grad=True) for _ in range(2))
    temperature, keys = temperatures(6).view(3, 2), key(6).view(3, 2, 2)

    def run(*arguments: Tensor) -> Tensor:
        return vmap(loss)(*arguments).sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    with on(path, "logistic"):
        by = [torch.autograd.grad(each(logits, prior, temperature, keys), (logits, prior)) for each in (run, compiled)]
    torch.testing.assert_close(*by)


@kernel
@pytest.mark.parametrize("squash", ["corner", pytest.param("none", marks=pytest.mark.exhaustive)])
def test_nodes_are_operators(squash: str) -> None:
    logits = torch.randn(2, 3, device=DEVICE, requires_grad=True)
    node = torch.randn(2, 2, 3, device=DEVICE, requires_grad=True)
    with launched("logistic"):
        opcheck(logistic.draw, (logits, temperatures(2), key(2), 2, squash, 1))
        opcheck(logistic.score, (node, logits, temperatures(2), 1))


@kernel
@pytest.mark.parametrize("needs", [(True, True), *(pytest.param(each, marks=pytest.mark.exhaustive) for each in (
    (True, False), (False, True),
))], ids=str)  # fmt: skip
def test_gradients_are_operators(needs: tuple[bool, bool]) -> None:
    logits, temperature = logits_of(2, 3), temperatures(2)
    node, by = torch.randn(2, 2, 2, 3, device=DEVICE)
    with launched("logistic"):
        drawn = (logits, temperature, key(2), 2, "unit", 1)
        outputs = list(logistic.draw(*drawn))
        torch.library.opcheck(logistic.draw.backward, ([by, None, None], *drawn, outputs, [True, *[False] * 5]))
        scored = (node, logits, temperature, 1)
        arguments = ([by], *scored, [logistic.score(*scored)], [*needs, False, False])
        torch.library.opcheck(logistic.score.backward, arguments)
