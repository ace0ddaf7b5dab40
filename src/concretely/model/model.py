"""Latent variable models: a generative program and an optional inference program."""

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Never

from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils._pytree import tree_map

from ..distribution.variable import DiscreteVariable
from ..functional.bound import average, bound
from ..functional.noise import Source
from ..graph.mode import Discrete, MissingNodeError, Mode, Replay
from ..graph.program import Program, signature, variables
from ..graph.run import run
from ..graph.trace import Trace


class Model(nn.Module):
    """A generative program p and an optional inference program q.

    Each is a module or a function of `draw` and inputs, and both get the same inputs. The modules and parameters that a
    function uses are found among its variables and become part of the model. p draws the latents, then calls
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

    kl_weight: float | Tensor = 1.0
    """The weight of the KL between q and p in the objective. Only `with_kl_weight` changes it."""

    def __init__(self, p: Program, q: Program | None = None) -> None:
        super().__init__()
        self.p = as_module("p", p)
        self.q = None if q is None else as_module("q", q)

    def forward(
        self,
        *inputs: Any,
        estimator: Any,
        samples: int = 1,
        objective: Callable[[Tensor], Tensor] | None = None,
        generator: Source | None = None,
        batch_dims: int = 1,
    ) -> Any:
        """Estimate the objective, as `estimate` does. Wrappers such as `DistributedDataParallel` call this method."""
        objective = checked_objective(estimator, objective, samples=samples, default=bound)
        return estimator(
            self, *inputs, samples=samples, objective=objective, generator=generator, batch_dims=batch_dims
        )

    def with_kl_weight(self, weight: float | Tensor) -> "Model":
        """Return a model with the same p and q whose objective weights the KL, as for a KL warm-up or a β-VAE.

        The log-weight becomes log p(x | z) + weight · (log p(z) - log q(z | x)). Likelihoods do not change.

        >>> import torch, concretely as c
        >>> model = c.density("2H-6V")
        >>> c.estimate(model.with_kl_weight(0.1), torch.zeros(3, 6), estimator=c.Reinforce()).bound.shape
        torch.Size([3])
        """
        if self.q is None:
            raise ValueError("a model must have q for its KL to be weighted, got none")
        weighted = copy(self)
        weighted.__dict__["kl_weight"] = weight  # not as a parameter, which the copies would share
        return weighted

    @property
    def is_weighted(self) -> bool:
        """Whether the weight of the KL is not, or may not be, 1."""
        return isinstance(self.kl_weight, Tensor) or self.kl_weight != 1

    def trace(
        self,
        *inputs: Any,
        mode: Mode,
        prior_mode: Mode | None = None,
        samples: int | None = None,
        generator: Source | None = None,
        batch_dims: int = 1,
    ) -> tuple[Trace, Trace]:
        """Draw the latents in `mode` and score them under p in `prior_mode`; return the traces of p and q.

        Without q, both are the trace of p. `prior_mode` is by default `mode`.
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
        q = self.q
        program = self.p if q is None else q
        trace = run(program, *inputs, mode=mode, samples=samples, generator=generator, batch_dims=batch_dims)
        if not trace.latent and q is not None:
            raise ValueError("q must draw the latent nodes, got no call of draw")
        return trace

    def scored(self, drawn: Trace, *inputs: Any, mode: Mode, batch_dims: int = 1) -> Trace:
        """Score the latents and the data under p: the second half of `trace`."""
        if self.q is None:
            return drawn
        try:
            p = run(self.p, *inputs, mode=Replay(drawn, mode), batch_dims=batch_dims)
        except MissingNodeError as error:
            must = "q must draw every node that p draws without observed="
            raise ValueError(f"{must}, got no {error.missing}") from None
        for name in drawn.latent:
            if name not in p:
                raise ValueError(f"p must draw every node that q draws, got no {name!r}")
            _require_alike(name, p[name].distribution, drawn[name].distribution)
        return p

    def sample(self, samples: int, *inputs: Tensor, generator: Source | None = None) -> Any:
        """Run p in discrete mode with several samples and return its output.

        `inputs` are the variables that p is conditioned on, if any. Tensors with a row for each sample and data point
        of the inputs get separate axes for samples and data points.
        """
        try:
            signature(self.p).bind(None, *inputs)
        except TypeError as error:
            raise TypeError(
                f"p must have a default, such as None, for inputs that are not the context: {error}"
            ) from None
        trace = run(self.p, *inputs, mode=Discrete(), samples=samples, generator=generator)
        return tree_map(trace.rows.unfolded, trace.output)


