"""Codes drawn in chunks equal their definition, in value and gradient, and follow their probabilities."""

from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from concretely.functional import codebook
from concretely.functional.codebook import definition, look_up
from concretely.functional.noise import Keys, gumbel
from concretely.layer import Codebook, advance, penalty
from tests.budget import assert_frequency
from tests.cases import grid

SCORED = pytest.mark.parametrize("scored", [False, True])
HARD = pytest.mark.parametrize("hard", [False, True])


def given(groups: int, tokens: int = 37, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = (tokens, 5), (groups, 7, 5), (groups, 7), (groups, 7, 2)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def small_chunks() -> mock._patch_dict:
    return mock.patch.dict(codebook.CHUNK, cpu=100)


@HARD
@SCORED
@pytest.mark.parametrize("groups", [1, 3])
def test_chunks_equal_the_definition_in_value_and_gradient(groups: int, hard: bool, scored: bool) -> None:
    tensors, key = given(groups), torch.randint(-(2**63), 2**63 - 1, (1, 2))
    weight_of = (torch.rand(37) > 0.3).float()
    with small_chunks():
        ours = look_up(*tensors, 0.7, weight_of=weight_of, hard=hard, scored=scored, generator=Keys(key))
        defined = definition(*tensors, 0.7, key, weight_of, hard, scored)
        found = []
        for looked in (ours, defined):
            heads = [each for each in (looked.value, looked.entropy, looked.share) if each is not None]
            by = [torch.randn(each.shape, generator=torch.Generator().manual_seed(3)).double() for each in heads]
            found.append((*looked, *torch.autograd.grad(heads, tensors, by)))
    torch.testing.assert_close(*found)


def test_the_definition_is_gumbel_softmax_and_a_product() -> None:
    x, weight, bias, table = given(1)
    key = torch.tensor([[5, 8]])
    noise = gumbel((1, 37, 7), torch.float64, generator=Keys(key))  # one chunk
    for is_hard in (True, False):
        shares = soft = ((x @ weight.mT + bias.unsqueeze(1) + noise) / 0.7).softmax(-1)
        if is_hard:
            shares = torch.nn.functional.one_hot(soft.argmax(-1), 7) - soft.detach() + soft
        ours = look_up(x, weight, bias, table, 0.7, weight_of=torch.ones(37), hard=is_hard, generator=Keys(key)).value
        theirs = (shares @ table).squeeze(0)
        by = torch.randn_like(ours)
        found = [(each, *torch.autograd.grad(each, (x, weight, bias, table), by)) for each in (ours, theirs)]
        torch.testing.assert_close(*found)


@SCORED
def test_gradients_of_relaxed_values_are_those_of_finite_differences(scored: bool) -> None:
    tensors, key = given(2, tokens=9), torch.tensor([[1, 2]])

    def relaxed(*tensors: Tensor) -> tuple[Tensor, ...]:
        looked = look_up(*tensors, 0.7, weight_of=torch.ones(9), hard=False, scored=scored, generator=Keys(key))
        return tuple(each for each in (looked.value, looked.entropy, looked.share) if each is not None)

    with small_chunks():
        assert torch.autograd.gradcheck(relaxed, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_hard_values_are_rows_of_the_table(dtype: torch.dtype) -> None:
    layer = Codebook(5, 9, size=6, groups=2).to(dtype)
    for mode in (True, False):
        coded = layer.train(mode)(torch.randn(4, 3, 5, dtype=dtype))
        assert torch.equal(coded.value, layer.values(coded.indices))
    drawn = layer.sample(torch.randn(4, 5, dtype=dtype))
    assert torch.equal(drawn.value, layer.values(drawn.indices))


def test_evaluation_takes_the_most_probable_code() -> None:
    layer = Codebook(5, 9, size=6, groups=2).eval()
    x = torch.randn(6, 5)
    logits = torch.einsum("tf,gkf->tgk", x, layer.weight) + layer.bias
    assert torch.equal(layer(x).indices, logits.argmax(-1))


def test_codes_are_drawn_with_their_probabilities() -> None:
    layer, number = Codebook(2, 4, kl=0, diversity=0), 100_000
    x = torch.randn(2)
    probabilities = (layer.weight[0] @ x + layer.bias[0]).double().softmax(-1)
    for index in (
        layer(x.expand(number, 2), generator=torch.Generator().manual_seed(0)).indices,
        layer.eval().sample(x.expand(number, 2), generator=torch.Generator().manual_seed(1)).indices,
    ):
        for code, probability in enumerate(probabilities.tolist()):
            assert_frequency(int((index == code).sum()), of=number, probability=probability)


@grid(size=[3, 4, 50], temperature=[1e-6, 0.5, 10.0])
def test_the_code_is_the_argmax_of_the_relaxed_value_on_the_same_noise(size: int, temperature: float) -> None:
    table = torch.eye(7, dtype=torch.float64).unsqueeze(0)
    x, weight, bias, _ = given(1, tokens=size)
    key = torch.tensor([[3, 1]])
    hard, soft = (
        look_up(x, weight, bias, table, temperature, weight_of=torch.ones(size), hard=hard, generator=Keys(key))
        for hard in (True, False)
    )
    assert torch.equal(hard.indices, soft.indices)
    assert torch.equal(hard.value.argmax(-1), soft.value.argmax(-1))
    if temperature < 1e-3:
        torch.testing.assert_close(hard.value, soft.value)


def test_a_draw_does_not_repeat_in_the_next_chunk() -> None:
    x, (_, weight, bias, table) = torch.zeros(4096, 5, dtype=torch.float64), given(1)
    with small_chunks():
        index = look_up(x, weight, bias, table, 1.0, weight_of=torch.ones(4096)).indices[0]
    rows = index.view(-1, 16)
    assert len(rows.unique(dim=0)) == len(rows)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_noise_of_a_token_depends_neither_on_chunks_nor_on_later_tokens(groups: int, dtype: torch.dtype) -> None:
    x, *rest = given(groups, dtype=dtype)
    key = torch.tensor([[3, 1]])

    def indices(x: Tensor) -> Tensor:
        return look_up(x, *rest, 1.0, generator=Keys(key)).indices

    whole = indices(x)
    assert torch.equal(indices(x[:11]), whole[:, :11])
    with small_chunks():
        assert torch.equal(indices(x), whole)


def test_the_penalty_is_zero_for_uniform_codes_and_positive_else() -> None:
    layer = Codebook(5, 9, size=6, groups=2)
    layer(torch.randn(30, 5))
    assert penalty(layer) > 0
    layer.weight.data.zero_()
    layer(torch.randn(30, 5))
    torch.testing.assert_close(penalty(layer), torch.zeros(()), atol=1e-5, rtol=0)


def test_the_penalty_is_its_definition_without_padding() -> None:
    layer, x = Codebook(5, 9, size=6, groups=2, kl=0.3, diversity=0.7), torch.randn(30, 5)
    mask = torch.rand(30) > 0.5
    coded = layer(x, mask=mask)
    q = (torch.einsum("tf,gkf->tgk", x, layer.weight) + layer.bias).softmax(-1)[mask].double()
    most = 2 * torch.tensor(9.0).log()
    kl = most - torch.special.entr(q).sum((1, 2)).mean()
    expected = 0.3 * kl + 0.7 * (most - torch.special.entr(q.mean(0)).sum())
    torch.testing.assert_close(layer.penalty(coded).double(), expected, rtol=1e-5, atol=1e-6)
    advance(layer)
    assert layer.counts.sum() == 2 * mask.sum()


def test_unused_codes_are_revived_and_reported() -> None:
    layer = Codebook(5, 20, size=6, groups=2)
    layer.bias.data[:, 3:] = -50
    layer(torch.randn(500, 5))
    advance(layer)
    found = layer.report()
    assert found.usage.item() == pytest.approx(3 / 20)
    assert found.perplexity <= 3.001
    assert layer.revive() == 34
    layer(torch.randn(500, 5))
    advance(layer)
    assert layer.report().usage > 0.9


def test_memory_holds_a_chunk_and_not_all_logits() -> None:
    """The saved tensors of a forward are far fewer than the logits."""
    layer, x = Codebook(4, 512, kl=0, diversity=0), torch.randn(4096, 4, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda x: x):
        layer(x).value.sum().backward()
    assert sum(kept) < 4096 * 512 / 20


def test_forward_mode_differentiates_a_draw() -> None:
    own, x = Codebook(4, 6, gradient="relaxed").double(), torch.randn(3, 4, dtype=torch.float64)
    way = torch.randn_like(x)

    def value(x: Tensor) -> Tensor:
        return own(x, generator=torch.Generator().manual_seed(0)).value

    tangent = torch.einsum("...ij,ij->...", torch.autograd.functional.jacobian(value, x), way)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(value(forward_ad.make_dual(x, way))).tangent
    torch.testing.assert_close(found, tangent)
