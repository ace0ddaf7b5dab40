"""Latent variable models: a generative program and an optional inference program."""

from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils._pytree import tree_map

from ..distribution.variable import DiscreteVariable
from ..graph.mode import Discrete, Mode, Replay
from ..graph.program import Program
from ..graph.run import run
from ..graph.trace import Trace
from ..noise import Source


class Model(nn.Module):
    """A generative program p and an optional inference program q.

    Each is a module or a function of `draw` and inputs, and both get the same inputs. p draws the latents, then calls
    `draw(..., observed=x)` for the data; q draws the latents by the same names. Without q, p draws the latents, as in
    structured prediction.

    >>> import torch
    >>> from concretely import Bernoulli, Model, mode
    >>> encoder, decoder = torch.nn.Linear(6, 2), torch.nn.Linear(2, 6)
    >>> def p(draw, x=None):
    ...     z = draw("z", Bernoulli(logits=torch.zeros(2)))
    ...     return draw("x", Bernoulli(logits=decoder(z)), observed=x)
    >>> def q(draw, x):
    ...     draw("z", Bernoulli(logits=encoder(x)))
    >>> Model(p, q).sample(3).shape
    torch.Size([3, 6])
    """

    def __init__(self, p: Program, q: Program | None = None) -> None:
        super().__init__()
        self.p = p
        self.q = q

    def trace(
        self,
        *inputs: Any,
        mode: Mode,
        prior_mode: Mode | None = None,
        samples: int | None = None,
        generator: Source | None = None,
        batch_dims: int = 1,
    ) -> tuple[Trace, Trace]:
        """Draw the latents in one mode and score them under p in another; return the traces of p and q.

        Without q, both are the trace of p.
        """
        q = self.drawn(*inputs, mode=mode, samples=samples, generator=generator, batch_dims=batch_dims)
        prior_mode = mode if prior_mode is None else prior_mode
        return self.scored(q, *inputs, mode=prior_mode, batch_dims=batch_dims), q

    def drawn(
        self,
        *inputs: Any,
        mode: Mode,
        samples: int | None = None,
        generator: Source | None = None,
        batch_dims: int = 1,
    ) -> Trace:
        """Draw the latents: the first half of `trace`."""
        program = self.p if self.q is None else self.q
        trace = run(program, *inputs, mode=mode, samples=samples, generator=generator, batch_dims=batch_dims)
        if not trace.latent and self.q is not None:
            raise ValueError("q must draw the latent nodes, got no call of draw")
        return trace

    def scored(self, drawn: Trace, *inputs: Any, mode: Mode, batch_dims: int = 1) -> Trace:
        """Score the latents and the data under p: the second half of `trace`."""
        if self.q is None:
            return drawn
        p = run(self.p, *inputs, mode=Replay(drawn, mode), batch_dims=batch_dims)
        for name in drawn.latent:
            if name not in p:
                raise ValueError(f"p must draw every node that q draws, got no {name!r}")
            _require_alike(name, p[name].distribution, drawn[name].distribution)
        return p

    def sample(self, samples: int, *inputs: Tensor, generator: Source | None = None) -> Any:
        """Run p in discrete mode with several samples and return its output; inputs are the context.

        Tensors with a row for each sample and data point of the context get an axis for both.
        """
        trace = run(self.p, *inputs, mode=Discrete(), samples=samples, generator=generator)
        return tree_map(trace.rows.unfolded, trace.output)


def _require_alike(name: str, p: Distribution, q: Distribution) -> None:
    """Raise if a discrete node has different types or event shapes in p and q."""
    is_discrete = isinstance(p, DiscreteVariable) or isinstance(q, DiscreteVariable)
    if is_discrete and (type(p) is not type(q) or p.event_shape != q.event_shape):
        found = f"{type(p).__name__} with event shape {tuple(p.event_shape)}"
        raise ValueError(f"node {name!r} is a {type(q).__name__} in q and must be the same in p, got {found}")
