"""Density models of the paper."""

from torch import Generator, Tensor, nn

from ..graph.program import Draw
from ..notation import Architecture, parse
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
    """Build a model of p(x) from the paper's notation, such as 200H~784V.

    The observed node is "x"; the latent nodes are "h1", "h2" and so on, from the data to the top. Both networks see
    states of -1 and 1. `base_rate` is the mean of the training data; it initializes the bias of the observed layer.
    `encoder_width` is the width of the tanh layers next to the data, by default that of the layer above.

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


class Generative(nn.Module):
    """The generative network, from learned logits at the top down to the data."""

    def __init__(self, architecture: Architecture, *, base_rate: Tensor | None, generator: Generator | None) -> None:
        super().__init__()
        layers, links = architecture.latent, architecture.links
        self.names = [f"h{len(layers) - i}" for i in range(len(layers))]
        self.top = Top(layers[0])
        self.layers = nn.ModuleList(
            Hidden(before.units, layer, link, width=before.units, generator=generator)
            for before, layer, link in zip(layers[:-1], layers[1:], links[:-1], strict=True)
        )
        last, observed = layers[-1], architecture.observed
        self.visible = Visible(
            last.units, observed, links[-1], width=last.units, base_rate=base_rate, generator=generator
        )

    def forward(self, draw: Draw, x: Tensor | None = None) -> Tensor:
        """Draw the latents, and draw or score the data."""
        x = None if x is None else as_bits("x", x, self.visible.units, self.top.logits.dtype)
        state = draw(self.names[0], self.top()).flatten(-2)
        for name, layer in zip(self.names[1:], self.layers, strict=True):
            state = draw(name, layer(state)).flatten(-2)
        return draw("x", self.visible(state), observed=x)


class Inference(nn.Module):
    """The inference network, from the data to the top; each latent state is centred for the next layer."""

    def __init__(self, architecture: Architecture, *, encoder_width: int | None, generator: Generator | None) -> None:
        super().__init__()
        self.units = architecture.observed.units
        above = architecture.latent[::-1]
        below = (architecture.observed, *above[:-1])
        widths = (encoder_width or above[0].units, *(layer.units for layer in above[:-1]))
        self.names = [f"h{i + 1}" for i in range(len(above))]
        self.layers = nn.ModuleList(
            Hidden(before.units, layer, link, width=width, generator=generator)
            for before, layer, link, width in zip(below, above, architecture.links[::-1], widths, strict=True)
        )
        self.centres = nn.ModuleList([*(Centre(layer.units) for layer in above[:-1]), nn.Identity()])

    def forward(self, draw: Draw, x: Tensor) -> None:
        """Draw the latents given the data."""
        state = signs(as_units("x", x, self.units, dtype_of(self.layers)))  # p checks the bits
        for name, layer, centre in zip(self.names, self.layers, self.centres, strict=True):
            state = centre(draw(name, layer(state)).flatten(-2))
