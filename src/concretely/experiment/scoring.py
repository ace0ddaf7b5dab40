"""Score trained models and write records: likelihoods, the objective of the relaxed graph, and a baseline."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..data import Dataset
from ..environment import describe_environment
from ..estimator import estimate
from ..evaluation.cost import Cost
from ..evaluation.likelihood import Likelihood, evaluate
from ..evaluation.points import PAIRS_ON_CPU, standard_error
from ..evaluation.progress import counting
from ..file import file_lock
from ..graph.program import eval_mode
from ..model import Model
from ..model.paper import RARE
from ..training.folder import Run
from ..training.own import scored
from ..training.own_method import objective_from_text
from ..training.own_recipe import OwnRecipe, RunRecipe
from ..training.parallel import ALONE, World
from ..training.rng import Purpose, generator_of
from ..training.trial import describe_batch
from ..training.user_error import describe_raised
from .record import FILE, merge_metrics, read_record, recipe_settings, write_record
from .subject import inputs_for, observed_bits, points_of, relaxed_estimator

Score = Likelihood | Cost
"""The likelihood of a model, or the cost of a program."""
Metrics = Mapping[str, dict[str, Any]]
"""Metrics by name."""
TRIED = 2
"""The number of data points, and of samples of each, on which scoring is tried before training."""


class Precision(NamedTuple):
    """The requested precision of a likelihood."""

    samples: int
    full_points: int | None = None
    """The number of data points to score with all samples, by default all."""


def score_split(
    recipe: RunRecipe,
    model: nn.Module,
    data: Any,
    *,
    split: str,
    samples: int,
    world: World = ALONE,
    **options: Any,
) -> Score:
    """Score a split by `evaluate` and its options.

    The recipe's seed determines the draws. The ranks of a world share the work.
    """
    inputs = inputs_for(recipe, model, data, split)
    generator = world.noise(generator_of(recipe.seed, Purpose.EVALUATION, device=_device(model)))
    return evaluate(model, *inputs, samples=samples, generator=generator, **options)


def require_scorable(recipe: RunRecipe, model: nn.Module, data: Any, *, split: str, samples: int) -> None:
    """Score two data points by a model of one's own before it is trained, so that errors of scoring cost no work."""
    if not isinstance(recipe, OwnRecipe) or next(model.parameters(), None) is None:
        return
    few, generator = min(samples, TRIED), generator_of(recipe.seed, Purpose.EVALUATION, device=_device(model))
    inputs = inputs_for(recipe, model, data, split, slice(TRIED))
    try:
        scored(model, inputs, samples=few, generator=generator)
    except (ValueError, RuntimeError, TypeError, KeyError, IndexError, AttributeError) as error:
        points = f"points of the split {split!r}, of {describe_batch(inputs)}"
        how = f"with {few} samples of each, as it is scored with {samples:,}"
        must = f"the model must run on {points}, {how}"
        raise ValueError(f"{must}, but it raised {describe_raised(error)}") from error