def require_estimator(estimator: Any) -> None:
    """Raise unless an estimator can be called; a class must be called first."""
    if isinstance(estimator, type) or not callable(estimator):
        got = type(estimator).__name__
        if isinstance(estimator, type):
            got = f"the class {estimator.__name__}: write {estimator.__name__}(...)"
        raise TypeError(f"estimator must be an estimator, such as Pathwise() or RLOO(), got {got}")


def checked_objective(
    estimator: Any,
    objective: Callable[[Tensor], Tensor] | None,
    *,
    samples: int,
    default: Callable[[Tensor], Tensor],
) -> Callable[[Tensor], Tensor]:
    """Check the arguments of an estimate, and return its objective: by default `average` if the estimator needs it."""
    require_estimator(estimator)
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be a positive whole number, got {samples!r}")
    if objective is not None and not callable(objective):
        raise TypeError(f"objective must be a function, such as concretely.bound, got {type(objective).__name__}")
    if not getattr(estimator, "averages", False):
        return default if objective is None else objective
    if objective not in (None, average):
        raise ValueError(
            f"objective must be `average` for {type(estimator).__name__}, or be omitted, got another function"
        )
    return average


class Function(nn.Module):
    """A program that is a function, with the modules and parameters that it uses."""

    def __init__(self, function: Callable[..., Any], parts: Mapping[str, nn.Module | nn.Parameter]) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        """Call the function."""
        return self.function(*inputs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def __deepcopy__(self, memo: object) -> Never:
        raise TypeError(
            "a model must have modules as p and q to be copied or pickled, got a function: save state_dict()"
        )

    def __reduce__(self) -> Never:
        self.__deepcopy__(None)


def as_module(name: str, program: Program) -> nn.Module:
    """Return a program as a module that has the parameters of the program."""
    if isinstance(program, nn.Module):
        return program
    if not callable(program):
        raise TypeError(f"{name} must be a module or a function of draw and inputs, got {type(program).__name__}")
    parts: dict[str, nn.Module | nn.Parameter] = {}
    for key, value in variables(program):
        if isinstance(value, nn.Module | nn.Parameter):
            if not any(value is other for other in parts.values()):
                taken = {*dir(Function), *parts}
                parts[key if key not in taken else f"{key}_{len(parts)}"] = value
        elif value.requires_grad and value.is_leaf:
            raise TypeError(
                f"{name} must use parameters that a model can find, got the tensor {key!r}, which requires a gradient: "
                "make it an nn.Parameter"
            )
    return Function(program, parts)


def _require_alike(name: str, p: Distribution, q: Distribution) -> None:
    """Raise if a discrete node has different types or event shapes in p and q."""
    is_discrete = isinstance(p, DiscreteVariable) or isinstance(q, DiscreteVariable)
    if is_discrete and (type(p) is not type(q) or p.event_shape != q.event_shape):
        names = [f"{type(one).__name__} of {type(one).__module__}" for one in (q, p)]
        own, other = names if type(p).__name__ == type(q).__name__ else (type(q).__name__, type(p).__name__)
        got = f"{other} with event shape {tuple(p.event_shape)}"
        raise ValueError(f"node {name!r} is a {own} in q and must be the same in p, got {got}")
