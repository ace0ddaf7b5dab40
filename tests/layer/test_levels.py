"""Rounding to levels keeps the mean, reaches all codes in every dtype, and has the entropy of its bits."""

import itertools

import pytest
import torch

import concretely as c
from concretely.functional import level
from concretely.layer import Levels, penalty
from tests.budget import assert_mean


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("levels", [(8, 5, 5), (2, 2, 2, 2), (3,), (255,)])
def test_every_code_is_reached_and_numbered_in_every_dtype(levels: tuple[int, ...], dtype: torch.dtype) -> None:
    layer = Levels(levels).to(dtype).eval()
    places = [torch.atanh(torch.linspace(-1, 1, number).double()).clamp(-10, 10).to(dtype) for number in levels]
    x = torch.stack([torch.stack(each) for each in itertools.product(*places)])
    coded = layer(x)
    assert coded.indices.dtype == torch.int64
    assert coded.value.dtype == dtype
    found = coded.indices.unique()
    assert len(found) >= layer.codes * (1 if max(levels) < 100 else 0.9)  # the inputs are rounded themselves
    assert found[0] == 0
    assert found[-1] == layer.codes - 1
    table = layer.decide()
    assert table is not None
    assert len(table.unique(dim=0)) == layer.codes
    assert torch.equal(table[coded.indices].to(dtype), coded.value)
    grid = level.grid(layer.levels)
    assert torch.equal(level.index_of(level.level_of(coded.indices, grid), grid), coded.indices)


def test_the_mean_of_draws_is_the_relaxed_value_whose_gradient_they_have() -> None:
    layer, x, number = Levels((7, 4, 2)).double(), torch.randn(3, dtype=torch.float64), 20_000
    many = x.expand(number, 3).clone().requires_grad_()
    value = layer(many, generator=torch.Generator().manual_seed(0)).value
    for place, mean in enumerate(torch.tanh(x).tolist()):
        assert_mean(value[:, place].detach(), mean)
    (slope,) = torch.autograd.grad(value.sum(), many)
    torch.testing.assert_close(slope, (1 - torch.tanh(many) ** 2).detach())


def test_evaluation_rounds_to_the_nearest_level() -> None:
    layer, x = Levels((7, 4, 2)).eval(), torch.randn(200, 3)
    value = layer(x).value
    for place, number in enumerate((7, 4, 2)):
        grid = torch.linspace(-1, 1, number)
        nearest = grid[(torch.tanh(x[:, place : place + 1]) - grid).abs().argmin(-1)]
        torch.testing.assert_close(value[:, place], nearest)


@pytest.mark.parametrize("rows", [3001, 3008])
def test_many_inputs_are_rounded_and_counted_as_few(rows: int) -> None:
    grid = level.grid(torch.tensor([7, 4, 2]))
    x, noise, by = (torch.rand(3, rows).mul_(4).sub_(2).T, torch.rand(rows, 3), torch.randn(rows, 3))
    results = []
    for many in (x, x.contiguous()):
        for split in (rows, 1000):
            leaf = many.clone(memory_format=torch.preserve_format).requires_grad_()
            parts = [
                level.rounded(a, grid, b) for a, b in zip(leaf.split(split), noise.clone().split(split), strict=True)
            ]
            found = [torch.cat(each) for each in zip(*parts, strict=True)]
            index = [level.index_of(part[2], grid, 56) for part in parts]
            pairs = zip(parts, index, strict=True)
            count = sum(level.counts(part[2], own, grid, mask=None, codes=56) for part, own in pairs)
            masked = level.counts(found[2], torch.cat(index), grid, mask=torch.ones(rows, dtype=torch.bool), codes=56)
            assert torch.equal(masked, count)
            (slope,) = torch.autograd.grad([found[0], found[1]], leaf, [by, by])
            results.append([*found, torch.cat(index), count, slope])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-6, atol=1e-6)
    assert torch.equal(results[0][4].sum(-1), torch.full((3,), float(rows)))


def test_many_inputs_are_rounded_under_vmap() -> None:
    layer, x = Levels((7, 4, 2)), torch.zeros(2, 3000, 3)
    one, other = torch.func.vmap(lambda rows: layer(rows).value, randomness="different")(x)
    assert not torch.equal(one, other)
    assert (one.abs() <= 1).all()


def test_the_noise_never_leads_beyond_the_last_level() -> None:
    place, most = torch.tensor([0.0, 3.0, 6.0, 254.0]), 1 - 2.0**-24
    for noise in (0.0, 2.0**-24, 0.5, most):
        found = level.push(place, torch.full_like(place, noise))
        assert ((found == place) | (found == place - 1) & (place > 0) & (noise == most)).all()
    assert torch.equal(level.push(place, None), place)


def test_bits_are_those_of_a_hypercube_with_its_entropy() -> None:
    layer, x = Levels((2, 2, 2), entropy=0.4, diversity=0.5).double(), torch.randn(50, 3, dtype=torch.float64)
    layer(x)
    bits = c.Hypercube(logits=(2 * x).unsqueeze(-1))
    torch.testing.assert_close(bits.mean.squeeze(-1), torch.tanh(x))
    mean = c.Bernoulli(probs=torch.sigmoid(2 * x).mean(0))
    expected = 0.4 * (bits.entropy().sum(-1).mean() - 0.5 * mean.entropy().sum())
    torch.testing.assert_close(penalty(layer), expected)


def test_the_entropy_of_a_place_on_a_level_has_a_finite_gradient() -> None:
    layer, x = Levels((2, 5), entropy=1.0), torch.tensor([[0.0, 0.0], [40.0, -40.0]], requires_grad=True)
    layer(x)
    assert torch.autograd.grad(penalty(layer), x)[0].isfinite().all()


def test_projected_inputs_have_the_shape_of_outputs() -> None:
    layer = Levels((4, 4), features=10)
    coded = layer(torch.randn(2, 3, 10))
    assert coded.value.shape == (2, 3, 10)
    torch.testing.assert_close(layer.values(coded.indices), coded.value)


def test_padding_may_hold_anything() -> None:
    x, mask = torch.randn(5, 3), torch.tensor([True, True, False, True, True])
    x[2] = torch.nan
    layer = Levels((4, 4, 4))
    assert layer(x, mask=mask).indices[mask].min() >= 0


def test_a_state_that_counts_other_levels_is_refused() -> None:
    other = Levels((5, 8))
    other(torch.randn(100, 2))
    other.advance()
    with pytest.raises(ValueError, match=r"^levels must be those of the loaded state, got \(8, 5\)$"):
        Levels((8, 5)).load_state_dict(other.state_dict())
    for same in (Levels((5, 8)), Levels((5, 8)).to("meta")):
        same.load_state_dict(other.state_dict(), assign=True)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("levels", [(8, 5), (8, 8), (3, 3), (2, 2)])
def test_numbers_that_are_none_have_no_code(levels: tuple[int, ...], shape: tuple[int, ...]) -> None:
    for wrong in ((0,), (1,), (0, 1)):
        x = torch.zeros(6, 2)
        x[4, list(wrong)] = torch.nan
        with pytest.raises(ValueError, match="x must be numbers, got nan at index"):
            Levels(levels)(x.view(*shape, 2))
