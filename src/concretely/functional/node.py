"""Operators that draw and score an unbounded variable (a node before squashing), defined once for all families."""

import math
from collections.abc import Callable
from typing import Any

from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..kernel.layout import row_sums
from ..kernel.operator import Operator, operator
from ..kernel.tile import fits
from .arithmetic import Temperature, invert_noise
from .squashing import squashed


def node_operators(
    name: str,
    noise_of_key: Callable[..., Tensor],
    push: Callable[[Tensor, Temperature, Tensor], Tensor],
    log_density_of_noise: Callable[[Tensor, Temperature], Tensor],
    *,
    category_axes: int,
    kernel: str | None = None,
    suffix: str = "",
) -> tuple[Operator[..., tuple[Tensor, Tensor, Tensor]], Operator[..., Tensor]]:
    """Register and return two operators, which draw and score nodes of one family.

    `suffix` distinguishes the kernels of this family from others in the same kernel module.
    """

    def draw(
        logits: Float[Tensor, "members units *n"],
        temperature: Float64[Tensor, " members"],
        key: Int64[Tensor, "members 2"],
        samples: int,
        squash: str,
        length: int = 1,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return drawn nodes, their squashed values, and the log densities of the nodes.

        `squash` is the name of a `Squashing`, or "none". Each member has its own key. Log densities are summed over
        rows of `length` units.
        """
        drawn = noise_of_key(key, samples, *logits.shape[1:])
        node = push(logits.float().unsqueeze(1), temperature.float().view(-1, 1, 1), drawn)
        log_density = log_density_of_noise(drawn, temperature.view(-1, 1, 1)).float()
        return node, squashed(node, squash), row_sums(log_density, length)

    def score(
        node: Float[Tensor, "members m units *n"],
        logits: Float[Tensor, "members units *n"],
        temperature: Float64[Tensor, " members"],
        length: int = 1,
    ) -> Float[Tensor, "members m rows"]:
        """Return the log densities of nodes, summed over rows of `length` units. All samples share the logits."""
        scale = temperature.view(-1, 1, 1, *[1] * category_axes)
        # only the subtraction needs float64; the kernel also continues in float32
        noise = invert_noise(node, logits.unsqueeze(1), scale, up_to_shift=category_axes > 0).float()
        return row_sums(log_density_of_noise(noise, temperature.view(-1, 1, 1)).float(), length)

    def fits_draw(logits: Tensor, temperature: Tensor, key: Tensor, samples: int, *_: Any) -> bool:
        return fits(samples * math.prod(logits.shape[:-1]), logits.shape[-1])

    def fits_nodes(node: Tensor, *_: Any) -> bool:
        return fits(math.prod(node.shape[:-1]), node.shape[-1])

    eligible = (fits_draw, fits_nodes) if category_axes else (None, None)
    draw.__name__, score.__name__ = f"draw{suffix}", f"score{suffix}"
    return (
        operator(f"{name}_draw", kernel=kernel or name, eligible=eligible[0], nondifferentiable=[2], saved=[0])(draw),
        operator(f"{name}_score", kernel=kernel or name, eligible=eligible[1])(score),
    )
