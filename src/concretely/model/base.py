"""A latent variable model: a generative program and, where there is one, an inference program."""

from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution

from ..distribution.discrete import DiscreteVariable
from ..graph import run
from ..mode import Discrete, Mode, Replay
from ..noise import Source
from ..program import Program
from ..trace import Trace


class Model(nn.Module):
    """A generative program p and an inference program q, either of them a module or any function of `draw` and inputs.

    Both are given the same inputs. Program p draws the latent nodes and then the observed ones, which it passes on as
    `observed`; q draws nodes of the same names as the latent ones. Without q the latents are drawn from p itself, as
    in structured prediction.

    >>> import torch
    >>> from concretely import Bernoulli, Model, mode
    >>> encoder, decoder = torch.nn.Linear(6, 2), torch.nn.Linear(2, 6)
    >>> def p(draw, x=None):
    ...     z = draw("z", Bernoulli(torch.zeros(2)))
    ...     return draw("x", Bernoulli(decoder(z)), observed=x)
    >>> def q(draw, x):
    ...     draw("z", Bernoulli(encoder(x)))
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
    ) -> tuple[Trace, Trace]:
        """Draw the latents in one mode and score them under p in another; return the traces of p and of the draws.

        Without q the two are one.
        """
        q = self.drawn(*inputs, mode=mode, samples=samples, generator=generator)
        return self.scored(q, *inputs, mode=mode if prior_mode is None else prior_mode), q

    def drawn(self, *inputs: Any, mode: Mode, samples: int | None = None, generator: Source | None = None) -> Trace:
        """Draw the latents: the first half of `trace`."""
        program = self.p if self.q is None else self.q
        trace = run(program, mode, *inputs, samples=samples, generator=generator)
        if not trace.latent and self.q is not None:
            raise ValueError("q must draw the latent nodes, got no call of draw")
        return trace

    def scored(self, drawn: Trace, *inputs: Any, mode: Mode) -> Trace:
        """Score the latents and the data under p: the second half of `trace`."""
        if self.q is None:
            return drawn
        p = run(self.p, Replay(drawn, mode), *inputs)
        for name in drawn.latent:
            if name not in p:
                raise ValueError(f"p must draw every node that q draws, got no {name!r}")
            _require_alike(name, p[name].distribution, drawn[name].distribution)
        return p

    def sample(self, samples: int, *inputs: Tensor, generator: Source | None = None) -> Any:
        """What p returns for several draws of the discrete graph, given its context if it has one."""
        return run(self.p, Discrete(), *inputs, samples=samples, generator=generator).output


def _require_alike(name: str, p: Distribution, q: Distribution) -> None:
    """Raise an error if p scores a discrete node, or its relaxation, as another kind of variable."""
    is_discrete = isinstance(p, DiscreteVariable) or isinstance(q, DiscreteVariable)
    if is_discrete and (type(p) is not type(q) or p.event_shape != q.event_shape):
        found = f"{type(p).__name__} with event shape {tuple(p.event_shape)}"
        raise ValueError(f"node {name!r} is a {type(q).__name__} in q and must be one alike in p, got {found}")
