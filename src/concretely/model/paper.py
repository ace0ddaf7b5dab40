"""The models of the paper: densities p(x), and structured predictions p(x | context), such as half an image.

Their layers are networks of n-ary units, with centred inputs in the inference network.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ..distribution.binary import Bernoulli
from ..distribution.check import are_bits, first
from ..distribution.hypercube import Hypercube
from ..functional.arithmetic import affine, bool_or_none, cast, compute_dtype
from ..graph.program import Draw
from ..notation import Architecture, Layer, Link, parse
from .model import Model

RARE = 1e-3
"""Base rates are clamped to [RARE, 1 - RARE], since a pixel that is always off would have an infinite logit."""


def density(
    notation: str | Architecture,
    *,
    arity: int | None = None,
    base_rate: Tensor | None = None,
    encoder_width: int | None = None,
    generator: Generator | None = None,
) -> Model:
    """Build a model of p(x), with an inference network, from the paper's notation, such as 200H~784V.

    200H is a layer of 200 latent units, 784V one of 784 observed units. The link "-" is a linear map, and "~" is two
    tanh layers and a linear map (see `parse`). The observed node is "x"; the latent nodes are "h1", "h2" and so on,
    where "h1" is next to the data. Both networks see states of -1 and 1. `base_rate` is the mean of the training data;
    it initializes the bias of the observed layer. `encoder_width` is the width of the tanh layers between x and "h1" in
    the inference network, by default the number of units of "h1".

    >>> import torch
    >>> model = density("200H-200H~784V")
    >>> model.sample(2).shape
    torch.Size([2, 784])
    """
    architecture = notation if isinstance(notation, Architecture) else parse(notation, arity=arity)
    if architecture.context is not None:
        raise ValueError(
            f"a density must begin with a latent layer, got {architecture}: use `prediction` for models with a context"
        )
    p = Generative(architecture, base_rate=base_rate, generator=generator)
    return Model(p, Inference(architecture, encoder_width=encoder_width, generator=generator))


def prediction(
    notation: str | Architecture,
    *,
    arity: int | None = None,
    base_rate: Tensor | None = None,
    encoder_width: int | None = None,
    generator: Generator | None = None,
) -> Model:
    """Build a model of p(x | context) from the paper's notation, such as 392V-240H-240H-392V.

    See `density` for the notation. The first layer is the context, and the inputs of the model are the context and x.
    The nodes are "h1", "h2" and so on, from the context to the observed "x". `base_rate` is the mean of x over the
    training data; it initializes the bias of the observed layer. `encoder_width` is the width of the tanh layers
    between the context and "h1", by default the number of units of "h1".

    >>> import torch
    >>> model = prediction("6V-4H-6V")
    >>> model.sample(2, torch.zeros(5, 6)).shape
    torch.Size([2, 5, 6])
    """
    architecture = notation if isinstance(notation, Architecture) else parse(notation, arity=arity)
    if architecture.context is None:
        raise ValueError(
            f"a prediction must begin with an observed layer, got {architecture}: use `density` without a context"
        )
    return Model(Predictive(architecture, base_rate=base_rate, encoder_width=encoder_width, generator=generator))


class Generative(nn.Module):
    """The generative network, from learned logits at the top down to the data."""

    def __init__(self, architecture: Architecture, *, base_rate: Tensor | None, generator: Generator | None) -> None:
        super().__init__()
        *layers, observed = architecture.layers
        *links, last = architecture.links
        self.names = [f"h{len(layers) - i}" for i in range(len(layers))]
        self.top = Top(layers[0])
        self.layers = _chain(layers, links, generator=generator)
        self.visible = Visible(layers[-1].units, observed, last, base_rate=base_rate, generator=generator)

    def forward(self, draw: Draw, x: Tensor | None = None) -> Tensor:
        """Draw the latents, and draw or score the data."""
        x = None if x is None else as_bits("x", x, self.visible.units, self.top.logits.dtype)
        state = draw(self.names[0], self.top()).flatten(-2)
        for name, layer in zip(self.names[1:], self.layers, strict=True):
            state = draw(name, layer(state)).flatten(-2)
        return draw("x", self.visible(state), observed=x)


class Inference(nn.Module):
    """The inference network, from the data to the top. Each latent state is centred before it enters the next layer."""

    def __init__(self, architecture: Architecture, *, encoder_width: int | None, generator: Generator | None) -> None:
        super().__init__()
        self.units = architecture.observed.units
        above = architecture.latent[::-1]
        self.names = [f"h{i + 1}" for i in range(len(above))]
        layers, links = architecture.layers[::-1], architecture.links[::-1]
        self.layers = _chain(layers, links, encoder_width=encoder_width, generator=generator)
        self.centres = nn.ModuleList([*(Centre(layer.units) for layer in above[:-1]), nn.Identity()])

    def forward(self, draw: Draw, x: Tensor) -> None:
        """Draw the latents given the data."""
        state = signs(as_units("x", x, self.units, dtype_of(self.layers)))  # p checks the bits
        for name, layer, centre in zip(self.names, self.layers, self.centres, strict=True):
            state = centre(draw(name, layer(state)).flatten(-2))


class Predictive(nn.Module):
    """The network from the context through the latents to x."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        base_rate: Tensor | None,
        encoder_width: int | None,
        generator: Generator | None,
    ) -> None:
        super().__init__()
        *layers, observed = architecture.layers
        *links, last = architecture.links
        self.context = layers[0].units
        self.names = [f"h{i + 1}" for i in range(len(links))]
        self.layers = _chain(layers, links, encoder_width=encoder_width, generator=generator)
        self.visible = Visible(layers[-1].units, observed, last, base_rate=base_rate, generator=generator)

    def forward(self, draw: Draw, context: Tensor, x: Tensor | None = None) -> Tensor:
        """Draw the latents given the context, and draw or score x."""
        dtype = dtype_of(self.layers)
        state = signs(as_bits("context", context, self.context, dtype))
        x = None if x is None else as_bits("x", x, self.visible.units, dtype)
        for name, layer in zip(self.names, self.layers, strict=True):
            state = draw(name, layer(state)).flatten(-2)
        return draw("x", self.visible(state), observed=x)


