"""Subsets of exactly k of n items, the conditional Bernoulli law: log mass, marginals and exact draws.

Independent Bernoulli variables with log-odds θ - c, given that exactly k are 1, have the same law for every c. With the
c for which k ones are expected, their sum is k with a probability of at least 1/(n+1). All numbers below are therefore
probabilities, of which those too small for floats do not matter. A binary tree over the items holds the law of the
count below each node: upwards it gives the normaliser, downwards the marginals or a draw. See [chen1997statistical].
"""

import itertools
import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.nn.functional import embedding, logsigmoid

from ..kernel.operator import is_plain, operator
from ..kernel.tile import fits
from .arithmetic import cast, compute_dtype, to_float64
from .noise import Source, uniform
from .polynomial import correlate, multiply
from .threshold import GAP, threshold

FEW = 256
"""Up to this number of subsets, they are enumerated, which takes few operations."""
IMPOSSIBLE = -1e30
"""Replaces a logit of minus infinity in a sum of logits."""

Level = Float[Tensor, "powers nodes rows"]
"""The probabilities of the counts below the nodes of one level of the tree."""


def centre(logits: Float[Tensor, "*batch n"], k: int) -> Float[Tensor, "*batch 1"]:
    """Return the number c for which independent draws with log-odds logits - c have k ones on average.

    At k = 0 and k = n it is finite and so far away that the probabilities are 0 and 1. It is rounded to at least
    float32.
    """
    logits = cast(logits, compute_dtype(logits.dtype))
    if k == 0:
        return logits.amax(-1, keepdim=True) + GAP
    return logits.amin(-1, keepdim=True) - GAP if k == logits.shape[-1] else threshold(logits, k)


def log_odds_of(logits: Tensor, k: int) -> Tensor:
    """Return centred logits in float64. The law does not depend on the centre, so no gradient passes through it."""
    return to_float64(logits) - to_float64(centre(logits.detach(), k))


def log_mass(value: Float[Tensor, "*shape n"], logits: Float[Tensor, "*batch n"], k: int) -> Float[Tensor, "*out"]:
    """Return the log probability of a subset in float64."""
    log_odds = log_odds_of(logits, k)
    own = logsigmoid(torch.where(value.detach() > 0.5, log_odds, -log_odds)).sum(-1)
    return own - log_probability(log_odds, k)


def log_probability(log_odds: Float[Tensor, "*batch n"], k: int) -> Float[Tensor, "*batch"]:
    """Return the log probability that exactly k of independent Bernoulli variables are 1."""
    return _grow(log_odds, k)[-1][k, 0].log().view(log_odds.shape[:-1])


def marginals(logits: Float[Tensor, "*batch n"], k: int) -> Float[Tensor, "*batch n"]:
    """Return the probability of each item to be in the subset, in float64. Its Jacobian is the covariance."""
    if include.runs_kernel(logits, k):
        probabilities: Tensor = include.launched(logits.reshape(1, -1, logits.shape[-1]), k)
        return probabilities.view(logits.shape)
    if are_few(logits, k):
        states = states_of(logits, k)
        share = _enumerated(logits, states).softmax(-1)
        return share @ states
    return _included(logits, k)


@operator("subset_include", kernel="subset_marginal", eligible=lambda logits, k: fits_kernel(logits, k))
def include(logits: Float[Tensor, "members units n"], k: int) -> Float[Tensor, "members units n"]:
    """Return the marginals of all members."""
    return _included(logits, k)


def _included(logits: Tensor, k: int) -> Tensor:
    """Return the marginals by the tree."""
    log_odds = log_odds_of(logits, k)
    if k == 0:
        return torch.sigmoid(log_odds)
    levels = _grow(log_odds, k)
    root = levels[-1]
    # the gradient of the probability of k by the coefficients of each level, from the root to the leaves
    by = torch.zeros_like(root[:, :, :1].detach()).expand(root.shape).clone()
    by[k] = 1
    for level in reversed(levels[:-1]):
        pairs = _paired(level)
        by = by.unsqueeze(2).expand(-1, -1, 2, -1)
        by = correlate(by, pairs.flip(2), level.shape[0]).flatten(1, 2)[:, : level.shape[1]]
    rows = levels[0][1] * by[1] / root[k]
    return rows.movedim(0, -1).reshape(log_odds.shape)


def noise(
    shape: Size, dtype: torch.dtype, *, device: torch.device, generator: Source | None = None
) -> Float[Tensor, "*batch 2 n"]:
    """Draw uniform noise for subsets of the last axis: one number for each branch of the tree, then one an item."""
    return uniform((*shape[:-1], 2, shape[-1]), dtype, device=device, generator=generator)


def push(logits: Float[Tensor, "*batch n"], k: int, noise: Float[Tensor, "*shape 2 n"]) -> Float[Tensor, "*out n"]:
    """Return the subset that noise selects, as a vector of exactly k ones and zeros.

    From the root to the leaves, the count of each node is split among its two children, by the inverse of the CDF. If
    there are few subsets, the first number of the noise selects one of them, by the inverse of the CDF.
    """
    logits = logits.detach()
    if choose.runs_kernel(logits, noise, k):
        rows, shape = in_rows(logits, noise)
        chosen: Tensor = choose.launched(rows[0], rows[1], k)
        return chosen.view(shape)
    if are_few(logits, k):
        states = states_of(logits, k)
        total = _enumerated(logits, states).softmax(-1).cumsum(-1)
        choice = total[..., -1] * noise[..., 0, 0]
        return embedding((total < choice.unsqueeze(-1)).sum(-1), states).to(logits.dtype)
    return _descend(logits, k, noise)


