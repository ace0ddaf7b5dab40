"""A run on one page: a single HTML file that needs nothing else, neither files nor a network nor scripts."""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from .curve import Row
from .curve import curve as curve_of
from .figure import rendered
from .record import measured, surveys

AGAIN = "concretely train --recipe recipe.toml"
"""What makes a run again from a copy of its recipe."""

KINDS = {"png": "png", "svg": "svg+xml"}
"""What a page calls the kinds of images."""

MEANINGS = {
    "nll": "The negative log-likelihood of a data point under the discrete graph, in nats. Lower is better.",
    "bound": "A lower bound on the log-likelihood of a data point, in nats. Higher is better.",
    "gap": "By how much the relaxed bound exceeds that of the discrete graph, in nats. Near zero is better.",
}
"""What a metric means, by the last word of its name."""


class Metric(NamedTuple):
    """A number to read."""

    name: str
    value: Any
    text: str
    meaning: str


class Image(NamedTuple):
    """A figure to look at, in pixels of the page."""

    caption: str
    kind: str
    content: bytes
    width: int
    height: int

    @property
    def source(self) -> str:
        """Itself, in place of the address of a file."""
        return f"data:image/{self.kind};base64,{b64encode(self.content).decode()}"


def shown(caption: str, figure: Figure, kind: Literal["png", "svg"] = "png") -> Image:
    """A figure as an image with a caption."""
    width, height = figure.get_size_inches() * 96  # of these, a page has so many to the inch
    return Image(caption, KINDS[kind], rendered(figure, kind), round(width), round(height))


def curved(rows: Sequence[Row]) -> Image:
    """How training went, as an image that is told in words as well."""
    return shown(_story(rows), curve_of(rows))


def page(
    record: Mapping[str, Any],
    curve: Image | None = None,
    pictures: Sequence[Image] = (),
    *,
    title: str | None = None,
    command: str = AGAIN,
) -> str:
    """A record, its curve and pictures as HTML; of a record that lacks a part, what there is.

    >>> text = page({"recipe": {"notation": "32H~64V", "data": "digits", "estimator": "concrete"}})
    >>> "<h1>32H~64V on digits by concrete</h1>" in text
    True
    """
    recipe = {key: value for key, value in record.get("recipe", {}).items() if value is not None}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        title=title or _title(recipe),
        metrics=[_metric(name, metric) for name, metric in record.get("metrics", {}).items()],
        curve=curve,
        pictures=pictures,
        recipe=recipe,
        toml="".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in recipe.items()),
        command=command,
        environment=dict(_environment(record)),
    )


def _title(recipe: Mapping[str, Any]) -> str:
    words = (("", "notation"), ("on ", "data"), ("by ", "estimator"))
    return " ".join(f"{word}{recipe[key]}" for word, key in words if key in recipe) or "A run"


def _metric(name: str, metric: Mapping[str, Any]) -> Metric:
    words = name.split("_")
    meaning = [metric.get("meaning", MEANINGS.get(words[-1], ""))]
    if "samples" in metric:
        some = f" for {metric['thorough']:,} of {metric['points']:,} data points" if surveys(metric) else ""
        samples = f"{metric['samples']:,} sample{'s' * (metric['samples'] != 1)} of the latents{some}"
        meaning.append(f"Estimated from {samples}.")
    title = metric.get("title", " ".join(word.upper() if word == "nll" else word for word in words))
    text = measured(metric.get("value"), metric.get("standard_error"))
    return Metric(title, metric.get("value"), text, " ".join(filter(None, meaning)))


def _story(rows: Sequence[Row]) -> str:
    """What a curve shows, in words."""
    last = rows[-1] if rows else {}
    ends = (("training bound", last.get("bound")), ("discrete bound", last.get("discrete")))
    found = [f"the {name} is {measured(value, None)} nats" for name, value in ends if value is not None]
    return f"At step {last['step']:,} " + " and ".join(found) + "." if found else "The bound against steps."


def _environment(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a record says of the environment, in words."""
    if "commit" in record:
        found = record["commit"]
        yield "commit", (found["hash"] + ", with changes" * found["dirty"]) if found else "not in a repository"
    if "versions" in record:
        yield "versions", ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    if "device" in record:
        found = record["device"]
        cores = f"{found['cpu']}, {found['cores']} core{'s' * (found['cores'] != 1)}"
        yield "device", f"{found['gpu']} beside {cores}" if "gpu" in found else cores
    if "seed" in record:
        yield "seed", str(record["seed"])
    if record.get("seconds") is not None:
        yield "time", _duration(record["seconds"])


def _duration(seconds: float) -> str:
    """So many seconds as one would say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{round(seconds) // 60} min {round(seconds) % 60} s"
