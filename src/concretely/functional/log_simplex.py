"""Functions shared by the nodes on the log simplex."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..kernel.operator import Operator, operator, row_sums
from ..kernel.tile import fits
from ..noise import fractions, gumbel_of, normal_of, uniform_of
from .arithmetic import Temperature, cast, compute_dtype, divide, invert_noise, over_categories, to_float64
from .draw import squashed


def push(
    logits: Float[Tensor, "*batch n"], temperature: Temperature, noise: Float[Tensor, "*shape n"]
) -> Float[Tensor, "*out n"]:
    """Return the log softmax of noisy logits over the temperature, or its limit at temperature zero."""
    total = perturb(logits, noise)
    # with a maximum of 0, division by a tiny temperature gives the limit instead of NaN
    total = total.sub_(total.detach().amax(-1, keepdim=True))
    node = divide(total, over_categories(temperature), lambda total: one_hot_argmax(total).log())
    return node - node.exp().sum(-1, keepdim=True).log()


def perturb(logits: Float[Tensor, "*batch n"], noise: Float[Tensor, "*shape n"]) -> Float[Tensor, "*out n"]:
    """Add noise to logits whose maximum was shifted to 0, as a large logit would round the noise away."""
    logits = cast(logits, compute_dtype(logits.dtype))
    return (logits - logits.detach().amax(-1, keepdim=True)) + noise


def one_hot_argmax(total: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Return the one-hot vector of the largest entry."""
    category = torch.arange(total.shape[-1], device=total.device)
    return (category == total.argmax(-1, keepdim=True)).to(total.dtype)


def noise_behind(
    value: Float[Tensor, "*shape n"], logits: Float[Tensor, "*batch n"], temperature: Temperature
) -> Float[Tensor, "*out n"]:
    """Return the noise of a node in float64, shifted so that its smallest entry is 0."""
    noise = over_categories(temperature) * to_float64(value) - to_float64(logits)
    return noise - noise.detach().amin(-1, keepdim=True)


def noise_of_key(
    key: Int64[Tensor, "members 2"], samples: int, units: int, n: int, *, gaussian: bool = False
) -> Float[Tensor, "members m units n"]:
    """Return Gumbel or normal noise for keys; the four words of a counter go to four rows of categories."""
    places = -(-samples * units // 4)
    drawn = fractions(key, 4 * places * n, torch.float32, gaussian)
    noise = normal_of(drawn) if gaussian else gumbel_of(uniform_of(drawn))
    return noise.view(len(key), 4 * places, n)[:, : samples * units].reshape(len(key), samples, units, n)


def node_operators(
    name: str, log_density_of_noise: Callable[[Tensor, Temperature], Tensor], *, gaussian: bool = False
) -> tuple[Operator[..., tuple[Tensor, Tensor, Tensor]], Operator[..., Tensor]]:
    """Register the draw and the score of nodes with Gumbel or normal noise as operators."""

    def draw(
        logits: Float[Tensor, "members units n"],
        temperature: Float64[Tensor, " members"],
        key: Int64[Tensor, "members 2"],
        samples: int,
        squash: str,
        length: int = 1,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw nodes, squash them ("none", "simplex" or "cube"), and score the nodes.

        Each member has its own key. Log densities are summed over rows of `length` units.
        """
        _, units, n = logits.shape
        drawn = noise_of_key(key, samples, units, n, gaussian=gaussian)
        node = push(logits.float().unsqueeze(1), temperature.float().view(-1, 1, 1), drawn)
        log_density = log_density_of_noise(drawn, temperature.view(-1, 1, 1)).float()
        return node, squashed(node, squash), row_sums(log_density, length)

    def score(
        node: Float[Tensor, "members m units n"],
        logits: Float[Tensor, "members units n"],
        temperature: Float64[Tensor, " members"],
        length: int = 1,
    ) -> Float[Tensor, "members m rows"]:
        """Return the log densities of nodes, summed over rows of `length` units; samples share logits."""
        temperature = temperature.view(-1, 1, 1)
        # only the subtraction needs float64; the kernel also continues in float32
        noise = invert_noise(node, logits.unsqueeze(1), over_categories(temperature), up_to_shift=True).float()
        return row_sums(log_density_of_noise(noise, temperature).float(), length)

    def fits_draw(logits: Tensor, temperature: Tensor, key: Tensor, samples: int, *_: Any) -> bool:
        return fits(samples * logits.shape[1], logits.shape[2])

    def fits_nodes(node: Tensor, *_: Any) -> bool:
        return fits(node.shape[1] * node.shape[2], node.shape[3])

    if gaussian:
        draw.__name__, score.__name__ = "draw_gaussian", "score_gaussian"  # the names of their kernels
    return (
        operator(f"{name}_draw", kernel="exp_concrete", eligible=fits_draw, nondifferentiable=[2])(draw),
        operator(f"{name}_score", kernel="exp_concrete", eligible=fits_nodes)(score),
    )