def _descend(logits: Tensor, k: int, noise: Tensor) -> Tensor:
    """Return the subset that noise selects in the tree."""
    batch, n = logits.shape[:-1], logits.shape[-1]
    choices = noise[..., 0, :]
    lead = Size(torch.broadcast_shapes(choices.shape[:-1], batch))
    samples, units = math.prod(lead[: len(lead) - len(batch)]), math.prod(batch)  # Size.numel is constant in an export
    rows = to_float64(choices).expand(*lead, n).reshape(samples, units, n).movedim(-1, 0)
    count = torch.full_like(rows[:1], k, dtype=torch.int64)
    used = 0
    for level in reversed(_grow(log_odds_of(logits, k), k)[:-1]):
        branches = level.shape[1] // 2
        left, right = level[:, : 2 * branches].unflatten(1, (branches, 2)).unsqueeze(3).unbind(2)
        split = _split(left, right, count[:branches], rows[used : used + branches])
        halves = torch.stack([split, count[:branches] - split], 1).flatten(0, 1)
        count, used = torch.cat([halves, count[branches:]]), used + branches
    return count.movedim(0, -1).reshape(*lead, n).to(logits.dtype)


def fits_kernel(logits: Tensor, k: int) -> bool:
    """Return whether kernels support subsets of this size: a program holds a row."""
    return 0 < k < logits.shape[-1] and fits(1, logits.shape[-1]) and logits.numel() > 0


@operator("subset_choose", kernel="subset", eligible=lambda logits, noise, k: fits_kernel(logits, k))
def choose(
    logits: Float[Tensor, "members units n"], noise: Float[Tensor, "members samples units 2 n"], k: int
) -> Float[Tensor, "members samples units n"]:
    """Return the subsets that noise selects in the trees of all members."""
    return _descend(logits.detach().unsqueeze(1).expand(-1, noise.shape[1], -1, -1), k, noise)


def in_rows(logits: Tensor, noise: Tensor) -> tuple[tuple[Tensor, Tensor], Size]:
    """Return logits and noise as kernels expect them, those of one member, and the shape of the result."""
    batch, n = logits.shape[:-1], logits.shape[-1]
    lead = Size(torch.broadcast_shapes(noise.shape[:-2], batch))
    samples, units = math.prod(lead[: len(lead) - len(batch)]), math.prod(lead[len(lead) - len(batch) :])
    rows = logits.expand(*lead[len(lead) - len(batch) :], n).reshape(1, units, n)
    return (rows, noise.expand(*lead, 2, n).reshape(1, samples, units, 2, n)), Size((*lead, n))


def are_few(logits: Tensor, k: int) -> bool:
    # on a GPU, the table of subsets would have to be copied from the host, which a captured program must not do
    return logits.is_cpu and math.comb(logits.shape[-1], k) <= FEW


def states_of(logits: Tensor, k: int) -> Float[Tensor, "states n"]:
    """Return all subsets of k items as vectors of ones and zeros, in float64."""
    is_kept = is_plain((logits,)) and not torch.is_inference_mode_enabled()
    return (_states_on if is_kept else _states_on.__wrapped__)(logits.shape[-1], k, logits.device)


@lru_cache(maxsize=64)
def _states_on(n: int, k: int, device: torch.device) -> Float[Tensor, "states n"]:
    chosen = itertools.combinations(range(n), k)
    rows = [[1.0 if item in items else 0.0 for item in range(n)] for items in chosen]
    return torch.tensor(rows, dtype=torch.float64, device=device)


def _enumerated(logits: Tensor, states: Tensor) -> Float[Tensor, "*batch states"]:
    """Return the sum of the logits of each subset in float64, up to a constant."""
    possible = to_float64(logits).clamp(min=IMPOSSIBLE)
    return (possible - possible.detach().amax(-1, keepdim=True)) @ states.T


def _split(left: Tensor, right: Tensor, count: Tensor, choice: Tensor) -> Tensor:
    """Draw how many of the count are in the left child: at least 0, at most all, and what the right child holds."""
    taken = torch.arange(left.shape[0], device=left.device).view(-1, 1, 1, 1)
    rest = count.unsqueeze(0) - taken
    is_possible = (rest >= 0) & (rest < right.shape[0])
    others = right.expand(-1, -1, *rest.shape[2:]).gather(0, torch.where(is_possible, rest, 0))
    total = (left * torch.where(is_possible, others, 0)).cumsum(0)
    split: Tensor = ((total <= choice * total[-1]) & (total < total[-1])).sum(0)
    return split


def _grow(log_odds: Tensor, k: int) -> list[Tensor]:
    """Return the levels of the tree, from the items to the root."""
    items = log_odds.reshape(-1, log_odds.shape[-1]).T
    levels = [torch.sigmoid(torch.stack([-items, items]))[: k + 1]]
    while levels[-1].shape[1] > 1:
        left, right = _paired(levels[-1]).unbind(2)
        levels.append(multiply(left, right, min(2 * left.shape[0] - 1, k + 1)))
    return levels


def _paired(level: Tensor) -> Float[Tensor, "powers pairs 2 rows"]:
    """Group the nodes of a level in pairs. The last one may be paired with a node without items, whose count is 0."""
    if level.shape[1] % 2:
        empty = torch.zeros_like(level[:, :1])
        empty[0] = 1
        level = torch.cat([level, empty], 1)
    paired: Tensor = level.unflatten(1, (-1, 2))
    return paired
