"""A task: all that the step engine, the training loop and the checkpoints need to know about a run.

They depend on tasks alone. `paper.paper_task` describes a recipe of the paper's models.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..estimator import Estimator
from ..functional.noise import Source
from ..schedule import Schedule, at_step
from .feed import Feed
from .own_recipe import RunRecipe
from .parallel import World

OptimizerFactory = Callable[..., torch.optim.Optimizer]
"""A class of `torch.optim`, or a function of parameters that returns an optimizer."""
DRAWN = "drawn"
"""The start of the names of shares: the share of batches that have a node."""

Controls = tuple[float | Tensor, ...]
"""The values of all schedules at a step, such as temperatures."""


class MemberLoss(nn.Module, ABC):
    """The loss of one member on a batch. Its parts are the model and, if it is a module, the estimator."""

    def __init__(self, model: nn.Module, estimator: Estimator) -> None:
        super().__init__()
        self.model, self.estimator = model, estimator

    @abstractmethod
    def forward(self, inputs: Any, keys: Source, controls: Controls) -> Tensor:
        """Return the loss, with noise from the given keys and at the given values of the schedules."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """The description of a run: what it trains, and how."""

    recipe: RunRecipe
    """The settings, which a checkpoint stores."""
    device: torch.device
    key: Hashable
    """A key that is equal for tasks whose steps can be taken together, as one program."""
    loss: MemberLoss
    monitor: MemberLoss | None
    """The loss of the discrete graph, which is measured at some steps, or None if it is not measured.

    Unless `metrics` is None, it returns a vector: the loss, followed by the metrics.
    """
    metrics: tuple[str, ...] | None = None
    """The names of the monitor's metrics besides the loss. If None, the norm of the gradient is not measured.

    If there is a metric `drawn/NODE`, the share of batches that have a node, the others of the node are 0 without it.
    """
    feed: Feed
    """Where the batches come from."""
    digest: str
    """The digest of the data, which must not change during a run."""
    source: str
    """The name of the data, for errors."""
    lr: float
    lr_factor: Callable[[int], float]
    """The factor by which the schedule multiplies the learning rate at a step. It is the same for one `key`."""
    decay: float
    """The L2 penalty: this factor times half the squared weights is added to the loss."""
    controls: tuple[Schedule, ...]
    """The schedules that the loss depends on."""
    temperature: Schedule | None
    """The temperature that rows of the curve show."""
    temperatures: Mapping[str, Schedule] = field(default_factory=dict)
    """The temperatures by node that rows of the curve show, by their names there, besides those in `controls`."""
    weights: frozenset[str]
    """The parameters of the loss with an L2 penalty. Muon trains these; Adam trains the others."""
    watched: frozenset[str]
    """The parameters of the loss whose gradients are finite if and only if all are."""
    validate: Callable[[World], float]
    """Returns the score of the validation set, of which lower is better. The ranks of a world share the work."""
    stacks: Literal["always", "several", "never"] = "always"
    """Whether members run as one vmapped program on a GPU: always, only if there are several, or never."""
    control_names: tuple[str, ...] = ()
    """The names of the schedules in rows of the curve; empty if rows do not show them."""
    optimizer: OptimizerFactory | None = None
    """Makes the optimizer, or None for that of the recipe: Adam or Muon."""
    optimizer_lr: float | None = None
    """The learning rate to make the optimizer with, or None for its own. Then `lr` is 1."""
    parts: int = 1
    """The number of batches whose gradients are averaged in a step."""
    clip: float | None = None
    """The largest norm of a gradient, or None if it is not limited."""
    ema: float | None = None
    """The decay of the running average of the parameters of the model, or None if there is none."""
    reseeds: bool = False
    """Whether torch's global generators are seeded before each step, for programs that draw from them."""
    units: Mapping[str, int] = field(default_factory=dict)
    """The number of units of every latent node that is watched for signs of collapse."""
    examines: bool = False
    """Whether the first step is tried before anything is written, so that its errors are raised early."""
    compiles: bool = False
    """Whether the loss is compiled."""
    relaxes: bool = True
    """Whether training draws relaxed values, so that the discrete graph has another loss."""
    relaxed: MemberLoss | None = None
    """The relaxed loss in evaluation mode, which the monitor's is compared with, or None if training has the same."""
    is_bound: bool = True
    """Whether an objective far below that before training means that training has diverged."""

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self.loss.model

    def lr_at(self, step: int) -> float:
        """Return the learning rate at a step."""
        return self.lr * float(self.lr_factor(step))

    def controls_at(self, step: int) -> Sequence[float]:
        """Return the values of the schedules at a step."""
        return [at_step(schedule, step) for schedule in self.controls]
