"""The loss of a user's model or program, and the monitor that measures its discrete graph."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import unwrap
from numbers import Real
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves

from ..distribution.check import checking_on_gpu
from ..distribution.variable import DiscreteVariable
from ..estimator import (
    NVIL,
    RLOO,
    VIMCO,
    Estimate,
    Estimator,
    Exact,
    GumbelSoftmax,
    Pathwise,
    Reinforce,
    StraightThrough,
    StraightThroughGumbelSoftmax,
)
from ..estimator.base import default_objective
from ..estimator.pathwise import by_states
from ..functional.noise import Source
from ..functional.slice import Slice
from ..graph.program import eval_mode, used_names
from ..graph.trace import Trace
from ..model import Model
from ..model.model import Function
from ..objective import Objective
from ..schedule import Schedule
from ..temperature import ByStates
from .feed import Inputs
from .task import DRAWN, Controls, MemberLoss

ACTIVE = 0.01
"""A unit is active if the variance over data points of its mean is above this [burda2016importance]."""
ALIKE = 1e-12
"""Numbers count as the same on all ranks if their variance over ranks is at most this."""
BETA, TEMPERATURE = "beta", "temperature"
"""The names of controls. The temperature of a node is `temperature/NODE`, as in rows of the curve."""

DISCRETE = (Exact, NVIL, Reinforce, RLOO, StraightThrough, StraightThroughGumbelSoftmax, VIMCO)
"""Estimators that draw discrete states."""

Arrange = Callable[[Inputs], tuple[Any, ...]]
"""Maps a batch to the inputs of a program."""


@dataclass(frozen=True, eq=False)
class Objectives:
    """The settings of an estimate: the inputs, the number of samples, the objective, and the precision."""

    device: torch.device
    arrange: Arrange
    samples: int
    objective: Objective | None
    autocast: torch.dtype | None
    controls: tuple[str, ...]
    """The names of the numbers that change from step to step."""

    def precision(self) -> AbstractContextManager[Any]:
        """Return the context in which the model runs."""
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, dtype=self.autocast)


class OwnLoss(MemberLoss):
    """The loss of a model or program by an estimator."""

    def __init__(self, model: nn.Module, estimator: Estimator, what: Objectives) -> None:
        super().__init__(model, estimator)
        self.what = what
        given = default_objective(model, estimator) if what.objective is None else what.objective
        self._objective: Objective = given
        # in a tuple, so that it is not a submodule: it shares those of the model
        self._weighted = (model.with_kl_weight(1.0),) if BETA in what.controls and isinstance(model, Model) else ()
        self._at = (dict[str, float](), estimator)

    def forward(self, inputs: Inputs, keys: Source, controls: Controls) -> Tensor:
        """Return the loss of a batch."""
        return _wide(self.estimate(inputs, keys, controls).loss)

    def estimate(self, inputs: Inputs, keys: Source, controls: Controls) -> Estimate:
        """Return the estimate of a batch."""
        what, target, estimator = self.what, self.model, self.estimator
        if what.controls:
            values = dict(zip(what.controls, controls, strict=True))
            if self._weighted:
                target = self._weighted[0]
                target.__dict__["kl_weight"] = values.pop(BETA)
            estimator = self._estimator_at(values)
        with what.precision():
            return estimator(
                target, *what.arrange(inputs), samples=what.samples, objective=self._objective, generator=keys
            )

    def _estimator_at(self, values: Mapping[str, float | Tensor]) -> Estimator:
        """Return the estimator at the temperatures of a step."""
        if not values or not has_temperature(self.estimator):
            return self.estimator
        if any(isinstance(value, Tensor) for value in values.values()):  # tensors change in every call
            return at_temperatures(self.estimator, values)
        if values != self._at[0]:
            self._at = dict(values), at_temperatures(self.estimator, values)  # type: ignore[arg-type]
        return self._at[1]


def draws_relaxed(estimator: Estimator) -> bool:
    """Return whether an estimator may draw relaxed values. One that is not of this library may."""
    return not isinstance(estimator, DISCRETE)


def has_temperature(estimator: Estimator) -> bool:
    """Return whether an estimator has a temperature that can be replaced."""
    return is_dataclass(estimator) and hasattr(estimator, TEMPERATURE)


def requires_gradient(values: Any) -> bool:
    """Return whether values, or mappings of values, have a tensor that requires a gradient."""
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(values))


def require_learned(loss: MemberLoss) -> None:
    """Raise if an estimator has a tensor that requires a gradient and that training would leave as it is."""
    own, estimator = {id(parameter) for parameter in loss.parameters()}, cast("Any", loss.estimator)
    given = tree_leaves(
        [getattr(estimator, part.name) for part in fields(estimator)] if is_dataclass(estimator) else []
    )
    if requires_gradient([leaf for leaf in given if id(leaf) not in own]):
        must = "a temperature that is learned must be a parameter of the model, as in Pathwise(model.temperature)"
        raise ValueError(
            f"{must}, got another tensor that requires a gradient in {type(estimator).__name__}: detach it"
        )


def at_temperatures(estimator: Estimator, values: Mapping[str, float | Tensor]) -> Estimator:
    """Return an estimator at other temperatures: one for all nodes, or by node.

    >>> import concretely as c
    >>> at_temperatures(c.Pathwise(1.0), {"temperature/h": 0.5}).temperature
    {'h': 0.5}
    """
    by_node = {name.partition("/")[2]: value for name, value in values.items()}
    chosen: Any = by_node.get("", by_node)
    return cast("Estimator", replace(cast("Any", estimator), temperature=chosen))


def shown_temperature(given: Any) -> Schedule | None:
    """Return a temperature as rows show it, or None if it is not one number.

    >>> shown_temperature(0.5), shown_temperature({"h": 0.5}), shown_temperature(torch.ones(()))(0)
    (0.5, None, 1.0)
    """
    if isinstance(given, Tensor):
        return (lambda step: given.item()) if given.numel() == 1 else None  # it may change during training
    if isinstance(given, Real):
        return float(given)
    return given if callable(given) and not isinstance(given, ByStates) else None


def node_temperatures(estimator: Estimator, states: Mapping[str, int]) -> dict[str, Schedule]:
    """Return the temperatures that an estimator gives nodes, if they are by node, by their names in rows.

    `states` has the number of states of each discrete latent node.

    >>> node_temperatures(Pathwise(), {"h": 2, "code": 4}), node_temperatures(Pathwise(0.5), {"h": 2})
    ({'temperature/h': 0.6666666666666666, 'temperature/code': 0.5}, {})
    """
    given = getattr(estimator, TEMPERATURE, None)
    if given is None and isinstance(estimator, Pathwise | GumbelSoftmax | StraightThroughGumbelSoftmax):
        given = by_states(estimator.kl)
    if isinstance(given, ByStates):
        given = {name: given(number) for name, number in states.items()}
    by_node = given if isinstance(given, Mapping) else {}
    shown = {f"{TEMPERATURE}/{name}": shown_temperature(by_node[name]) for name in states if name in by_node}
    return {name: value for name, value in shown.items() if value is not None}


class RelaxedLoss(MemberLoss):
    """The loss of a model or program in evaluation mode, with the draws of its estimator."""

    def __init__(self, loss: OwnLoss) -> None:
        super().__init__(loss.model, loss.estimator)
        self._loss = (loss,)  # in a tuple, so that it is not a part

    def forward(self, inputs: Inputs, keys: Source, controls: Controls) -> Tensor:
        """Return the loss of a batch."""
        with eval_mode(self.model), torch.no_grad():
            return _wide(self._loss[0].estimate(inputs, keys, controls).loss)


def depends_on_mode(model: nn.Module) -> bool:
    """Return whether a model may compute something else in evaluation mode, as far as its modules and code show.

    >>> depends_on_mode(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))), depends_on_mode(nn.LSTM(2, 2))
    (True, False)
    """
    return any(map(_depends_on_mode, model.modules()))


def _depends_on_mode(part: nn.Module) -> bool:
    """Return whether a module has another mode: some of torch, and those whose code names `training`."""
    rate = part.p if isinstance(part, _DropoutNd) else 0.0
    rate = part.dropout if isinstance(part, nn.RNNBase | nn.MultiheadAttention) else rate
    if rate or isinstance(part, nn.RReLU) or (isinstance(part, _NormBase) and part.track_running_stats):
        return True
    kinds = [kind for kind in type(part).__mro__ if not kind.__module__.startswith("torch.nn.modules")]
    members = [member for kind in kinds for member in vars(kind).values()]
    members += [part.function] if isinstance(part, Function) else []
    functions = [unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member)) for member in members]
    return any("training" in used_names(own) for own in functions if isinstance(own, FunctionType))


class OwnMonitor(MemberLoss):
    """The loss of the discrete graph in evaluation mode, and `names`: metrics of every node.

    They are `kl/NODE` and `log_likelihood/NODE`, `active/NODE`, the number of active units, and `constant/NODE`, the
    share of units whose drawn state is the same for all rows of the batch although their distribution is not.
    """

    def __init__(self, loss: OwnLoss) -> None:
        super().__init__(loss.model, Reinforce())
        objective = loss._objective
        what = replace(loss.what, objective=objective)
        self._loss = (OwnLoss(loss.model, Reinforce(), what),)  # in a tuple, so that it is not a part
        self.names: tuple[str, ...] = ()
        self.states: dict[str, int] = {}
        """The number of states of each discrete latent node."""

    def forward(self, inputs: Inputs, keys: Source, controls: Controls) -> Tensor:
        """Return the loss, followed by the metrics in the order of `names`: 0 for those of nodes not in this batch."""
        result, metrics = self._measured(inputs, keys, controls)
        loss = _wide(result.loss)
        metrics |= dict.fromkeys(_shares(metrics), torch.ones_like(loss))
        return torch.stack([loss, *(metrics.get(name, torch.zeros_like(loss)).to(loss.dtype) for name in self.names)])

    def examine(self, inputs: Inputs, keys: Source, controls: Controls) -> dict[str, int]:
        """Find all metrics and the states of nodes, and return the number of units of every latent node."""
        with checking_on_gpu():
            result, metrics = self._measured(inputs, keys, controls)
        # torch says that the mean of a Categorical is NaN
        known = [name for name, value in metrics.items() if not (name.startswith("active/") and value.isnan())]
        self.names = (*known, *_shares(known))
        laws = {name: result.posterior[name].distribution for name in result.posterior.latent}
        self.states = {name: law.states for name, law in laws.items() if isinstance(law, DiscreteVariable)}
        return {name: units_of(result.posterior, name) for name in result.posterior.latent}

    def _measured(self, inputs: Inputs, keys: Source, controls: Controls) -> tuple[Estimate, dict[str, Tensor]]:
        """Return the estimate and all metrics."""
        with eval_mode(self.model), torch.no_grad():
            result = self._loss[0].estimate(inputs, keys, controls)
            metrics = {f"log_likelihood/{name}": value.mean() for name, value in result.log_likelihood.items()}
            metrics |= {f"kl/{name}": value.mean() for name, value in result.kl.items()}
            for name in result.posterior.latent:
                metrics |= {f"{kind}/{name}": value for kind, value in _use(result.posterior, name, keys).items()}
            return result, metrics


def _shares(metrics: Iterable[str]) -> list[str]:
    """Return the names of the shares of batches that have the nodes of some metrics.

    >>> _shares(["kl/h", "active/h", "log_likelihood/x"])
    ['drawn/h', 'drawn/x']
    """
    return [f"{DRAWN}/{node}" for node in dict.fromkeys(name.partition("/")[2] for name in metrics)]


def _wide(loss: Tensor) -> Tensor:
    """Return a loss in at least float32, since autocast may return less."""
    return loss if loss.dtype.itemsize > 2 else loss.float()


def _use(trace: Trace, name: str, source: Source) -> dict[str, Tensor]:
    """Return how much of a node is used: the number of active units, and the share of constant ones.

    If several ranks share a batch, both are computed for the whole batch.
    """
    ranks = source if isinstance(source, Slice) else None
    outcome, metrics = trace[name], dict[str, Tensor]()
    rows = trace.rows
    if not rows.batch_shape or not rows.have_any(outcome.seen.shape):
        return metrics  # shared by all data points
    mean, event = _mean(outcome.distribution), len(outcome.distribution.event_shape)
    if mean is None or not rows.have_any(mean.shape):
        return metrics
    by_point = rows.unfold(mean).mean(0) if rows.have_samples(mean.shape) and rows.samples else mean
    variance = _variance(by_point.flatten(0, len(rows.batch_shape) - 1), ranks)
    spread = variance.flatten(variance.dim() - event).sum(-1) if event else variance
    metrics["active"] = torch.where(spread.isnan().any(), torch.nan, (spread > ACTIVE).sum())
    if isinstance(outcome.distribution, DiscreteVariable):  # in a single row, nothing differs
        alike, drawn_alike = (_is_same_in_all(x, len(rows.folded), event, ranks) for x in (mean, outcome.seen))
        metrics["constant"] = (drawn_alike & ~alike).float().mean()
    return metrics


def _variance(rows: Tensor, ranks: Slice | None) -> Tensor:
    """Return the variance over the rows of all ranks."""
    if ranks is None:
        rows = rows.float()
        return (rows - rows.mean(0)).square().mean(0)  # torch's own takes several times as long
    spread, mean = torch.var_mean(rows.double(), 0, correction=0)
    square = ranks.mean(spread + mean.square())
    return (square - ranks.mean(mean).square()).float()


def _is_same_in_all(value: Tensor, row_axes: int, event: int, ranks: Slice | None) -> Tensor:
    """Return for each unit whether its value is the same in all rows, of all ranks."""
    value = value.flatten(0, row_axes - 1)
    same = value.amin(0) == value.amax(0) if len(value) else value.new_ones(value.shape[1:], dtype=torch.bool)
    if ranks is not None:  # the mean and the mean square are those of one value if and only if all are equal
        first = value[0].double()
        spread = ranks.mean(first.square()) - ranks.mean(first).square()
        same = (ranks.total(same.double()) == ranks.ranks) & (spread.abs() <= ALIKE)
    return same.flatten(same.dim() - event).all(-1) if event else same


def _mean(distribution: Distribution) -> Tensor | None:
    try:
        return distribution.mean
    except (NotImplementedError, AttributeError):
        return None


def units_of(trace: Trace, name: str) -> int:
    """Return the number of independent units of a node."""
    outcome = trace[name]
    shape = outcome.seen.shape[len(trace.rows.folded) : outcome.seen.dim() - len(outcome.distribution.event_shape)]
    return int(shape.numel()) if trace.rows.have_any(outcome.seen.shape) else 1
