"""The tasks of the paper's models: a recipe and a data set of bits."""

import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..estimator import Estimator
from ..estimator.base import default_objective
from ..evaluation.likelihood import evaluate
from ..functional.bound import bound
from ..functional.noise import Source
from ..graph.mode import Discrete
from ..model import Model, density, prediction
from ..objective import log_weights
from ..objective import loss as loss_of
from ..schedule import lr_factor
from .feed import Indexed, PackedPoints
from .method import at_temperature, estimator_of
from .own_recipe import RunRecipe
from .parallel import World
from .recipe import Recipe, program_key
from .rng import Order, Purpose, generator_of
from .task import Controls, MemberLoss, Task


def paper_recipe(recipe: RunRecipe) -> Recipe:
    """Return a recipe if it is of the paper's models; otherwise raise."""
    if not isinstance(recipe, Recipe):
        raise ValueError(f"this needs a model in the paper's notation, got a model of one's own, {recipe.title}")
    return recipe


def inputs_of(recipe: Recipe, bits: Tensor) -> tuple[Tensor, ...]:
    """Return the inputs of a model from the bits of data points: x, or the context (the first bits) and x."""
    context = recipe.architecture.context
    return (bits,) if context is None else (bits[..., : context.units], bits[..., context.units :])


def build_model(recipe: Recipe, data: Dataset | None = None) -> Model:
    """Return the model of a recipe before training. Given data, its output biases start at their base rates."""
    architecture, generator = recipe.architecture, generator_of(recipe.seed, Purpose.INITIAL)
    rate = None if data is None else data.train.rate[recipe.width - architecture.observed.units :]
    make = density if architecture.context is None else prediction
    return make(architecture, base_rate=rate, generator=generator)


def empty_model(recipe: Recipe) -> Model:
    """Return the model of a recipe without memory for its parameters, on torch's meta device."""
    architecture = recipe.architecture
    with torch.device("meta"):
        return (density if architecture.context is None else prediction)(architecture)


class PaperLoss(MemberLoss):
    """Minus the mean of the objective of a recipe. Its controls are the temperature and that of the prior."""

    def __init__(self, model: Model, estimator: Estimator, recipe: Recipe) -> None:
        super().__init__(model, estimator)
        self.recipe = recipe
        self._objective = default_objective(model, estimator)
        self._has_temperature = recipe.method.has_temperature
        self._temperatures: Controls | None = None  # the temperatures of the current estimator

    def forward(self, inputs: Tensor, keys: Source, controls: Controls) -> Tensor:
        """Return the loss of bits."""
        parts, estimator = inputs_of(self.recipe, inputs), self._estimator_at(controls)
        samples, objective = self.recipe.samples, self._objective
        return estimator(self.model, *parts, samples=samples, objective=objective, generator=keys).loss

    def _estimator_at(self, temperatures: Controls) -> Estimator:
        if not self._has_temperature:
            return self.estimator
        if not all(isinstance(temperature, float) for temperature in temperatures):  # tensors change in every call
            return at_temperature(self.recipe.estimator, *temperatures)
        if temperatures != self._temperatures:
            self.estimator, self._temperatures = at_temperature(self.recipe.estimator, *temperatures), temperatures
        return self.estimator


class DiscreteLoss(MemberLoss):
    """Minus the mean bound of the discrete graph of a recipe."""

    def __init__(self, loss: PaperLoss) -> None:
        super().__init__(loss.model, loss.estimator)
        self.recipe = loss.recipe

    def forward(self, inputs: Tensor, keys: Source, controls: Controls) -> Tensor:
        """Return the loss of bits."""
        parts, samples = inputs_of(self.recipe, inputs), self.recipe.samples
        return loss_of(log_weights(self.model, *parts, mode=Discrete(), samples=samples, generator=keys), bound)[0]


def paper_task(recipe: Recipe, data: Dataset, *, device: torch.device | str = "cpu") -> Task:
    """Return the task of a recipe, with a new model on a device."""
    device = torch.device(device)
    moved = data.to(device)
    model = build_model(recipe, data).to(device)
    loss = PaperLoss(model, estimator_of(recipe, model, inputs_of(recipe, moved.train[:1000])), recipe)
    names = {name for name, _ in loss.named_parameters()}
    # the weights of the model have an L2 penalty; the parameters of the estimator have none
    weights = frozenset(name for name in names if name.startswith("model.") and name.endswith("weight"))

    def validate(world: World) -> float:
        generator = world.noise(generator_of(recipe.seed, Purpose.VALIDATION, device=device))
        inputs = inputs_of(recipe, moved.valid[:])
        return evaluate(model, *inputs, samples=recipe.validation_samples, generator=generator).nll

    temperature = recipe.temperature or 0.0
    return Task(
        recipe=recipe,
        device=device,
        key=program_key(recipe),
        loss=loss,
        monitor=DiscreteLoss(loss) if recipe.method.relaxes else None,
        feed=Indexed(PackedPoints(moved.train), Order(points=len(data.train), batch=recipe.batch, seed=recipe.seed)),
        digest=data.digest,
        source=data.name,
        lr=recipe.lr,
        lr_factor=lambda step: lr_factor(recipe.lr_schedule, step, recipe.steps),
        decay=recipe.weight_decay / len(data.train),
        controls=(temperature, recipe.prior_temperature or temperature),
        temperature=recipe.temperature,
        weights=weights,
        # inputs of layers are bits or states: a weight's gradient is finite where that of the bias beside it is
        watched=frozenset(names - weights),
        validate=validate,
    )
