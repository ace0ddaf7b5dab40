"""The definition of the log likelihood of bits under an affine map."""

from jaxtyping import Float, Shaped
from torch import Tensor

from ..affine import naive as affine
from ..likelihood import naive as likelihood


def log_likelihood(
    state: Float[Tensor, "members m batch inputs"],
    weight: Float[Tensor, "members units inputs"],
    bias: Float[Tensor, "members units"],
    bits: Shaped[Tensor, "members batch units"],
) -> Float[Tensor, "members m batch"]:
    """The log mass of bits, which the samples share."""
    logits = affine.affine(state.flatten(1, 2), weight, bias, tanh=False)
    return likelihood.log_likelihood(logits.unflatten(1, state.shape[1:3]), bits)
