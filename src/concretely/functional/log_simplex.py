"""Functions shared by the variables on the log simplex, `exp_concrete` and `exp_logistic_normal`."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid

from .arithmetic import Temperature, cast, compute_dtype, divide, over_categories, to_float64
from .noise import gumbel_of, normal_of, uniform_of
from .philox import fractions


def push(
    logits: Float[Tensor, "*batch n"], temperature: Temperature, noise: Float[Tensor, "*shape n"]
) -> Float[Tensor, "*out n"]:
    """Return the log softmax of (logits + noise) / temperature, or its limit at temperature zero."""
    total = perturb(logits, noise)
    # with a maximum of 0, division by a tiny temperature gives the limit instead of NaN
    total = total.sub_(total.detach().amax(-1, keepdim=True))
    node = divide(total, over_categories(temperature), lambda total: one_hot_argmax(total).log())
    return node - node.exp().sum(-1, keepdim=True).log()


def pull(
    by: Float[Tensor, "*shape n"], node: Float[Tensor, "*shape n"], temperature: Temperature
) -> Float[Tensor, "*shape n"]:
    """Return the gradient of the logits, from the gradient of the node."""
    return (by - node.exp() * by.sum(-1, keepdim=True)) / over_categories(temperature)


def perturb(logits: Float[Tensor, "*batch n"], noise: Float[Tensor, "*shape n"]) -> Float[Tensor, "*out n"]:
    """Shift logits so that their maximum is 0, then add noise, which a large logit would otherwise round away."""
    logits = cast(logits, compute_dtype(logits.dtype))
    return (logits - logits.detach().amax(-1, keepdim=True)) + noise


def one_hot_argmax(total: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Return a one-hot vector with 1 at the largest entry."""
    category = torch.arange(total.shape[-1], device=total.device)
    return (category == total.argmax(-1, keepdim=True)).to(total.dtype)


def other_form(node: Float[Tensor, "..."], axes: int) -> Float[Tensor, "..."]:
    """Convert log-odds to two log weights if `axes` asks for one axis more, else two log weights to log-odds.

    A density has the same value in both forms.
    """
    if axes > node.dim():
        return logsigmoid(torch.stack([-node, node], -1))
    return node[..., 1] - node[..., 0]


def noise_behind(
    value: Float[Tensor, "*shape n"], logits: Float[Tensor, "*batch n"], temperature: Temperature
) -> Float[Tensor, "*out n"]:
    """Return the noise that a value was made from in float64, shifted so that its smallest entry is 0."""
    noise = over_categories(temperature) * to_float64(value) - to_float64(logits)
    return noise - noise.detach().amin(-1, keepdim=True)


def noise_of_key(
    key: Int64[Tensor, "members 2"], samples: int, units: int, n: int, *, gaussian: bool = False
) -> Float[Tensor, "members m units n"]:
    """Return Gumbel or normal noise for keys. The four words of a Philox counter go to four rows of categories."""
    places = -(-samples * units // 4)
    drawn = fractions(key, 4 * places * n, torch.float32, gaussian)
    noise = normal_of(drawn) if gaussian else gumbel_of(uniform_of(drawn))
    return noise.view(len(key), 4 * places, n)[:, : samples * units].reshape(len(key), samples, units, n)


def cast_in_order(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to a narrow dtype without changing the argmax over the last axis.

    With a thousand categories, plain rounding to bfloat16 creates a tie for the maximum in a tenth of the draws.
    """
    narrow = cast(value, dtype)
    if dtype.itemsize > 2:
        return narrow
    largest = narrow.detach().amax(-1, keepdim=True)
    wide = to_float64(largest)
    below = cast(wide - 0.75 * torch.finfo(dtype).eps * wide.abs(), dtype)  # the next smaller number
    first = torch.arange(value.shape[-1], device=value.device) == value.argmax(-1, keepdim=True)
    # at temperature zero, narrow may be minus infinity
    return narrow + (below - narrow.detach()).clamp(max=0).masked_fill(first, 0)
