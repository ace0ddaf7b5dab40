"""KL divergences: exact by a closed form or a one-dimensional integral, or estimated by `monte_carlo_kl`.

The KL between relaxations is computed between their unsquashed variables, as an invertible map does not change it.
"""

import torch
from torch import Tensor
from torch.distributions import kl_divergence, register_kl

from ..functional import hard_concrete, subset
from ..functional.arithmetic import bool_or_none, cast, is_forward_differentiated, is_transformed, to_float64
from ..functional.circuit import NormalNoise
from ..functional.divergence import of_bits, of_categories
from ..functional.gumbel import EULER
from ..functional.integral import mean_log_sum, mean_shared_noise, mean_soft_size
from ..functional.noise import Source
from .binary import Bernoulli, BinaryConcrete
from .circuit import BinaryCircuit, CircuitNode
from .concrete import Concrete, LogisticNormal, OneHotCategorical
from .exp_concrete import ExpConcrete, ExpLogisticNormal
from .gumbel import Gumbel
from .hard_concrete import HardConcrete
from .hypercube import Hypercube, HypercubeConcrete, HypercubeLogisticNormal
from .logistic import Logistic
from .node import Node, Relaxation
from .permutation import GumbelSinkhorn
from .subset import Subset
from .variable import DiscreteVariable, RelaxedVariable, Variable


def monte_carlo_kl(
    p: Node | RelaxedVariable, q: Node | RelaxedVariable, samples: int = 1, *, generator: Source | None = None
) -> Tensor:
    """Return an unbiased Monte Carlo estimate of KL(p || q), with a pathwise gradient.

    For relaxed subsets and permutations, it estimates the KL between their unbounded variables.

    >>> p, q = Concrete(logits=torch.zeros(3), temperature=0.5), Concrete(logits=torch.ones(3), temperature=2 / 3)
    >>> monte_carlo_kl(p, q, samples=100).shape
    torch.Size([])
    """
    if not (isinstance(p, Node | RelaxedVariable) and isinstance(q, Node | RelaxedVariable)):
        names = f"{type(p).__name__} and {type(q).__name__}"
        raise TypeError(f"p and q must have densities, got {names}: kl_divergence is exact for discrete variables")
    if samples < 1:
        raise ValueError(f"samples must be positive, got {samples}")
    comparable(p, q)
    if p.support is not q.support and type(p) is not type(q):
        raise ValueError(f"p and q must have the same support, got {type(p).__name__} and {type(q).__name__}")
    if isinstance(p, RelaxedVariable) and isinstance(q, RelaxedVariable):
        drawn = p.drawn((samples,), generator=generator)
        return (drawn.score() - q.node_log_prob(drawn.value, node=drawn.node)).mean(0)
    value, log_p = p.rsample_and_log_prob((samples,), generator=generator)
    return (log_p - q.log_prob(value)).mean(0)


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    shift = to_float64(p.logits) - to_float64(q.logits)
    return cast(torch.expm1(-shift) + shift, p.logits.dtype)


@register_kl(GumbelSinkhorn, GumbelSinkhorn)
def _gumbel_sinkhorn(p: GumbelSinkhorn, q: GumbelSinkhorn) -> Tensor:
    """Return the KL between the nodes, an upper bound of the KL between the values."""
    if not same_temperature(p, q):
        raise NotImplementedError(
            "no exact divergence is known between GumbelSinkhorn variables of different temperatures"
        )
    shift = to_float64(p.logits) - to_float64(q.logits)
    return cast((torch.expm1(-shift) + shift).sum((-1, -2)), p.logits.dtype)


@register_kl(HardConcrete, HardConcrete)
def _hard_concrete(p: HardConcrete, q: HardConcrete) -> Tensor:
    comparable(p, q)
    if p.stretch != q.stretch:
        raise ValueError(f"p and q must have the same stretch to be compared, got {p.stretch} and {q.stretch}")
    return cast(hard_concrete.divergence(p._parameters[:2], q._parameters[:2], p.stretch), p.logits.dtype)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    return of_bits(p.logits, q.logits)


