"""Where the nodes of a graph and the arrows between them go on a page: in layers, which follow the arrows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal

from matplotlib.path import Path

from .pen import Point

GAP = 0.36
"""From node to node, in inches."""

Flow = Literal["up", "right", "left"]
"""Where arrows point."""

Key = str | tuple[str, str, int]
"""The name of a node or, of an edge that passes a layer, those of its ends and the number of the layer."""


@dataclass(frozen=True)
class Layout:
    """A graph with a place for everything, in inches from its lower left corner."""

    middles: Mapping[str, Point]
    arrows: Sequence[Path]
    width: float
    height: float


def layout(parents: Mapping[str, Sequence[str]], sizes: Mapping[str, Point], *, flow: Flow) -> Layout:
    """Put each node one layer after the last of its parents, and lead an edge between the nodes of those it passes.

    >>> drawn = layout({"a": [], "b": ["a"]}, {"a": (1.0, 1.0), "b": (1.0, 2.0)}, flow="right")
    >>> drawn.middles["a"], drawn.height
    ((0.5, 1.0), 2.0)
    """
    layers, chains = _layers(parents)
    # along the flow and across it; an edge that passes a layer has a place there, as a node has
    extents: dict[Key, Point] = {key: (0.0, 0.0) for layer in layers for key in layer}
    extents |= {name: size[::-1] if flow == "up" else size for name, size in sizes.items()}
    end, spans, across = -GAP, dict[Key, Point](), dict[Key, float]()
    for layer in layers:
        start = end + GAP
        end = start + max(extents[key][0] for key in layer)
        edge = -(sum(extents[key][1] for key in layer) + GAP * (len(layer) - 1)) / 2
        for key in layer:
            spans[key], across[key] = (start, end), edge + extents[key][1] / 2
            edge += extents[key][1] + GAP
    breadth = 2 * max(across[key] + extents[key][1] / 2 for key in across)

    def on_page(along: float, across: float) -> Point:
        if flow == "up":
            return breadth / 2 + across, along
        return along if flow == "right" else end - along, breadth / 2 - across

    arrows = []
    for child in parents:
        ways = sorted((chain for chain in chains if chain[-1] == child), key=lambda chain: across[chain[-2]])
        spread = min(0.3, extents[child][1] / (len(ways) + 1))
        for place, (first, *passed, last) in enumerate(ways):
            door = across[last] + spread * (place - (len(ways) - 1) / 2)
            tail, head = (sum(spans[first]) + extents[first][0]) / 2, (sum(spans[last]) - extents[last][0]) / 2
            stops = [(tail, across[first]), (spans[first][1], across[first])]
            stops += [(along, across[key]) for key in passed for along in spans[key]]
            stops += [(spans[last][0], door), (head, door)]
            points, codes = _line(stops)
            arrows.append(Path([on_page(*point) for point in points], codes))
    middles = {name: on_page(sum(spans[name]) / 2, across[name]) for name in parents}
    width, height = (breadth, end) if flow == "up" else (end, breadth)
    return Layout(middles, arrows, width, height)


def _layers(parents: Mapping[str, Sequence[str]]) -> tuple[list[list[Key]], list[list[Key]]]:
    """What stands in every layer, from end to end, and every edge as all that it joins and passes."""
    depth: dict[Key, int] = {}
    chains: list[list[Key]] = []
    for child, before in parents.items():
        depth[child] = max((depth[parent] + 1 for parent in before), default=0)
        for parent in before:
            passed = range(depth[parent] + 1, depth[child])
            depth |= {(parent, child, number): number for number in passed}
            chains.append([parent, *((parent, child, number) for number in passed), child])
    layers = [[key for key in depth if depth[key] == number] for number in range(max(depth.values()) + 1)]
    _untangle(layers, chains)
    return layers, chains


def _untangle(layers: Sequence[list[Key]], chains: Sequence[Sequence[Key]]) -> None:
    """Order each layer by the mean place of what its members are tied to in the layers beside it, a few times over."""
    ties: dict[Key, list[Key]] = {key: [] for layer in layers for key in layer}
    for chain in chains:
        for one, other in pairwise(chain):
            ties[one].append(other)
            ties[other].append(one)
    place: dict[Key, float] = {}
    for layer in [*layers] * 6:
        layer.sort(key=lambda key: fmean([place[tie] for tie in ties[key] if tie in place] or [place.get(key, 0.0)]))
        place |= {key: index - (len(layer) - 1) / 2 for index, key in enumerate(layer)}


def _line(stops: Sequence[Point]) -> tuple[list[Point], list[int]]:
    """Points and, as in a path, what they mean: straight past the layers, on a curve through the gaps between them."""
    points, codes = [stops[0]], [int(Path.MOVETO)]
    for leg, ((start, before), (end, after)) in enumerate(pairwise(stops)):
        if leg % 2:
            points += [((start + end) / 2, before), ((start + end) / 2, after), (end, after)]
            codes += [int(Path.CURVE4)] * 3
        elif not math.isclose(start, end):
            points.append((end, after))
            codes.append(int(Path.LINETO))
    return points, codes
