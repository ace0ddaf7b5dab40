"""Drop-in replacements for `torch.nn.functional.gumbel_softmax`, for categories and for bits."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..distribution.check import LEAST
from ..functional import gumbel_softmax as categories
from ..functional import logistic
from ..functional.arithmetic import Temperature, bool_or_none, cast, compute_dtype, has_nan, is_finite
from ..functional.draw import draw_node
from ..functional.noise import require_source
from ..functional.squashing import Sigmoid, Threshold
from ..spelling import shown

COLDEST = LEAST[torch.float32]
"""A temperature of at least this is never too small."""


def gumbel_softmax(
    logits: Float[Tensor, "..."],
    tau: Temperature = 1,
    hard: bool = False,
    eps: float | None = None,
    dim: int = -1,
    *,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    """Draw from the Gumbel-Softmax (Concrete) distribution, with the arguments of torch's function.

    The result is a point of the simplex or, if `hard`, an exact one-hot vector whose gradient is that of the point. It
    is finite in every dtype. A logit of minus infinity excludes a category.

    The function always adds noise, as torch's does: it does not know whether a model is in evaluation mode. For a
    deterministic choice in evaluation, use `logits.argmax(dim)` instead of this function; for predictions averaged
    over draws, keep the noise. The temperature matters in training only: it does not change the category drawn.

    Args:
        logits: Unnormalised log probabilities.
        tau: The temperature: a number, a tensor of one number, or a tensor with one temperature for each row, such as
            one of shape (64,) or (64, 1) for logits of shape (64, 4). At 0, draws are one-hot and have no gradient.
        hard: Whether to return one-hot vectors.
        eps: Ignored. Torch's function has it for compatibility too.
        dim: The axis of the categories.
        generator: The random number generator. A compiled program must draw without one.

    >>> gate = gumbel_softmax(torch.tensor([[0.0, 1.0, -torch.inf]]), tau=0.5, hard=True)
    >>> gate.sum().item(), gate[0, 2].item()
    (1.0, 0.0)
    """
    is_plain = type(tau) in (float, int) and COLDEST <= tau < math.inf
    if is_plain and dim == -1:
        quick = categories.draw_at_once(logits, float(tau), hard=hard, generator=generator)
        if quick is not None:
            return quick
    require_floating(logits)
    axes = logits.dim()
    if not isinstance(dim, Integral) or not -axes <= dim < axes:
        got = f"{shown(dim)} for logits of shape {tuple(logits.shape)}"
        raise ValueError(f"dim must be an axis of the logits, got {got}")
    is_last = dim in (-1, axes - 1)
    rows = logits if is_last else logits.movedim(dim, -1)
    temperature = float(tau) if is_plain else _temperature(tau, logits, dim)
    if generator is not None:
        require_source(generator)
    if not rows.shape[-1]:
        raise ValueError(f"logits must have at least one category, got shape {tuple(logits.shape)}")
    if not is_plain and not rows.is_cuda and is_finite(rows) is False:  # at temperature 0, no value is NaN
        explain(rows)
    value = categories.draw(rows, temperature, hard=hard, generator=generator)
    if not value.is_cuda and has_nan(value):
        explain(rows)
        # logits over a tiny temperature overflowed, or the noise was infinite, as once in 2⁵³ draws
        value = categories.draw_by_definition(rows, temperature, hard=hard, generator=generator)
    return value if is_last else value.movedim(-1, dim).contiguous()  # as torch's, so that `view` works


def gumbel_sigmoid(
    logits: Float[Tensor, "..."],
    tau: Temperature = 1,
    hard: bool = False,
    *,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    """Draw binary gates: values between 0 and 1 or, if `hard`, exact bits with the gradient of such a value.

    A gate is 1 with probability sigmoid(logits). This is `gumbel_softmax` for two categories with logits (0, logits).
    As there, noise is always added: for a deterministic gate in evaluation, use `logits > 0`.

    Args:
        logits: Log-odds.
        tau: The temperature: a number or a tensor that broadcasts with the logits, or 0 for bits without a gradient.
        hard: Whether to return bits.
        generator: The random number generator. A compiled program must draw without one.

    >>> gumbel_sigmoid(torch.tensor([-1e4, 1e4]), hard=True)
    tensor([0., 1.])
    """
    require_floating(logits)
    temperature = _positive(tau, logits.dtype)
    if isinstance(temperature, Tensor) and not broadcasts(temperature.shape, logits.shape):
        raise ValueError(
            f"tau must broadcast to the logits' shape {tuple(logits.shape)}, got shape {tuple(temperature.shape)}"
        )
    if not logits.is_cuda and has_nan(logits):
        raise ValueError("logits must be numbers, got nan")
    squashing = Threshold() if hard else Sigmoid()
    drawn = draw_node(logistic, logits, temperature, sample_shape=(), generator=generator, squashing=squashing)
    return cast(drawn.value, logits.dtype)


def require_floating(logits: Any, name: str = "logits") -> None:
    """Raise unless logits are a floating tensor."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"{name} must be a floating tensor, got {got}")


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Return whether a shape broadcasts to another one."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(one in (1, other) for one, other in pairs)


