"""Score trained models and write records: likelihoods, the objective of the relaxed graph, and a baseline."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data import Dataset
from ..environment import describe_environment
from ..estimator import estimate
from ..evaluation.likelihood import PAIRS_ON_CPU, Likelihood, evaluate, standard_error
from ..evaluation.progress import counting
from ..file import file_lock
from ..graph.program import eval_mode
from ..model import Model
from ..model.paper import RARE
from ..training.engine import inputs_of
from ..training.method import estimator_at_step
from ..training.recipe import Recipe
from ..training.rng import Purpose, generator_of
from ..training.run import Run
from .record import FILE, merge_metrics, read_record, recipe_settings, write_record

Metrics = Mapping[str, dict[str, Any]]
"""Metrics by name."""


class Precision(NamedTuple):
    """The requested precision of a likelihood."""

    samples: int
    full_points: int | None = None
    """The number of data points to score with all samples, by default all."""


def score_split(recipe: Recipe, model: Model, data: Dataset, *, split: str, samples: int, **options: Any) -> Likelihood:
    """Estimate the likelihood of a split by `evaluate` and its options. The recipe's seed determines the draws."""
    device = next(model.parameters()).device
    inputs = inputs_of(recipe, data.split(split)[:].to(device))
    generator = generator_of(recipe.seed, Purpose.EVALUATION, device=device)
    return evaluate(model, *inputs, samples=samples, generator=generator, **options)


def relaxed_objective(
    recipe: Recipe,
    model: Model,
    data: Dataset,
    *,
    split: str,
    samples: int,
    step: int,
    chunk: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Estimate the objective of the relaxed graph at the temperatures of a training step, and return it as a metric.

    `chunk` is the number of pairs of a sample and a data point that run at once.
    """
    if not recipe.method.relaxes:
        raise ValueError(f"estimator must be one that trains a relaxed graph, got {recipe.estimator!r}")
    estimator = estimator_at_step(recipe, step)
    device = next(model.parameters()).device
    generator = generator_of(recipe.seed, Purpose.EVALUATION, device=device)
    bits, bounds = data.split(split), []
    points = max(1, (chunk or PAIRS_ON_CPU) // samples)
    with eval_mode(model), torch.no_grad(), counting("relaxed graph", len(bits), shown=progress) as advance:
        for first in range(0, len(bits), points):
            inputs = inputs_of(recipe, bits[first : first + points].to(device))
            found = estimate(model, *inputs, estimator=estimator, samples=samples, generator=generator)
            bounds.append(found.bound.double().cpu())
            advance(len(bounds[-1]))
    title = f"{split} objective of the relaxed graph"
    meaning = "The objective of training; the NLL is that of the discrete graph. Lower is better."
    return _metric(-torch.cat(bounds), samples=samples, title=title, meaning=meaning)


def independent_pixels(recipe: Recipe, data: Dataset, *, split: str) -> dict[str, Any]:
    """Return the NLL of a baseline without latents: independent pixels with the frequencies of the training data."""
    observed = recipe.architecture.observed.units
    rate = data.train.rate[-observed:].double().clamp(RARE, 1 - RARE)
    x = data.split(split)[:][:, -observed:].double()
    nll = -(x @ rate.logit() + (-rate).log1p().sum())
    meaning = "The NLL of a baseline without latents: each pixel has its frequency in the training data."
    return _metric(nll, title=f"{split} NLL of independent pixels", meaning=meaning)


def likelihood_metric(found: Likelihood) -> dict[str, Any]:
    """Return a likelihood as a metric of a record."""
    return {
        "value": found.nll,
        "standard_error": found.standard_error,
        "samples": found.samples,
        "points": len(found.log_likelihood),
        "thorough": found.full_points,
        "effective_sample_size": found.effective_sample_size.mean().item(),
        "seconds": found.seconds,
    }


def add_scores(
    folder: Path,
    run: Run,
    model: Model,
    *,
    data: Dataset,
    found: Mapping[str, Likelihood],
    others: Metrics = MappingProxyType({}),
    note: Callable[[str], None] = lambda sentence: None,
) -> dict[str, Any]:
    """Add likelihoods by split, and other metrics by name, to the record of a run, and return the record.

    Older metrics are kept, unless they belong to another step or the new ones are at least as precise. If the record
    is damaged or was changed, `note` is told, the file is kept under another name and a new record is begun.
    """
    environment = describe_environment(str(next(model.parameters()).device))
    new = {f"{split}_nll": likelihood_metric(likelihood) for split, likelihood in found.items()} | dict(others)
    if environment != run.environment:  # scored in another environment than trained
        new = {name: {**metric, "made": environment} for name, metric in new.items()}
    new |= {f"{split}_factorised_nll": independent_pixels(run.recipe, data, split=split) for split in found}
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


def _metric(values: Tensor, **others: Any) -> dict[str, Any]:
    mean, error = values.mean().item(), standard_error(values)
    return {"value": mean, "standard_error": error, "points": len(values), **others}


@contextmanager
def abort_on_stop(stop: Callable[[], bool], model: Model) -> Iterator[None]:
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
