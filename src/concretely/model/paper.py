"""The models of the paper: densities p(x), and structured predictions p(x | context), such as half an image."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Generator, Tensor, nn

from ..graph.program import Draw
from ..notation import Architecture, Layer, Link, parse
from .base import Model
from .layer import Centre, Hidden, Top, Visible, as_bits, as_units, dtype_of, signs


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
    architecture = parse(notation, arity=arity) if isinstance(notation, str) else notation
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
    architecture = parse(notation, arity=arity) if isinstance(notation, str) else notation
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