def _temperature(tau: Any, logits: Tensor, dim: int) -> Temperature:
    """Return the temperature as a float or, for a tensor, with an axis of length 1 for the categories at the end."""
    temperature = _positive(tau, logits.dtype)
    if not isinstance(temperature, Tensor) or temperature.dim() == 0:
        return temperature
    if temperature.numel() == 1:
        return temperature.reshape(())
    batch = logits.movedim(dim, -1).shape[:-1]
    if temperature.shape == batch:
        return temperature.unsqueeze(-1)
    # as torch broadcasts it; with fewer axes, torch's function would take the last of them for categories
    is_whole = temperature.dim() == logits.dim() and temperature.shape[dim] == 1
    if is_whole and broadcasts(temperature.shape, logits.shape):
        return temperature.movedim(dim, -1)
    whole = [*logits.shape]
    whole[dim] = 1
    must = f"tau must have one temperature for each row, of shape {tuple(batch)} or {tuple(whole)}"
    raise ValueError(f"{must}, got shape {tuple(temperature.shape)}")


def _positive(tau: Any, dtype: torch.dtype) -> Temperature:
    least = LEAST[compute_dtype(dtype)]
    if isinstance(tau, Tensor) and tau.is_floating_point():
        if not tau.is_cuda:  # reading it would wait for a GPU
            holds = ((tau >= least) | (tau == 0)) & (tau < math.inf)
            if bool_or_none(holds.all()) is False:
                raise _wrong(tau[~holds].flatten()[0].item(), least)
        return tau
    if isinstance(tau, bool | Tensor) or not isinstance(tau, (Real, torch.SymFloat)):
        got = tau.dtype if isinstance(tau, Tensor) else type(tau).__name__
        raise TypeError(f"tau must be a number or a floating tensor, got {got}")
    number: Any = tau if isinstance(tau, torch.SymFloat) else float(tau)
    if not least <= number < math.inf and number != 0:
        raise _wrong(number, least)
    return number  # type: ignore[no-any-return]


def _wrong(tau: float, least: float) -> ValueError:
    """Return the error of a temperature that is not 0 and below the least one, infinite or NaN."""
    must = f"be at least {least:.2g}" if 0 < tau < least else "be positive"
    return ValueError(f"tau must {must}, or 0 for one-hot draws, got {tau:.9g}")


def explain(logits: Tensor) -> None:
    """Raise an error that says which logits make a draw impossible, unless the noise did, as once in 2⁵³ draws."""
    for must, wrong in (
        ("be numbers", logits.isnan()),
        ("be below infinity", logits == math.inf),
        ("leave at least one category possible", (logits == -math.inf).all(-1, keepdim=True)),
    ):
        if wrong.any():
            row = tuple(wrong.any(-1).nonzero()[0].tolist())
            got = str(logits[row].tolist())
            got = got if len(got) <= 60 else got[:60] + " ..."
            raise ValueError(f"logits must {must}, got {got} in row {row}")
