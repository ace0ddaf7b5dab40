"""What a run leaves behind in its folder: its record, pictures of what it has learned, and one page with all of it."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from matplotlib.figure import Figure

from ..data.dataset import Dataset
from ..environment import describe_environment
from ..evaluation.likelihood import Likelihood, evaluate, standard_error
from ..file import atomic_write, file_lock
from ..model import Model
from ..model.layer import RARE
from ..training.chance import Purpose, generator_of
from ..training.recipe import Recipe
from ..training.run import Run
from ..training.trainer import inputs_of
from . import image, record
from .page import curved, page, shown

PAGE = "report.html"
Metrics = Mapping[str, dict[str, Any]]
"""What was measured, by name."""
SHOWN = 12
"""How many data points are pictured."""


def scored(
    recipe: Recipe,
    model: Model,
    data: Dataset,
    *,
    part: str,
    samples: int,
    full_points: int | None = None,
    chunk: int | None = None,
    progress: bool = False,
) -> Likelihood:
    """The likelihood of a part of the data, by draws that follow from the seed of the recipe."""
    device = next(model.parameters()).device
    inputs = inputs_of(recipe, data.split(part)[:].to(device))
    generator = generator_of(recipe.seed, Purpose.EVALUATION, device=device)
    return evaluate(
        model, *inputs, samples=samples, full_points=full_points, chunk=chunk, generator=generator, progress=progress
    )


def metric(found: Likelihood) -> dict[str, Any]:
    """A likelihood as a record has it."""
    return {
        "value": found.nll,
        "standard_error": found.standard_error,
        "samples": found.samples,
        "points": len(found.log_likelihood),
        "thorough": found.full_points,
        "effective_sample_size": found.effective_sample_size.mean().item(),
        "seconds": found.seconds,
    }


def factorised(recipe: Recipe, data: Dataset, *, part: str) -> dict[str, Any]:
    """What the model is measured against: independent pixels, each as frequent as in the training data."""
    observed = recipe.architecture.observed.units
    rate = data.train.rate[-observed:].double().clamp(RARE, 1 - RARE)
    x = data.split(part)[:][:, -observed:].double()
    nll = -(x @ rate.logit() + (-rate).log1p().sum())
    return {
        "value": nll.mean().item(),
        "standard_error": standard_error(nll),
        "points": len(nll),
        "title": f"{part} NLL of independent pixels",
        "meaning": "What is found without latents, by pixels that are each as frequent as in the training data.",
    }


def leave_record(
    folder: Path,
    run: Run,
    model: Model,
    *,
    data: Dataset,
    found: Mapping[str, Likelihood],
    others: Metrics = MappingProxyType({}),
) -> dict[str, Any]:
    """Write the record of a run, and what it says; the likelihoods are by part of the data, other metrics by name.

    Those already in the record stay, unless they are of another step, or of the same part and not known better.
    """
    made = describe_environment(str(next(model.parameters()).device))
    new = {f"{part}_nll": metric(likelihood) for part, likelihood in found.items()} | dict(others)
    if made != run.made:  # scored elsewhere than trained
        new = {name: {**score, "made": made} for name, score in new.items()}
    new |= {f"{part}_factorised_nll": factorised(run.recipe, data, part=part) for part in found}
    with file_lock(folder / f".{record.FILE}.lock"):  # else one of two processes might lose what the other has found
        written = _record(folder / record.FILE, run, new)
        record.write(folder / record.FILE, written)
    return written


def leave(
    folder: Path,
    run: Run,
    model: Model,
    *,
    data: Dataset,
    found: Mapping[str, Likelihood],
    others: Metrics = MappingProxyType({}),
) -> list[Path]:
    """Write the record, the pictures and the page of a run."""
    written = leave_record(folder, run, model, data=data, found=found, others=others)
    images = {name: shown(*picture) for name, picture in pictures(run.recipe, model, data).items()}
    curve = curved([asdict(row) for row in run.rows])
    for name, picture in {**images, "curve": curve}.items():
        with atomic_write(folder / f"{name}.png") as place:
            place.write_bytes(picture.content)
    with atomic_write(folder / PAGE) as place:
        place.write_text(page(written, curve if run.rows else None, list(images.values())), encoding="utf-8")
    return [folder / record.FILE, *(folder / f"{name}.png" for name in (*images, "curve")), folder / PAGE]


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """A recipe as a record tells it, in which data have a name but no place."""
    return {**recipe.settings, "data": Path(recipe.data).name}


def _record(path: Path, run: Run, new: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The record of a run with new metrics and those of before that still hold."""
    before: Mapping[str, Any] = {}
    if path.exists():
        try:
            before = record.read(path)
        except ValueError:  # it is put aside, as what is damaged may still be read by eye
            path.replace(path.with_name(f"{path.name}.damaged"))
    old = before["metrics"] if before.get("step") == run.chosen else {}
    metrics = ordered(record.merged(old, new))
    written = record.record(settings_of(run.recipe), metrics, seed=run.recipe.seed, seconds=run.seconds, made=run.made)
    return {**written, "data": run.digest, "step": run.chosen, "members": run.members, "finished": run.finished}


def ordered(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is of the model first, and then what it is measured against."""
    return dict(sorted(metrics.items(), key=lambda item: (item[0].count("_"), item[0])))


def pictures(recipe: Recipe, model: Model, data: Dataset) -> dict[str, tuple[str, Figure]]:
    """What a model has learned, as figures with their captions, by name."""
    device = next(model.parameters()).device
    generator = generator_of(recipe.seed, Purpose.PICTURE, device=device)
    inputs = inputs_of(recipe, data.test.spread(SHOWN).to(device))
    if recipe.architecture.context is not None:
        return {"completions": (image.COMPLETIONS, image.completions(model, *inputs, generator=generator))}
    return {
        "samples": (image.SAMPLES, image.samples(model, generator=generator)),
        "reconstructions": (image.RECONSTRUCTIONS, image.reconstructions(model, *inputs, generator=generator)),
    }
