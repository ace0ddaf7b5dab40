"""Dropout with a learned probability."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ..distribution import Bernoulli, BinaryConcrete
from ..functional.arithmetic import cast, compute_dtype
from ..functional.dropout import drop, dropped_by_kernel
from ..functional.integral import mean_sigmoid
from ..functional.noise import Source, logistic
from .base import Layer, Setting, require_count, require_last, require_number
from .rank import gathered, of_rows, whole


class DropoutReport(NamedTuple):
    """Diagnostics of a `ConcreteDropout`."""

    probability: Tensor
    """The probability that an input is dropped."""
    entropy: Tensor
    """The entropy of the mask of one input in nats."""


class ConcreteDropout(Layer):
    r"""A layer whose inputs are dropped with a learned probability p.

    In training, inputs are multiplied by a relaxed mask, divided by its exact mean. In evaluation, the layer runs
    without dropout. `sample` draws binary masks in either mode, for Monte Carlo dropout. With N data points, precision
    τ and length scale l, the penalty of the weights W of the layer, without the bias, and of its K inputs is

    $$\frac{l^2}{τN} \frac{‖W‖^2}{1 - p} - \frac{2}{τN} K H(p).$$

    See [gal2017concrete]. For a cross-entropy loss, use `precision=2`, which is the weight 1/N of the reference code.

    Args:
        layer: An `nn.Linear`, whose input features are dropped, or a convolution, whose input channels are dropped.
        points: The number of data points N.
        probability: The initial probability.
        temperature: A number, or a schedule such as `Annealing`.
        length_scale: The prior length scale l.
        precision: The precision τ of the observations.

    >>> layer = ConcreteDropout(nn.Linear(64, 10), points=1000)
    >>> layer(torch.randn(5, 64)).shape, round(layer.report().probability.item(), 3)
    (torch.Size([5, 10]), 0.1)
    """

    def __init__(
        self,
        layer: nn.Module,
        *,
        points: int,
        probability: float = 0.1,
        temperature: Setting = 0.1,
        length_scale: float = 1e-2,
        precision: float = 1.0,
    ) -> None:
        super().__init__(temperature)
        self.inputs, self.axis = _inputs(layer)
        self.layer = layer
        self.points = require_count("points", points)
        self.length_scale = require_number("length_scale", length_scale)
        self.precision = require_number("precision", precision)
        if not self.precision > 0:
            raise ValueError(f"precision must be positive, got {self.precision:g}")
        probability = require_number("probability", probability, most=1.0)
        if probability in (0, 1):
            raise ValueError(f"probability must lie strictly between 0 and 1 to be learned, got {probability:g}")
        # a vector of one number, since FSDP2 does not shard scalars
        self.logit = nn.Parameter(torch.tensor([math.log(probability) - math.log1p(-probability)]))

    def forward(self, x: Float[Tensor, "*shape"], *, generator: Source | None = None) -> Tensor:
        """Apply the layer: to inputs with a relaxed mask in training, else without one."""
        require_last("x", x, self.inputs, axis=self.axis)
        self._keeps()
        if not self.training:
            return self._through(x)
        logit, shape = whole(self.logit), self._mask_shape(x)
        generator = of_rows(generator, shape[: self.axis])
        if x.is_cpu:
            logit = cast(logit, compute_dtype(logit.dtype))
            noise = logistic(shape, logit.dtype, device=x.device, generator=generator)
            return self._through(drop(x, logit, self.temperature, noise))
        dropped = dropped_by_kernel(x, logit, self.temperature, generator) if self.axis == -1 else None
        if dropped is not None:
            return self._through(dropped)
        odds, temperature = -self._log_odds(), torch.as_tensor(self.temperature, device=x.device)
        mask = BinaryConcrete(logits=odds.expand(shape), temperature=self.temperature, validate_args=False)
        mean = mean_sigmoid(1 / temperature, odds / temperature)
        return self._through(x * cast(mask.rsample(generator=generator) / mean, x.dtype))

    @torch.no_grad()
    @gathered
    def sample(self, x: Float[Tensor, "*shape"], *, generator: Source | None = None) -> Tensor:
        """Apply the layer to inputs with a binary mask, without gradients."""
        require_last("x", x, self.inputs, axis=self.axis)
        keep = Bernoulli(logits=-self._log_odds().expand(self._mask_shape(x)), validate_args=False)
        mask = keep.sample(generator=of_rows(generator, x.shape[: self.axis])) * (1 + self._log_odds().exp())
        return self._through(x * cast(mask, x.dtype))

    def _through(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output

    def _mask_shape(self, x: Tensor) -> tuple[int, ...]:
        return tuple(x.shape) if self.axis == -1 else (*x.shape[: x.dim() + self.axis + 1], *[1] * (-self.axis - 1))

    def _log_odds(self) -> Tensor:
        """Return the log-odds of dropping an input, in at least float32."""
        return cast(whole(self.logit).squeeze(0), compute_dtype(self.logit.dtype))

    def penalty(self) -> Float[Tensor, ""]:
        """Return the penalty of the weights and of the entropy of the mask."""
        self._is_penalised = True
        weight = self.layer.weight
        assert isinstance(weight, Tensor)
        odds, weight = self._log_odds(), whole(weight)
        squares = weight.square().sum(dtype=compute_dtype(weight.dtype)) * (1 + odds.exp())
        total = self.length_scale**2 * squares - 2 * self.inputs * _entropy(odds)
        return total / (self.precision * self.points)

    @property
    def _is_penalising(self) -> bool:
        return True

    def report(self) -> DropoutReport:
        """Return the probability and the entropy."""
        with torch.no_grad():
            return DropoutReport(torch.sigmoid(self._log_odds()), _entropy(self._log_odds()))

    def decide(self) -> nn.Sequential:
        """Return the layer after an ordinary dropout with the learned probability."""
        kind = {-1: nn.Dropout, -2: nn.Dropout1d, -3: nn.Dropout2d, -4: nn.Dropout3d}[self.axis]
        return nn.Sequential(kind(self.report().probability.item()), self.layer)


def _entropy(odds: Tensor) -> Tensor:
    """Return the entropy of a bit with these log-odds in nats."""
    return -(torch.sigmoid(odds) * logsigmoid(odds) + torch.sigmoid(-odds) * logsigmoid(-odds))


def _inputs(layer: nn.Module) -> tuple[int, int]:
    """Return the number of inputs of a layer, and their axis."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, -1
    for dims, kind in enumerate((nn.Conv1d, nn.Conv2d, nn.Conv3d), 1):
        if isinstance(layer, kind):
            return layer.in_channels, -1 - dims
    raise TypeError(f"layer must be an nn.Linear or a convolution, got {type(layer).__name__}")
