"""Structured prediction models of the paper."""

from torch import Generator, Tensor, nn

from ..graph.program import Draw
from ..notation import Architecture, parse
from .base import Model
from .layer import Hidden, Visible, as_bits, dtype_of, signs


def prediction(
    notation: str | Architecture,
    *,
    arity: int | None = None,
    base_rate: Tensor | None = None,
    encoder_width: int | None = None,
    generator: Generator | None = None,
) -> Model:
    """Build a model of p(x | context) from the paper's notation, such as 392V-240H-240H-392V.

    Its inputs are the context and x. The nodes are "h1", "h2" and so on, from the context to the observed "x".
    `base_rate` is the mean of x over the training data; it initializes the bias of the observed layer.
    `encoder_width` is the width of the tanh layers next to the context, by default that of the next latent layer.

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
        *before, last, observed = architecture.layers
        latent = architecture.latent
        self.context = architecture.layers[0].units
        widths = (encoder_width or latent[0].units, *(layer.units for layer in latent[:-1]))
        self.names = [f"h{i + 1}" for i in range(len(latent))]
        self.layers = nn.ModuleList(
            Hidden(below.units, layer, link, width=width, generator=generator)
            for below, layer, link, width in zip(before, latent, architecture.links[:-1], widths, strict=True)
        )
        link = architecture.links[-1]
        self.visible = Visible(last.units, observed, link, width=last.units, base_rate=base_rate, generator=generator)

    def forward(self, draw: Draw, context: Tensor, x: Tensor | None = None) -> Tensor:
        """Draw the latents given the context, and draw or score x."""
        dtype = dtype_of(self.layers)
        state = signs(as_bits("context", context, self.context, dtype))
        x = None if x is None else as_bits("x", x, self.visible.units, dtype)
        for name, layer in zip(self.names, self.layers, strict=True):
            state = draw(name, layer(state)).flatten(-2)
        return draw("x", self.visible(state), observed=x)
