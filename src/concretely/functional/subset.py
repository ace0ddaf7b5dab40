"""Subsets of exactly k of n items, the conditional Bernoulli law: log mass, marginals and exact draws.

Independent Bernoulli variables with log-odds θ - c, given that exactly k are 1, have the same law for every c. With the
c for which k ones are expected, their sum is k with a probability of at least 1/(n+1). All numbers below are therefore
probabilities, of which those too small for floats do not matter. A binary tree over the items holds the law of the
count below each node: upwards it gives the normaliser, downwards the marginals or a draw. See [chen1997statistical].
"""

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from jaxtyping import Float, Int64
from torch import Size, Tensor
from torch.nn.functional import embedding, logsigmoid

from ..kernel.operator import is_plain, is_watched, operator
from ..kernel.tile import fits
from .arithmetic import cast, compute_dtype, to_float64
from .noise import Source, few_uniform
from .polynomial import correlate, multiply
from .threshold import GAP, threshold

FEW = 256
"""Up to this number of subsets, they are enumerated, which takes few operations."""
MANY, CHUNK = 2**14, 2**19
"""From the first number of items on, draws on a CPU leave out nodes without chosen items. The second is the number of
items whose trees are in memory at once, so that they stay in the cache."""
BELOW = 1 - 1e-13
"""A factor of fractions of a sum. It keeps them below the sum of the same terms, which is rounded differently."""
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
    return few_uniform((*shape[:-1], 2, shape[-1]), dtype, device=device, generator=generator)


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
    if not are_many(logits, noise):
        return _descend(logits, k, noise)
    (own, uniform), shape = in_rows(logits, noise)
    value = own.new_zeros(uniform.shape[1:3] + own.shape[2:])
    for part in chunks(value):
        places = select(_grow(log_odds_of(own[0, part], k), k), k, uniform[0, :, part])
        value[:, part].scatter_(-1, places, 1)
    return value.view(shape)


def are_many(logits: Tensor, noise: Tensor) -> bool:
    """Return whether there are many draws on a CPU, which can be read and whose operations nothing records."""
    if not (logits.is_cpu and logits.numel() > 0 and noise.numel() >= 2 * MANY and is_plain((logits, noise))):
        return False
    return not is_watched() and torch._C._get_tracing_state() is None


def chunks(value: Float[Tensor, "samples units n"]) -> Iterator[slice]:
    """Yield slices of the units of a tensor that are computed at once."""
    samples, units, n = value.shape
    size = max(CHUNK // (samples * n), 1)
    return (slice(start, start + size) for start in range(0, units, size))


def select(
    levels: list[Tensor], k: int, noise: Float[Tensor, "samples units 2 n"]
) -> Int64[Tensor, "samples units {k}"]:
    """Return the items that noise selects in trees, in order, as `_descend` does, for tensors that can be read.

    Few nodes have a count above zero, and the others are left out. The law of the count of a node is known, so that
    the sums of its terms need not be completed.
    """
    samples, units, _, n = noise.shape
    choices, unit = noise.reshape(-1), torch.arange(units, device=noise.device).repeat(samples)
    start = torch.arange(0, noise.numel(), 2 * n, device=noise.device)
    node, count = torch.zeros_like(unit), torch.full_like(unit, k)
    for parents, level in zip(levels[:0:-1], levels[-2::-1], strict=True):
        (width, nodes, _), most = level.shape, int(count.amax()) if k else 0
        size, taken = nodes * units, torch.arange(min(width - 1, most), device=noise.device).unsqueeze(1)
        own = node * units + unit
        goal = parents.reshape(-1).take(own + count * (parents.shape[1] * units))
        goal.mul_(choices.take(start + node)).mul_(BELOW)
        left, rest = own + node * units, count - taken
        # terms beyond the count do not matter, as the sum is above the goal then
        right = level.reshape(-1).take(
            (rest.clamp(0, width - 1) * size + left).add_(units).clamp_(max=width * size - 1)
        )
        right = right if most < width else right.masked_fill_(rest >= width, 0)
        terms = level.flatten(1)[: len(taken)].index_select(1, left).mul_(right)
        split = ((terms.cumsum(0) if len(terms) > 1 else terms) <= goal).sum(0)
        if nodes % 2:  # the last node has no sibling
            split = torch.where(node == nodes // 2, count, split)
        halves = torch.stack([split, count - split], 1).view(-1)
        kept = halves.nonzero().squeeze(1)
        parent = kept >> 1
        node = node.index_select(0, parent).mul_(2).add_(kept & 1)
        count, unit = halves.index_select(0, kept), unit.index_select(0, parent)
        start = start.index_select(0, parent).add_(nodes // 2)  # each branch has its own number
    return node.view(samples, units, k)


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
    """Return whether subsets are enumerated: on a CPU, if there are few."""
    # on a GPU, the table of subsets would have to be copied from the host, which a captured program must not do
    if not logits.is_cpu:
        return False
    n, count = logits.shape[-1], 1
    for chosen in range(k if 2 * k <= n else n - k):  # math.comb cannot be compiled for sizes that change
        count = count * (n - chosen) // (chosen + 1)
        if count > FEW:
            return False
    return True


def states_of(logits: Tensor, k: int) -> Float[Tensor, "states n"]:
    """Return all subsets of k items as vectors of ones and zeros, in float64."""
    is_kept = is_plain((logits,)) and not torch.is_inference_mode_enabled()
    return (_states_on if is_kept else _states_on.__wrapped__)(logits.shape[-1], k, logits.device)


@lru_cache(maxsize=64)
def _states_on(n: int, k: int, device: torch.device) -> Float[Tensor, "states n"]:
    if 2 * k > n:
        return 1 - _states_on(n, n - k, device)
    # in the order of the last items, then of those before them
    chosen = sorted(itertools.combinations(range(n), k), key=lambda items: items[::-1])
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
    return levels_above(torch.sigmoid(torch.stack([-items, items]))[: k + 1], k)


def levels_above(items: Level, k: int) -> list[Tensor]:
    """Return the levels of the tree above the probabilities of items."""
    levels = [items]
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
