"""A choice of one of several branches."""

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..distribution import OneHotCategorical
from ..functional import gumbel_softmax
from ..functional.arithmetic import is_transformed
from ..functional.noise import Source
from ..functional.torch_draw import shared_draws
from ..spelling import shown
from .base import Layer, Setting
from .rank import gathered, whole


class ChoiceReport(NamedTuple):
    """Diagnostics of a `Choice`."""

    probabilities: Tensor
    """The probability of every branch."""
    entropy: Tensor
    """The entropy of the choice in nats."""
    cost: Tensor
    """The expected cost."""


class Choice(Layer):
    r"""One of several branches, chosen by learned probabilities.

    In training, a branch i is drawn for the whole batch, and only this branch runs. Its output is multiplied by a
    number that is 1 and has the gradient of the relaxed one-hot vector at i [jang2017categorical]. In evaluation, the
    most probable branch runs. Compiled, and inside `torch.func`, all branches run, with the same result.

    The penalty is the expected cost. Branches that do not run get no gradient, so `DistributedDataParallel` needs
    `find_unused_parameters=True`.

    Args:
        branches: Modules with the same inputs, whose outputs have the same shape.
        temperature: A number, or a schedule such as `Annealing`.
        cost: The cost of every branch, such as its run time.

    >>> choice = Choice([nn.Linear(2, 3), nn.Identity()], temperature=0.5, cost=[6.0, 0.0])
    >>> choice.penalty()
    tensor(3., grad_fn=<SumBackward0>)
    """

    cost: Tensor

    def __init__(
        self, branches: Iterable[nn.Module], *, temperature: Setting = 1.0, cost: Sequence[float] | Tensor | None = None
    ) -> None:
        super().__init__(temperature)
        given: list[Any] = [branches]
        if isinstance(branches, Iterable) and not isinstance(branches, Tensor):
            given = list(branches)
        if not all(isinstance(branch, nn.Module) for branch in given):
            kinds = ", ".join(sorted({type(branch).__name__ for branch in given}))
            raise TypeError(f"branches must be modules, got {kinds}")
        self.branches = nn.ModuleList(given)
        number = len(self.branches)
        if number < 2:
            raise ValueError(f"branches must be at least 2 modules, got {number}")
        self.logits = nn.Parameter(torch.zeros(number))
        is_numbers = isinstance(cost, Sequence) and not isinstance(cost, str | bytes)
        is_real = isinstance(cost, Tensor) and not cost.is_complex()
        if not (cost is None or is_real or (is_numbers and all(isinstance(price, Real) for price in cost))):
            raise TypeError(f"cost must have one number for each of {number} branches, got {shown(cost)}")
        costs = torch.zeros(number) if cost is None else torch.as_tensor(cost, dtype=torch.float32)
        if costs.shape != (number,):
            raise ValueError(f"cost must have one number for each of {number} branches, got shape {tuple(costs.shape)}")
        if not costs.isfinite().all():
            raise ValueError(f"cost must be finite, got {costs.tolist()}")
        self.register_buffer("cost", costs, persistent=False)
        self._is_costly = bool(costs.any())

    def forward(self, *inputs: Any, generator: Source | None = None) -> Any:
        """Run a drawn branch in training, else the most probable one."""
        self._keeps()
        if not self.training:
            return self._run(self._mode(), inputs)
        with shared_draws():
            weight = gumbel_softmax.draw(self.logits, self.temperature, hard=True, generator=generator)
        return self._run(weight, inputs)

    @torch.no_grad()
    @gathered
    def sample(self, *inputs: Any, generator: Source | None = None) -> Any:
        """Run a branch that is drawn with its probability, without gradients."""
        with shared_draws():
            weight = self._law().sample(generator=generator)
        return self._run(weight, inputs)

    def _run(self, weight: Float[Tensor, " n"], inputs: tuple[Any, ...]) -> Any:
        """Run the branch of weight 1."""
        if is_transformed():
            shares = weight.detach() * weight  # the gradient of one branch only
            parts = [branch(*inputs) * share for branch, share in zip(self.branches, shares, strict=True)]
            return sum(parts[1:], parts[0])
        index = int(weight.argmax())
        output = self.branches[index](*inputs)
        return output * weight[index].to(output.dtype) if weight.requires_grad else output

    def _law(self) -> OneHotCategorical:
        return OneHotCategorical(logits=whole(self.logits), validate_args=False)

    def _mode(self) -> Tensor:
        return self._law().mode.detach()

    def penalty(self) -> Float[Tensor, ""]:
        """Return the expected cost."""
        self._is_penalised = True
        return (self._law().probs * self.cost).sum()

    @property
    def _is_penalising(self) -> bool:
        return self._is_costly

    def report(self) -> ChoiceReport:
        """Return the probabilities, their entropy and the expected cost."""
        with torch.no_grad():
            law = self._law()
            return ChoiceReport(law.probs, law.entropy(), (law.probs * self.cost).sum())

    def decide(self) -> nn.Module:
        """Return the most probable branch."""
        return self.branches[int(self._mode().argmax())]
