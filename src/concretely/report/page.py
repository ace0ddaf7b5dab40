"""The report of a run: a single HTML file without scripts or external files, and its pictures."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from ..experiment.picture import Picture
from ..experiment.record import format_metric, format_value, is_corrected, model_title
from ..file import atomic_write, write_text
from ..spelling import explain_loose, format_effective, printable
from ..training.folder import Run
from ..training.loop import average
from ..training.origin import SCRIPT
from ..training.own_method import is_named
from ..training.own_recipe import OwnRecipe
from ..training.recipe import ESTIMATORS
from ..training.train_state import Row as TrainingRow
from .curve import Row, draw_curve
from .image import CAPTIONS, draw_picture
from .style import render_figure

FILE = "report.html"

KINDS = {"png": "png", "svg": "svg+xml"}
"""The MIME subtypes of images."""

MEANINGS = {
    "nll": "The negative log-likelihood of a data point under the discrete graph, in nats. Lower is better.",
    "cost": "The expected cost of a data point under the discrete graph. Lower is better.",
    "bound": "A lower bound on the log-likelihood of a data point, in nats. Higher is better.",
    "gap": "By how much the relaxed bound exceeds that of the discrete graph, in nats. Near zero is better.",
}
"""The meaning of a metric, by the last word of its name."""


LAST = 0.1
"""The share of the steps, at the end of training, over which the metrics of nodes are averaged."""


class Image(NamedTuple):
    """A rendered figure, with its size in CSS pixels."""

    caption: str
    kind: str
    content: bytes
    width: int
    height: int

    @property
    def source(self) -> str:
        """The image as a data URL."""
        return f"data:image/{self.kind};base64,{b64encode(self.content).decode()}"


def write_report(folder: Path, run: Run, record: Mapping[str, Any], pictures: Mapping[str, Picture]) -> Path:
    """Write the pictures and the page of a run into its folder, and return the path of the page."""
    images = {name: embed_figure(CAPTIONS[name], draw_picture(picture)) for name, picture in pictures.items()}
    objective = "objective" if isinstance(run.recipe, OwnRecipe) else "bound"
    if any(name.endswith("_cost") for name in record.get("metrics", {})):
        objective = "cost"
    curve = curve_image([asdict(row) for row in run.rows], objective=objective)
    for name, image in {**images, "curve": curve}.items():
        with atomic_write(folder / f"{name}.png") as file:
            file.write_bytes(image.content)
    write_text(folder / FILE, page(record, curve if run.rows else None, list(images.values()), node_table(run.rows)))
    return folder / FILE


def embed_figure(caption: str, figure: Figure, kind: Literal["png", "svg"] = "png") -> Image:
    """Render a figure as an image with a caption."""
    width, height = figure.get_size_inches() * 96  # CSS pixels per inch
    return Image(caption, KINDS[kind], render_figure(figure, kind), round(width), round(height))


def curve_image(rows: Sequence[Row], *, objective: str = "bound") -> Image:
    """Render the training curve, with a caption that gives its last values (see `draw_curve`)."""
    last = rows[-1] if rows else {}
    sign, unit = -1 if objective == "cost" else 1, " nats" if objective == "bound" else ""
    ends = ((f"training {objective}", last.get("objective")), (f"discrete {objective}", last.get("discrete")))
    texts = [f"the {name} is {format_value(sign * value, None)}{unit}" for name, value in ends if value is not None]
    caption = f"At step {last['step']:,} " + " and ".join(texts) + "." if texts else f"The {objective} against steps."
    return embed_figure(caption, draw_curve(rows, objective=objective))


def node_table(rows: Sequence[TrainingRow]) -> dict[str, str]:
    """Return the metrics of every node as text, averaged over the last rows of a curve, as one row has few batches.

    >>> def row(step, **metrics):
    ...     return TrainingRow(step, 0.0, 1e-3, None, -20.0, -20.0, metrics={"gradient_norm": 2.0, **metrics})
    >>> first, last = {"kl/code": 9.0}, {"kl/code": 1.234, "active/code": 3.0, "log_likelihood/x": -20.0}
    >>> node_table([row(900, **first), row(1000, **last)])
    {'code': 'KL 1.23 nats, active units: 3', 'x': 'log-likelihood −20 nats'}
    """
    recent = [row for row in rows if row.step > (1 - LAST) * rows[-1].step]
    metrics = average(recent).metrics if recent else {}
    words = {"kl": "KL {} nats", "active": "active units: {}", "log_likelihood": "log-likelihood {} nats"}
    texts = dict[str, list[str]]()
    for name, value in metrics.items():
        kind, _, node = name.partition("/")
        if node and kind in words:
            texts.setdefault(node, []).append(words[kind].format(f"{value:.3g}".replace("-", "−")))
    return {node: ", ".join(parts) for node, parts in texts.items()}


def page(
    record: Mapping[str, Any],
    curve: Image | None = None,
    pictures: Sequence[Image] = (),
    nodes: Mapping[str, str] | None = None,
) -> str:
    """Return the HTML page of a record, its curve, its pictures and its nodes. Missing parts are omitted.

    >>> text = page({"recipe": {"notation": "32H~64V", "data": "digits", "estimator": "concrete"}})
    >>> "<h1>32H~64V on digits by concrete</h1>" in text
    True
    """
    recipe = {key: value for key, value in record.get("recipe", {}).items() if value is not None}
    named = {**recipe, "notation": model_title(recipe)} if {"notation", "model"} & recipe.keys() else recipe
    words = (("", "notation"), ("on ", "data"), ("by ", "estimator"))
    return render_template(
        "page.html",
        title=" ".join(f"{word}{named[key]}" for word, key in words if key in named) or "A run",
        metrics=[_metric(name, metric) for name, metric in record.get("metrics", {}).items()],
        curve=curve,
        pictures=pictures,
        nodes=dict(nodes or {}),
        recipe=recipe,
        toml=OwnRecipe.of(recipe).toml() if "model" in recipe else _toml(recipe),
        command=_command(recipe),
        environment=dict(_environment(record)),
    )


def _command(recipe: Mapping[str, Any]) -> str | None:
    """Return the command that repeats a run, or None if its builder, estimator or data have no name there."""
    if "model" not in recipe:
        return "concretely train --recipe recipe.toml"
    own = OwnRecipe.of(recipe)
    has_builder = own.model and not own.model.startswith(SCRIPT)
    has_names = has_builder and own.estimator in ESTIMATORS and is_named(own)
    return f"concretely train {own.model} --recipe recipe.toml" if has_names else None


def _toml(recipe: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in recipe.items())


def render_template(name: str, **variables: Any) -> str:
    """Render a template of this package.

    Its filter `coded` marks text between backticks as code, and `plain` escapes text for Markdown.
    """
    is_html = name.endswith(".html")
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=is_html,
        keep_trailing_newline=not is_html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["coded"] = lambda text: Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))
    environment.filters["plain"] = markdown_text
    return environment.get_template(name).render(**variables)


def markdown_text(text: str) -> str:
    r"""Escape text for Markdown: none of it is HTML, a link, emphasis, code, a line break or a cell of a table.

    >>> print(markdown_text("my_data|<img src=x>"))
    my\_data\|\<img src=x\>
    """
    return re.sub(r"([\\`*_{}\[\]<>|#~&!])", r"\\\1", printable(" ".join(text.split())))


def _metric(name: str, metric: Mapping[str, Any]) -> dict[str, Any]:
    words = name.split("_")
    meaning = [metric.get("meaning", MEANINGS.get(words[-1], ""))]
    if "samples" in metric:
        some = f" for {metric['full_points']:,} of {metric['points']:,} data points" if is_corrected(metric) else ""
        samples = f"{metric['samples']:,} sample{'s' * (metric['samples'] != 1)} of the latents{some}"
        effective = metric.get("effective_sample_size")
        size = "" if effective is None else f"The mean effective sample size is {format_effective(effective)}."
        meaning += [f"Estimated from {samples}.", size, explain_loose(effective, metric["samples"])]
    title = metric.get("title", " ".join(word.upper() if word == "nll" else word for word in words))
    about = {"text": format_metric(metric), "meaning": " ".join(filter(None, meaning))}
    return {"name": title, "value": metric.get("value"), **about}


def _environment(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the environment of a record, in words."""
    if "commit" in record:
        commit = record["commit"]
        yield "commit", (commit["hash"] + ", with changes" * commit["dirty"]) if commit else "not in a repository"
    if "versions" in record:
        yield "versions", ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    if "device" in record:
        device = {"cpu": "an unnamed CPU", "cores": "some", **record["device"]}
        cores = f"{device['cpu']}, {device['cores']} core{'s' * (device['cores'] != 1)}"
        yield "device", f"{device['gpu']} beside {cores}" if "gpu" in device else cores
    if "seed" in record:
        yield "seed", str(record["seed"])
    if record.get("seconds") is not None:
        yield "time", _duration(record["seconds"])


def _duration(seconds: float) -> str:
    """Format a duration."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{round(seconds) // 60} min {round(seconds) % 60} s"
