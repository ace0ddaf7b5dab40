"""What nodes on the logarithm of the simplex share: noisy logits over a temperature, normalised."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..noise import fractions, gumbel_of, normal_of, uniform_of
from .cast import cast, compute_dtype, to_float64
from .temperature import Temperature, divide, over_categories


def push(
    logits: Float[Tensor, "*batch n"], temperature: Temperature, noise: Float[Tensor, "*shape n"]
) -> Float[Tensor, "*out n"]:
    """The log softmax of the noisy logits over the temperature; the log of their one-hot argmax where that is zero."""
    total = perturb(logits, noise)
    # with the largest at 0, a division by a small temperature leaves the limit and not a NaN
    total = total.sub_(total.detach().amax(-1, keepdim=True))
    node = divide(total, over_categories(temperature), lambda total: one_hot_argmax(total).log())
    return node - node.exp().sum(-1, keepdim=True).log()


def perturb(logits: Float[Tensor, "*batch n"], noise: Float[Tensor, "*shape n"]) -> Float[Tensor, "*out n"]:
    """The noisy logits, up to a shift: beside a logit of a thousand, noise would be rounded away."""
    logits = cast(logits, compute_dtype(logits.dtype))
    return (logits - logits.detach().amax(-1, keepdim=True)) + noise


def one_hot_argmax(total: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """One at the largest entry, zero elsewhere."""
    category = torch.arange(total.shape[-1], device=total.device)
    return (category == total.argmax(-1, keepdim=True)).to(total.dtype)


def noise_behind(
    value: Float[Tensor, "*shape n"], logits: Float[Tensor, "*batch n"], temperature: Temperature
) -> Float[Tensor, "*out n"]:
    """The noise of a node in float64, its smallest entry at 0."""
    noise = over_categories(temperature) * to_float64(value) - to_float64(logits)
    return noise - noise.detach().amin(-1, keepdim=True)


def noise_of_key(
    key: Int64[Tensor, "members 2"], samples: int, units: int, n: int, *, gaussian: bool = False
) -> Float[Tensor, "members m units n"]:
    """Standard Gumbel or normal noise of keys; the four words of a place belong to four rows of categories."""
    places = -(-samples * units // 4)
    drawn = fractions(key, 4 * places * n, torch.float32, gaussian)
    noise = normal_of(drawn) if gaussian else gumbel_of(uniform_of(drawn))
    return noise.view(len(key), 4 * places, n)[:, : samples * units].reshape(len(key), samples, units, n)
