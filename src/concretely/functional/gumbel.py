r"""The Gumbel variable: $X = \log α - \log(-\log U)$, whose log density at z = x - log α is -z - exp(-z)."""

from jaxtyping import Float
from torch import Tensor

from .arithmetic import to_float64
from .noise import gumbel as noise

__all__ = ["EULER", "log_density", "log_density_of_noise", "noise", "push"]

category_axes = 0
draw = score = pull = None  # no kernel, and torch differentiates `push`

EULER = 0.57721566490153286061


def push(logits: Float[Tensor, "..."], noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Add the location to the noise."""
    return logits + noise


def log_density_of_noise(noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the standard Gumbel log density."""
    return -noise - (-noise).exp()


def log_density(value: Float[Tensor, "..."], logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the log density of a value."""
    return log_density_of_noise(to_float64(value) - to_float64(logits))
