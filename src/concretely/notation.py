r"""Parse and print the paper's notation for architectures, such as `200H-200H-784V`.

The notation lists the layers in sampling order [maddison2017concrete, Section 5.1]:

- `200H` is a layer of 200 latent units; `784V` is a layer of 784 observed units. The last layer is observed. If the
  first layer is observed, the model is conditioned on it. All other layers are latent.
- `-` is a linear map from one layer to the next; `~` is two tanh layers followed by a linear map.
- `240H:8` groups the 240 units into 80 8-ary nodes, each a vertex of a 3-cube. Units are binary by default.

The parser also accepts spaces, lower case, enclosing parentheses, and the dashes and tildes of LaTeX and Unicode.

>>> str(parse("(392V--240H--240H:8 ∼ 392v)"))
'392V-240H-240H:8~392V'
>>> parse("200H-784X")
Traceback (most recent call last):
ValueError: notation must have H or V after the units, got 'X' at column 9
200H-784X
        ^
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from reprlib import repr as shortened
from typing import Literal

__all__ = ["Architecture", "parse"]

Link = Literal["-", "~"]

LINK = r"-{1,3}|[\u2010-\u2015\u2212]|[~∼]"  # also LaTeX and Unicode dashes
LARGEST = 999_999_999  # keeps error messages short


@dataclass(frozen=True)
class Layer:
    """A layer of stochastic units, grouped into independent nodes of equal arity.

    >>> layer = Layer(240, observed=False, arity=8)
    >>> str(layer), layer.bits, layer.groups
    ('240H:8', 3, 80)
    """

    units: int
    observed: bool
    arity: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.observed, bool):
            raise TypeError(f"observed must be True or False, got {type(self.observed).__name__}")
        for _, sentence in _faults(self.units, self.observed, self.arity):
            raise ValueError(sentence)

    @property
    def bits(self) -> int:
        """The number of units in one node."""
        return self.arity.bit_length() - 1

    @property
    def groups(self) -> int:
        """The number of independent nodes."""
        return self.units // self.bits

    def __str__(self) -> str:
        return f"{self.units}{'V' if self.observed else 'H'}" + (f":{self.arity}" if self.arity != 2 else "")


@dataclass(frozen=True)
class Architecture:
    """The layers of a model in sampling order, and the links between them.

    >>> str(Architecture((Layer(200, observed=False), Layer(784, observed=True)), ("~",)))
    '200H~784V'
    """

    layers: tuple[Layer, ...]
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        if not (isinstance(self.layers, tuple) and isinstance(self.links, tuple)):
            got = f"{type(self.layers).__name__} and {type(self.links).__name__}"
            raise TypeError(f"layers and links must be tuples, got {got}")
        for _, sentence in _misplaced(self.layers):
            raise ValueError(sentence)
        if len(self.links) != len(self.layers) - 1:
            raise ValueError(f"links must be one fewer than the {len(self.layers)} layers, got {len(self.links)}")
        for index, link in enumerate(self.links):
            if link not in ("-", "~"):
                raise ValueError(f"links must be '-' or '~', got {shortened(link)} at index {index}")

    @property
    def latent(self) -> tuple[Layer, ...]:
        """The latent layers in sampling order."""
        return tuple(layer for layer in self.layers if not layer.observed)

    @property
    def observed(self) -> Layer:
        """The last layer, which the model predicts."""
        return self.layers[-1]

    @cached_property
    def context(self) -> Layer | None:
        """The observed first layer, which conditions the model, or None."""
        return self.layers[0] if self.layers[0].observed else None

    @property
    def nonlinear(self) -> bool:
        """Whether any link has tanh layers."""
        return "~" in self.links

    def __str__(self) -> str:
        return "".join(f"{layer}{link}" for layer, link in zip(self.layers, (*self.links, ""), strict=True))


def parse(text: str, *, arity: int | None = None) -> Architecture:
    """Parse an architecture; `arity` is the default arity of latent layers.

    >>> parse("240H~784V", arity=4).latent
    (Layer(units=240, observed=False, arity=4),)
    """
    if not isinstance(text, str):
        raise TypeError(f"notation must be a string, got {type(text).__name__}")
    for field, sentence in _faults(1, observed=False, arity=2 if arity is None else arity):
        if field == "arity":  # each layer checks whether the arity divides its units
            raise ValueError(sentence)
    reader = _Reader(text, at=len(text) - len(text.lstrip()))
    opened = reader.take(r"\(")
    columns, layers, links = [reader.at], [_layer(reader, arity)], list[Link]()
    while link := reader.take(LINK):
        links.append("~" if link in "~∼" else "-")
        columns.append(reader.at)
        layers.append(_layer(reader, arity))
    if opened:
        reader.expect(r"\)", "a link - or ~, or the closing )")
    reader.expect(r"\Z", "nothing after the closing )" if opened else "a link - or ~")
    for index, sentence in _misplaced(tuple(layers)):
        raise reader.error(sentence, columns[index])
    return Architecture(tuple(layers), tuple(links))


def _layer(reader: "_Reader", arity: int | None) -> Layer:
    """Parse one layer."""
    columns = {"units": reader.at, "arity": reader.at}
    units = _number(reader.expect("[0-9]+", "a layer such as 200H"))
    observed = reader.expect("[HhVv]", "H or V after the units") in "Vv"
    if observed or arity is None:
        arity = 2
    if reader.take(":"):
        columns["arity"] = reader.at
        arity = _number(reader.expect("[0-9]+", "an arity such as 8 after the colon"))
    for field, sentence in _faults(units, observed, arity):
        raise reader.error(sentence, columns[field])
    return Layer(units, observed, arity)


def _number(digits: str) -> int:
    """Convert digits to an integer; cut long inputs, which `int` rejects, to a number that is still too large."""
    return int(digits.lstrip("0")[:10] or "0")


def _faults(units: int, observed: bool, arity: int) -> Iterator[tuple[str, str]]:
    """Yield the errors of a layer, as pairs of a field name and a message."""
    for field, size in (("units", units), ("arity", arity)):
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{field} must be an integer, got {type(size).__name__}")
        if size > LARGEST:
            yield field, f"{field} must be at most {LARGEST}, got more"
    if units < 1:
        yield "units", f"units must be positive, got {units}"
    if arity < 2 or arity & (arity - 1):
        yield "arity", f"arity must be a power of two, at least 2, got {arity}"
    if observed and arity != 2:
        yield "arity", f"arity of an observed layer must be 2, got {arity}"
    if units % (bits := arity.bit_length() - 1):
        yield "units", f"units must be a multiple of {bits} to form nodes of arity {arity}, got {units}"


def _misplaced(layers: tuple[Layer, ...]) -> Iterator[tuple[int, str]]:
    """Yield the errors in the order of the layers, as pairs of a layer index and a message."""
    if len(layers) < 2:
        yield 0, f"architecture must have at least two layers, such as 200H-784V, got {len(layers)}"
    for index, layer in enumerate(layers[1:-1], start=1):
        if layer.observed:
            yield index, f"layers between the first and the last must be latent, such as 200H, got {layer}"
    if not layers[-1].observed:
        yield len(layers) - 1, f"last layer must be observed, such as 784V, got {layers[-1]}"
    if all(layer.observed for layer in layers):
        yield 0, "architecture must have a latent layer, such as 200H, got observed ones only"


@dataclass
class _Reader:
    """A tokenizer; `at` is the current column."""

    text: str
    at: int

    def take(self, form: str) -> str | None:
        """Consume the next token and the spaces after it, if it matches a pattern."""
        if match := re.compile(rf"({form})\s*").match(self.text, self.at):
            self.at = match.end()
            return match[1]
        return None

    def expect(self, form: str, what: str) -> str:
        """Consume the next token; raise if it does not match a pattern."""
        token = self.take(form)
        if token is None:
            at, text = self.at, self.take("[0-9]+|.")
            raise self.error(f"notation must have {what}, got {shortened(text) if text else 'nothing'}", at)
        return token

    def error(self, sentence: str, at: int) -> ValueError:
        """Return an error that points at a column."""
        line = re.sub(r"\s", " ", self.text)  # tabs and line breaks would move the caret
        return ValueError(f"{sentence} at column {at + 1}\n{line}\n{' ' * at}^")