def _chain(
    layers: Sequence[Layer], links: Sequence[Link], *, encoder_width: int | None = None, generator: Generator | None
) -> nn.ModuleList:
    """Build latent layers, each conditioned on the layer before.

    Tanh layers are as wide as the latent layer before them. After an observed layer their width is `encoder_width`, by
    default the width of the latent layer after them.
    """
    widths = [(encoder_width or layer.units) if before.observed else before.units for before, layer in pairwise(layers)]
    return nn.ModuleList(
        Hidden(before.units, layer, link, width=width, generator=generator)
        for (before, layer), link, width in zip(pairwise(layers), links, widths, strict=True)
    )


def mlp(inputs: int, outputs: int, link: Link, *, width: int, generator: Generator | None) -> "MLP":
    """Build a linear map or, for the link `~`, two tanh layers and a linear map, with Glorot initialization.

    See [glorot2010understanding] and [maddison2017concrete], appendix D.1.
    """
    sizes = [inputs, outputs] if link == "-" else [inputs, width, width, outputs]
    parts: list[nn.Module] = []
    for size, following in pairwise(sizes):
        linear = nn.utils.skip_init(nn.Linear, size, following, device=torch.get_default_device())
        nn.init.xavier_uniform_(linear.weight, generator=generator)
        nn.init.zeros_(linear.bias)
        parts += [linear, nn.Tanh()]
    return MLP(*parts[:-1])


