"""The result of running a stochastic graph: a value, a distribution and a log probability for every node."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, Independent

from ..distribution.variable import DiscreteVariable
from ..functional.arithmetic import cast, compute_dtype
from ..functional.draw import Drawn, sum_axes
from ..spelling import did_you_mean

__all__ = ["Trace", "tile"]


def tile(x: Tensor, like: Tensor) -> Tensor:
    """Repeat the rows of x until there are as many as in another tensor.

    A draw of m samples turns a batch of B rows into m·B, all data points of the first sample first. Use `tile` where a
    tensor with one row for each data point meets a drawn value, or a tensor that was computed from one.

    >>> tile(torch.tensor([1.0, 2.0]), torch.zeros(6, 4))
    tensor([1., 2., 1., 2., 1., 2.])
    """
    for name, tensor in (("x", x), ("like", like)):
        if not isinstance(tensor, Tensor) or not tensor.dim():
            got = "a number" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{name} must be a tensor with a first axis of rows, got {got}")
    rows, wanted = x.shape[0], like.shape[0]
    if rows == wanted:
        return x
    if not rows or wanted % rows:
        swapped = ": are the arguments swapped?" if wanted and rows % wanted == 0 else ""
        raise ValueError(f"the rows of x must divide those of like, got {rows} and {wanted}{swapped}")
    return x.expand(wanted // rows, *x.shape).flatten(0, 1)


class Rows:
    """The layout of samples and data points: a trace has axes for both, which a program sees as one axis of rows."""

    def __init__(self, samples: int | None, batch_shape: Size) -> None:
        self.samples = samples
        """The length of the sample axis; None without one."""
        self.batch_shape = batch_shape
        self.shape = batch_shape if samples is None else Size((samples, *batch_shape))
        """The sample axis, if there is one, and the batch axes."""
        self.folded = self.shape
        """The first axes of drawn values in a program: the sample axis is folded into the first batch axis."""
        self._splits = samples is not None and bool(batch_shape)
        if samples is not None and batch_shape:
            self.folded = Size((samples * batch_shape[0], *batch_shape[1:]))

    def fold(self, tensor: Tensor) -> Tensor:
        """Fold the sample axis into the first batch axis."""
        return tensor.flatten(0, 1) if self._splits else tensor

    def unfold(self, tensor: Tensor) -> Tensor:
        """Split the rows of a program into samples and data points."""
        return tensor.view(*self.shape[:2], *tensor.shape[1:]) if self._splits else tensor

    def unfolded(self, output: Any) -> Any:
        """Split the rows of a tensor that has one for each sample and data point; return anything else unchanged."""
        return self.unfold(output) if isinstance(output, Tensor) and self.have_samples(output.shape) else output

    def have_data(self, shape: Size) -> bool:
        """Return whether a shape begins with one row for each data point."""
        return shape[: len(self.batch_shape)] == self.batch_shape

    def have_samples(self, shape: Size) -> bool:
        """Return whether a shape begins with one row for each sample and data point."""
        return shape[: len(self.folded)] == self.folded

    def have_any(self, shape: Size) -> bool:
        """Return whether a shape begins with rows; a value without rows is shared by all data points."""
        return self.have_data(shape) or self.have_samples(shape)

    def spread(self, quantity: Tensor) -> Tensor:
        """Expand a number for each row, one for each data point, or one for all to the shape (samples, data points)."""
        if quantity.shape == self.shape:
            return quantity
        return self.unfold(quantity) if quantity.shape == self.folded else quantity.broadcast_to(self.shape)

    def aligned(self, *distributions: Distribution, axes: int) -> list[Distribution]:
        """Give distributions of one node batch shapes that broadcast.

        If one has only a row for each data point, the rows of the others are split into samples and data points. `axes`
        is the number of unit axes.
        """
        leads = [_lead(distribution, axes) for distribution in distributions]
        if not self.batch_shape or self.folded == self.batch_shape or self.batch_shape not in leads:
            return list(distributions)
        return [
            _unfolded(distribution, self.shape[0]) if lead == self.folded else distribution
            for distribution, lead in zip(distributions, leads, strict=True)
        ]

    def align(self, value: Tensor, distribution: Distribution) -> tuple[Tensor, Distribution]:
        """Make the rows of a value and a distribution match, without copies where the distribution allows it."""
        if not self.batch_shape or self.folded == self.batch_shape:
            return value, distribution
        lead = _lead(distribution, value.dim() - len(distribution.event_shape) - len(self.batch_shape))
        if self.have_samples(value.shape) and lead in (self.batch_shape, ()):
            return self.unfold(value), distribution
        if self.have_data(value.shape) and lead == self.folded:
            if isinstance(distribution, DiscreteVariable):
                return value, distribution.unfold(self.shape[0])
            return value.expand(self.shape[0], *value.shape).flatten(0, 1), distribution
        return value, distribution


def _lead(distribution: Distribution, axes: int) -> Size:
    """Return the batch shape of a distribution without its last `axes` axes, which are units."""
    shape = distribution.batch_shape
    return shape[: max(len(shape) - axes, 0)]


def _unfolded(distribution: Distribution, samples: int) -> Distribution:
    """Split the first batch axis of a distribution into samples and data points."""
    if isinstance(distribution, DiscreteVariable):
        return distribution.unfold(samples)
    if isinstance(distribution, Independent):
        return Independent(_unfolded(distribution.base_dist, samples), distribution.reinterpreted_batch_ndims)
    if not distribution.arg_constraints:
        raise NotImplementedError(f"the rows of {type(distribution).__name__} cannot be split into samples: use `kl`")
    names = set(distribution.arg_constraints) - ({"probs"} if "logits" in distribution.arg_constraints else set())
    own = {name: getattr(distribution, name) for name in names}
    return type(distribution)(**{name: value.unflatten(0, (samples, -1)) for name, value in own.items()})


class Outcome:
    """The value and the distribution of one node, and whether it was observed."""

    def __init__(
        self, drawn: Drawn, distribution: Distribution, rows: Rows, *, observed: bool, is_sampled: bool, axes: int
    ) -> None:
        self.distribution = distribution
        self.observed = observed
        self.axes = axes
        """The number of axes of independent units, which log probabilities are summed over."""
        self.seen = drawn.value
        """The value as the program sees it, with samples and data points in one axis of rows."""
        self.node = drawn.node
        """The unbounded node of a relaxed value, in rows; other distributions use it to score the value exactly."""
        self._rows, self._is_sampled = rows, is_sampled
        self._score: Callable[[], Tensor] | Tensor = drawn.score
        self._summed: Callable[[int], Tensor] | Tensor | None = drawn.summed
        self._differentiates = torch.is_grad_enabled()

    @property
    def value(self) -> Tensor:
        """Return the value. It has a sample axis if the run has one, unless the value is observed or shared."""
        return self.in_trace(self.seen)

    def in_trace(self, quantity: Tensor) -> Tensor:
        """Split the rows of a quantity into samples and data points if the value has both."""
        return self._rows.unfold(quantity) if self._is_sampled else quantity

    @property
    def unit_log_prob(self) -> Tensor:
        """Return the log probability of each unit, computed on first access."""
        if not isinstance(self._score, Tensor):
            log_prob = self._as_when_drawn(self._score)
            is_folded = log_prob.shape[: log_prob.dim() - self.axes] == self._rows.folded
            self._score = self._rows.unfold(log_prob) if is_folded else log_prob  # this frees the noise
        return self._score

    @property
    def log_prob(self) -> Tensor:
        """Return the log probability, summed over units, for every sample and data point, in at least float32.

        It is computed on first access.
        """
        if not isinstance(self._summed, Tensor):
            self._summed = self._as_when_drawn(self._compute)
        return self._summed

    def _compute(self) -> Tensor:
        assert not isinstance(self._summed, Tensor)
        if self._summed is None:
            return self.total(self.unit_log_prob)
        summed = self._summed(self.axes)
        return self._rows.spread(cast(summed, compute_dtype(summed.dtype)))

    def total(self, quantity: Tensor) -> Tensor:
        """Sum a quantity over the units, for every sample and data point, in at least float32."""
        wide = cast(quantity, compute_dtype(quantity.dtype))
        return self._rows.spread(sum_axes(wide, self.axes))

    def _as_when_drawn(self, compute: Callable[[], Tensor]) -> Tensor:
        """Call a function in the gradient mode that was active when the node was drawn."""
        if torch.is_grad_enabled() == self._differentiates:
            return compute()
        with torch.set_grad_enabled(self._differentiates):
            return compute()

    def __repr__(self) -> str:
        what = "observed" if self.observed else "drawn"
        return f"Outcome({tuple(self.value.shape)} {what} from {self.distribution})"


class Trace(Mapping[str, Outcome]):
    """The outcomes of a run by node name, in program order, and the output of the program.

    The first axes of a value are the sample axis, if there is one, and the batch axes.
    """

    def __init__(
        self,
        outcomes: Mapping[str, Outcome],
        output: Any,
        *,
        rows: Rows,
        find_parents: Callable[[], dict[str, tuple[str, ...]]],
    ) -> None:
        self.output = output
        """What the program returned, with samples and data points in one axis of rows."""
        self.rows = rows
        self._outcomes, self._find_parents = outcomes, find_parents
        self.latent = [name for name, outcome in outcomes.items() if not outcome.observed]
        """The names of the nodes that were not observed."""
        self.observed = [name for name, outcome in outcomes.items() if outcome.observed]
        """The names of the observed nodes."""
        self._parents: dict[str, tuple[str, ...]] | None = None

    def __getitem__(self, name: str) -> Outcome:
        outcome = self._outcomes.get(name)
        if outcome is None:
            raise KeyError(f"a trace has only the nodes of its run, got {name!r}{did_you_mean(name, self._outcomes)}")
        return outcome

    def __iter__(self) -> Iterator[str]:
        return iter(self._outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def samples(self) -> int | None:
        """Return the length of the sample axis, or None if there is none."""
        return self.rows.samples

    @property
    def shape(self) -> Size:
        """Return the sample axis, if there is one, and the batch axes."""
        return self.rows.shape

    @property
    def log_prob(self) -> dict[str, Tensor]:
        """Return the log probability of every node, summed over its units, for every sample and data point."""
        return {name: outcome.log_prob for name, outcome in self._outcomes.items()}

    @property
    def parents(self) -> dict[str, tuple[str, ...]]:
        """Return the parents of every node, for display. The first access runs the program once more.

        A parent is missed if its value is used only where torch does not see it, as in a comparison of a scripted
        function.
        """
        if self._parents is None:
            self._parents = self._find_parents()
        return self._parents

    def __repr__(self) -> str:
        return f"Trace({dict(self._outcomes)})"