@register_kl(OneHotCategorical, OneHotCategorical)
def _categorical(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    comparable(p, q)
    return of_categories(p.logits, q.logits)


@register_kl(Hypercube, Hypercube)
def _hypercube(p: Hypercube, q: Hypercube) -> Tensor:
    return discrete_kl(p.state, q.state)


@register_kl(Subset, Subset)
def _subset(p: Subset, q: Subset) -> Tensor:
    comparable(p, q)
    if p.k != q.k:
        raise ValueError(f"subsets must have the same k to be compared, got {p.k} and {q.k}")
    included = subset.marginals(p.logits, p.k)
    return cast(p.mean_log_mass(included) - q.mean_log_mass(included), p.logits.dtype)


def discrete_kl(p: DiscreteVariable, q: DiscreteVariable) -> Tensor:
    """Return KL(p || q) of discrete variables of the same class.

    The result equals that of torch's `kl_divergence`, which `torch.compile` cannot trace.
    """
    formulas = (
        (Bernoulli, _bernoulli),
        (OneHotCategorical, _categorical),
        (Hypercube, _hypercube),
        (Subset, _subset),
    )
    for family, formula in formulas:
        if isinstance(p, family) and isinstance(q, family):
            divergence: Tensor = formula(p, q)
            return divergence
    if type(p) is not type(q):
        raise TypeError(f"p and q must be of the same class, got {type(p).__name__} and {type(q).__name__}")
    raise NotImplementedError(
        f"no KL between {type(p).__name__} variables is known in closed form: use Pathwise(temperature), whose KL is "
        "between densities"
    )


@register_kl(Logistic, Logistic)
def _logistic(p: Logistic, q: Logistic) -> Tensor:
    at_one = _coth_form(to_float64(p.logits) - to_float64(q.logits))
    if same_temperature(p, q) and not differentiates_ratio(p, q):
        return cast(at_one, p.logits.dtype)
    stretch = to_float64(q.temperature) / to_float64(p.temperature)
    mean = mean_soft_size(stretch, stretch * to_float64(p.logits) - to_float64(q.logits))
    general = mean - 2 - stretch.log()
    # the closed form is more precise, but only the integral has derivatives by the temperatures
    return cast(torch.where(stretch == 1, at_one.detach() + (general - general.detach()), general), p.logits.dtype)


def _coth_form(shift: Tensor) -> Tensor:
    """Return Δ coth(Δ/2) - 2, by its series near 0 where the closed form cancels."""
    near = shift.abs() < 0.1
    square = torch.where(near, shift, 0).square()
    series = square / 6 * (1 - square / 60 * (1 - square / 42 * (1 - square / 40)))
    far = torch.where(near, 1, shift)
    return torch.where(near, series, far / torch.tanh(far / 2) - 2)


@register_kl(ExpConcrete, ExpConcrete)
def _exp_concrete(p: ExpConcrete, q: ExpConcrete) -> Tensor:
    if not same_temperature(p, q):
        raise NotImplementedError(
            f"no exact divergence is known between {type(p).__name__} variables of different temperatures: "
            "estimate it with monte_carlo_kl(p, q, samples)"
        )
    n = p.event_shape[0]
    shifts = to_float64(q.logits) - to_float64(p.logits)
    digamma = float(torch.digamma(torch.tensor(n, dtype=torch.float64)))
    divergence = n * (mean_log_sum(shifts) - digamma) - shifts.sum(-1)
    if differentiates_ratio(p, q):
        ratio = to_float64(q.temperature) / to_float64(p.temperature)
        logits = to_float64(p.logits)
        slope = logits.sum(-1) + n * EULER - (n - 1) - n * mean_shared_noise(logits, shifts)
        divergence = divergence + slope * (ratio - ratio.detach())
    return cast(divergence, p.logits.dtype)


@register_kl(ExpLogisticNormal, ExpLogisticNormal)
def _exp_logistic_normal(p: ExpLogisticNormal, q: ExpLogisticNormal) -> Tensor:
    comparable(p, q)
    # Gaussians on the n - 1 dimensions orthogonal to a common shift
    n = p.event_shape[0]
    stretch = to_float64(q.temperature) / to_float64(p.temperature)
    shift = stretch.unsqueeze(-1) * to_float64(p.logits) - to_float64(q.logits)
    spread = (n - 1) * (stretch.square() - 1 - 2 * stretch.log())
    return cast((spread + (shift - shift.mean(-1, keepdim=True)).square().sum(-1)) / 2, p.logits.dtype)


@register_kl(CircuitNode, CircuitNode)
def _circuit(p: CircuitNode, q: CircuitNode) -> Tensor:
    if not (isinstance(p.family, NormalNoise) and isinstance(q.family, NormalNoise)):
        raise NotImplementedError(
            "an exact divergence between circuits is known for normal noise only: "
            "estimate it with monte_carlo_kl(p, q, samples)"
        )
    comparable(p, q)
    stretch = to_float64(q.temperature) / to_float64(p.temperature)
    shift = stretch * p._location() - q._location()
    return cast((stretch.square() - 1 - 2 * stretch.log() + shift.square()) / 2, p.logits.dtype)


@register_kl(BinaryConcrete, BinaryConcrete)
@register_kl(Concrete, Concrete)
@register_kl(HypercubeConcrete, HypercubeConcrete)
@register_kl(HypercubeLogisticNormal, HypercubeLogisticNormal)
@register_kl(LogisticNormal, LogisticNormal)
@register_kl(BinaryCircuit, BinaryCircuit)
def _relaxation(p: Relaxation, q: Relaxation) -> Tensor:
    return kl_divergence(p.node, q.node)


def comparable(p: Variable, q: Variable) -> None:
    """Raise an error if a temperature is zero or the event shapes differ."""
    p._require_density()
    q._require_density()
    if p.event_shape != q.event_shape:
        raise ValueError(f"event shapes must be equal, got {tuple(p.event_shape)} and {tuple(q.event_shape)}")


def same_temperature(p: Variable, q: Variable) -> bool:
    """Return whether two temperatures are equal in value; False if their data cannot be read, as under `vmap`."""
    comparable(p, q)
    if p._temperature is q._temperature:
        return True
    same = p._temperature == q._temperature
    return same if isinstance(same, bool) else bool_or_none(same.all()) is True


def differentiates_ratio(p: Node, q: Node) -> bool:
    """Return whether a derivative by the ratio of two temperatures may be needed, even if they are equal in value."""
    if p._temperature is q._temperature:
        return False
    tensors = [temperature for temperature in (p._temperature, q._temperature) if isinstance(temperature, Tensor)]
    return any(tensor.requires_grad or is_transformed() or is_forward_differentiated() for tensor in tensors)
