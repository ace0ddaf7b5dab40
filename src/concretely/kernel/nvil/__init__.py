"""The signal of NVIL, less its running mean and over its running deviation, in one pass."""

from jaxtyping import Float
from torch import Tensor

from ..handwritten import is_fast, operator
from . import naive


def normalized(
    signal: Float[Tensor, "members m batch"],
    mean: Float[Tensor, " members"],
    variance: Float[Tensor, " members"],
    rate: float,
    centre: bool,
    scale: bool,
) -> tuple[Float[Tensor, "members m batch"], Float[Tensor, " members"], Float[Tensor, " members"]]:
    """The normalised signal, and the running mean and variance, of which so much is kept; without gradients."""
    found: tuple[Tensor, Tensor, Tensor] = _normalized(signal, mean, variance, rate, centre, scale)
    return found


@operator("nvil")
def _normalized(
    signal: Tensor, mean: Tensor, variance: Tensor, rate: float, centre: bool, scale: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if is_fast(signal) and signal.numel():
        from . import triton

        return triton.normalized(signal, mean, variance, rate, centre, scale)
    found, mean, variance = naive.normalized(signal, mean, variance, rate, centre, scale)
    return found.contiguous(), mean, variance


@_normalized.register_fake
def _(
    signal: Tensor, mean: Tensor, variance: Tensor, rate: float, centre: bool, scale: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return signal.new_empty(signal.shape), mean.new_empty(mean.shape), variance.new_empty(variance.shape)