class MLP(nn.Sequential):
    """Affine maps with tanh in between."""

    @property
    def maps(self) -> list[nn.Linear]:
        """The affine maps."""
        return [module for module in self if isinstance(module, nn.Linear)]

    @property
    def has_hooks(self) -> bool:
        """Whether any module has a forward hook, which a fused map would skip."""
        return any(module._forward_hooks for module in (self, *self))

    def hidden(self, state: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch hidden"]:
        """Return the input of the last map."""
        for linear in self.maps[:-1]:
            state = affine(state, linear.weight, linear.bias, True)
        return state

    def forward(self, state: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """Return the output of the last map."""
        if self.has_hooks:
            return super().forward(state)  # type: ignore[no-untyped-call, no-any-return]
        last = self.maps[-1]
        return affine(self.hidden(state), last.weight, last.bias, False)


class Hidden(nn.Module):
    """A layer of n-ary units, conditioned on the layer before. A unit has n logits, or one if it is binary."""

    def __init__(self, before: int, layer: Layer, link: Link, *, width: int, generator: Generator | None) -> None:
        super().__init__()
        self.shape = node_shape(layer)
        self.network = mlp(before, math.prod(self.shape), link, width=width, generator=generator)

    def forward(self, state: Float[Tensor, "*batch before"]) -> Hypercube:
        """Return the distribution of the layer."""
        logits = _wide_enough(self.network(state))
        return Hypercube(logits=logits.view(*logits.shape[:-1], *self.shape), validate_args=False)


class Top(nn.Module):
    """A layer of n-ary units with learned logits and no inputs."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(node_shape(layer)))

    def forward(self) -> Hypercube:
        """Return the distribution of the layer."""
        return Hypercube(logits=self.logits, validate_args=False)


class Visible(nn.Module):
    """The observed layer of bits, conditioned on the layer before. The base rate initializes its bias."""

    def __init__(
        self, before: int, layer: Layer, link: Link, *, base_rate: Tensor | None, generator: Generator | None
    ) -> None:
        super().__init__()
        self.units = layer.units
        self.network = mlp(before, layer.units, link, width=before, generator=generator)
        if base_rate is not None:
            with torch.no_grad():
                bias = torch.logit(as_rate(base_rate, layer.units).clamp(RARE, 1 - RARE))
                self.network.maps[-1].bias.copy_(bias)

    def forward(self, state: Float[Tensor, "*batch before"]) -> Bernoulli:
        """Return the distribution of the layer."""
        if self.network.has_hooks:
            return Bernoulli(logits=_wide_enough(self.network(state)), validate_args=False)
        last = self.network.maps[-1]
        return Bernoulli.from_affine(self.network.hidden(state), last.weight, last.bias)


class Centre(nn.Module):
    """Subtracts a running average of the state over minibatches, then updates the average without a gradient.

    There is no update in evaluation mode or if gradients are disabled. See [maddison2017concrete], appendix D.4.
    """

    offset: Tensor

    def __init__(self, units: int, rate: float = 0.9) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("offset", torch.zeros(units))

    def forward(self, state: Float[Tensor, "*batch units"]) -> Float[Tensor, "*batch units"]:
        """Return the centred state."""
        centred = state - self.offset
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                self.offset.mul_(self.rate).add_(state.flatten(0, -2).mean(0), alpha=1 - self.rate)
        return centred


def _wide_enough(logits: Tensor) -> Tensor:
    """Cast logits to at least float32, since autocast may return less."""
    return cast(logits, compute_dtype(logits.dtype))


def node_shape(layer: Layer) -> tuple[int, int]:
    """Return the number of nodes of a layer, and the number of logits per node."""
    return layer.groups, 1 if layer.arity == 2 else layer.arity


def dtype_of(layers: nn.ModuleList) -> torch.dtype:
    """Return the dtype of the parameters, without iterating over all of them."""
    hidden = layers[0]
    assert isinstance(hidden, Hidden)
    linear = hidden.network[0]
    assert isinstance(linear, nn.Linear)
    return linear.weight.dtype


def as_units(name: str, bits: Tensor, units: int, dtype: torch.dtype) -> Float[Tensor, "*batch units"]:
    """Cast observed bits to the dtype of the model; raise if their shape is wrong."""
    if not isinstance(bits, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(bits).__name__}")
    if bits.dim() == 1:
        raise ValueError(f"{name} must have an axis of data points before that of bits, got shape {tuple(bits.shape)}")
    if bits.dim() == 0 or bits.shape[-1] != units:
        raise ValueError(f"{name} must have a last axis of {units} bits, got shape {tuple(bits.shape)}")
    return bits.to(dtype)


def as_bits(name: str, bits: Tensor, units: int, dtype: torch.dtype) -> Float[Tensor, "*batch units"]:
    """Cast observed bits to the dtype of the model; raise if any is not 0 or 1."""
    bits = as_units(name, bits, units, dtype)
    if are_bits(bits) is False:
        raise ValueError(f"{name} must be bits of 0 and 1, got {first(bits, (bits != 0) & (bits != 1))}")
    return bits


def signs(bits: Float[Tensor, "*batch units"]) -> Float[Tensor, "*batch units"]:
    """Map bits to -1 and 1, in one pass."""
    return torch.add(torch.tensor(-1.0, dtype=bits.dtype, device="cpu"), bits, alpha=2)


def as_rate(rate: Tensor, units: int) -> Tensor:
    """Return a base rate; raise if its shape or range is wrong."""
    if rate.shape != (units,):
        raise ValueError(
            f"base_rate must have shape ({units},), one rate for each observed unit, got {tuple(rate.shape)}"
        )
    if bool_or_none(((rate >= 0) & (rate <= 1)).all()) is False:
        raise ValueError(f"base_rate must lie between 0 and 1, got {first(rate, (rate < 0) | (rate > 1))}")
    return rate