def relaxed_objective(
    recipe: RunRecipe,
    model: nn.Module,
    data: Any,
    *,
    split: str,
    samples: int,
    step: int,
    chunk: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Estimate the objective of the relaxed graph at the temperatures of a training step, and return it as a metric.

    `chunk` is the number of pairs of a sample and a data point that run at once. All samples of a data point do.
    """
    estimator, total = relaxed_estimator(recipe, step), points_of(data, split)
    objective = objective_from_text(recipe.objective) if isinstance(recipe, OwnRecipe) else None
    generator = generator_of(recipe.seed, Purpose.EVALUATION, device=_device(model))
    points, bounds = max(1, (chunk or PAIRS_ON_CPU) // samples), []
    with eval_mode(model), torch.no_grad(), counting("relaxed graph", total, shown=progress) as advance:
        for first in range(0, total, points):
            inputs = inputs_for(recipe, model, data, split, slice(first, first + points))
            how: dict[str, Any] = {"samples": samples, "objective": objective, "generator": generator}
            result = estimate(model, *inputs, estimator=estimator, **how)
            bounds.append(result.bound.double().cpu())
            advance(len(bounds[-1]))
    title = f"{split} objective of the relaxed graph"
    score = "NLL" if isinstance(model, Model) else "cost"
    meaning = f"The objective of training; the {score} is that of the discrete graph. Lower is better."
    return _metric(-torch.cat(bounds), samples=samples, title=title, meaning=meaning)


def independent_pixels(
    recipe: RunRecipe, data: Any, *, split: str, model: nn.Module | None = None
) -> dict[str, Any] | None:
    """Return the NLL of a baseline without latents: independent pixels with the frequencies of the training data.

    Return None if the data are not bits. `model` is needed only for a model of one's own.
    """
    x, known = (observed_bits(recipe, model, data, name) for name in (split, "train"))
    if x is None or known is None:
        return None
    rate = (data.train.rate[-x.shape[1] :] if isinstance(data, Dataset) else known.float().mean(0)).double()
    rate = rate.clamp(RARE, 1 - RARE)
    nll = -(x.double() @ rate.logit() + (-rate).log1p().sum())
    meaning = "The NLL of a baseline without latents: each pixel has its frequency in the training data."
    return _metric(nll, title=f"{split} NLL of independent pixels", meaning=meaning)


def score_metric(score: Score) -> dict[str, Any]:
    """Return a score as a metric of a record."""
    return likelihood_metric(score) if isinstance(score, Likelihood) else cost_metric(score)


def score_name(score: Score, split: str) -> str:
    """Return the name of a score in a record."""
    return f"{split}_{'nll' if isinstance(score, Likelihood) else 'cost'}"


def cost_metric(cost: Cost) -> dict[str, Any]:
    """Return a cost as a metric of a record."""
    return _metric(cost.values, samples=cost.samples, seconds=cost.seconds)


def likelihood_metric(likelihood: Likelihood) -> dict[str, Any]:
    """Return a likelihood as a metric of a record."""
    return {
        "value": likelihood.nll,
        "standard_error": likelihood.standard_error,
        "samples": likelihood.samples,
        "points": len(likelihood.log_likelihood),
        "full_points": likelihood.full_points,
        "effective_sample_size": likelihood.effective_sample_size.mean().item(),
        "seconds": likelihood.seconds,
    }


def add_scores(
    folder: Path,
    run: Run,
    model: nn.Module,
    *,
    data: Any,
    scores: Mapping[str, Score],
    others: Metrics = MappingProxyType({}),
    note: Callable[[str], None] = lambda sentence: None,
) -> dict[str, Any]:
    """Add scores by split, and other metrics by name, to the record of a run, and return the record.

    Older metrics are kept, unless they belong to another step or the new ones are at least as precise. If the record is
    damaged or was edited, the file is kept under another name, a new record is started, and `note` receives a sentence
    about it.
    """
    environment = describe_environment(str(_device(model)))
    new = {score_name(score, split): score_metric(score) for split, score in scores.items()} | dict(others)
    if environment != run.environment:  # scored in another environment than trained
        new = {name: {**metric, "environment": environment} for name, metric in new.items()}
    baselines = {split: independent_pixels(run.recipe, data, split=split, model=model) for split in scores}
    new |= {f"{split}_factorised_nll": metric for split, metric in baselines.items() if metric is not None}
    path, before = folder / FILE, dict[str, Any]()
    with file_lock(folder / f".{FILE}.lock"):  # or two processes could overwrite each other's metrics
        if path.exists():
            try:
                before = read_record(path)
            except ValueError:
                kept = path.with_name(f"{path.name}.damaged")
                path.replace(kept)
                way_on = f"it is kept as {kept.name}, and a new one is made from the checkpoint"
                note(f"the record {str(path)!r} is damaged or was changed: {way_on}")
        old = before["metrics"] if before.get("step") == run.chosen else {}
        record = {"recipe": recipe_settings(run.recipe), **run.environment, "seed": run.recipe.seed}
        record |= {"metrics": merge_metrics(old, new), "seconds": run.seconds, "data": run.digest, "step": run.chosen}
        record |= {"members": run.members, "finished": run.finished}
        write_record(path, record)
    return record


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _metric(values: Tensor, **others: Any) -> dict[str, Any]:
    mean, error = values.mean().item(), standard_error(values)
    return {"value": mean, "standard_error": error, "points": len(values), **others}


@contextmanager
def abort_on_stop(stop: Callable[[], bool], model: nn.Module) -> Iterator[None]:
    """Inside this context, raise KeyboardInterrupt before a layer of the model runs if `stop` returns true.

    Signals reach the main thread only, so that a model in another thread has to poll.
    """

    def check(*_: object) -> None:
        if stop():
            raise KeyboardInterrupt

    handles = [module.register_forward_pre_hook(check) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
