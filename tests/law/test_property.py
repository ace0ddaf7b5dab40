"""Properties at arbitrary logits, temperatures and noise, with examples sought by hypothesis."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import concretely as c

LOGITS = st.floats(-1e4, 1e4, width=32)
TEMPERATURES = st.floats(1e-3, 10)
NOISE = st.floats(-4, 23, width=32)
ROWS = st.integers(2, 6).flatmap(lambda n: st.tuples(*(st.lists(s, min_size=n, max_size=n) for s in (LOGITS, NOISE))))


@given(logit=LOGITS, temperature=TEMPERATURES, noise=st.floats(-23, 23, width=32))
def test_binary_draws_are_on_the_side_of_their_noise_and_scored_alike_in_both_rooms(
    logit: float, temperature: float, noise: float
) -> None:
    mass = c.Bernoulli(logits=torch.tensor(logit))
    relaxed = mass.relax(temperature)
    value, hard = relaxed.push(torch.tensor(noise)), mass.push(torch.tensor(noise))
    assert 0 < value < 1
    assert (value - 0.5) * (hard - 0.5) >= 0
    if 1e-30 < value < 1 - 1e-6:  # the node that a value determines in float32 is close to its own
        node = torch.logit(value.double())
        exact = c.Logistic(logits=torch.tensor(logit).double(), temperature=temperature).log_prob(node)
        slope = torch.nn.functional.logsigmoid(node) + torch.nn.functional.logsigmoid(-node)
        torch.testing.assert_close(relaxed.log_prob(value).double(), exact - slope, rtol=1e-6, atol=1e-6)


@given(row=ROWS, temperature=TEMPERATURES)
def test_categorical_draws_are_normalised_and_ordered_as_their_noisy_logits(
    row: tuple[list[float], list[float]], temperature: float
) -> None:
    logits, noise = (torch.tensor(part, dtype=torch.float64) for part in row)
    node = c.ExpConcrete(logits=logits, temperature=temperature).push(noise)
    assert abs(node.logsumexp(-1).item()) < 1e-12
    # sums that differ by their rounding alone may come in either order
    tie = 4 * torch.finfo(torch.float64).eps * max(logits.abs().max().item(), 1) / min(temperature, 1)
    assert (torch.diff(node[(logits + noise).argsort()]) >= -tie).all()
    assert node[c.Concrete(logits=logits, temperature=temperature).push(noise).argmax()] >= node.max() - tie


@given(row=ROWS, temperature=TEMPERATURES, shift=st.floats(-1e3, 1e3))
def test_shift_of_all_logits_changes_neither_draws_nor_scores(
    row: tuple[list[float], list[float]], temperature: float, shift: float
) -> None:
    logits, noise = (torch.tensor(part, dtype=torch.float64) for part in row)
    one, other = (c.ExpConcrete(logits=logits + by, temperature=temperature, validate_args=False) for by in (0, shift))
    value = one.push(noise)
    scale = 1e-9 * (1 + logits.abs().max().item() / temperature)
    torch.testing.assert_close(other.push(noise), value, rtol=1e-9, atol=scale)
    torch.testing.assert_close(other.log_prob(value), one.log_prob(value), rtol=1e-6, atol=1e-6)


@given(row=ROWS, temperature=TEMPERATURES, data=st.data())
def test_order_of_the_categories_is_of_no_account(
    row: tuple[list[float], list[float]], temperature: float, data: st.DataObject
) -> None:
    logits, noise = (torch.tensor(part, dtype=torch.float64) for part in row)
    order = torch.tensor(data.draw(st.permutations(range(len(logits)))))
    value = c.ExpConcrete(logits=logits, temperature=temperature).push(noise)
    permuted = c.ExpConcrete(logits=logits[order], temperature=temperature).push(noise[order])
    torch.testing.assert_close(permuted, value[order], rtol=1e-12, atol=1e-9)
