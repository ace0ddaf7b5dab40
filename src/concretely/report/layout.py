"""Layered layout of a graph: the positions of nodes, and the paths of the arrows between them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal

from matplotlib.path import Path

Point = tuple[float, float]
"""A position or a size in inches."""

GAP = 0.36
"""The distance between nodes, in inches."""

Flow = Literal["up", "right", "left"]
"""The direction of arrows."""

Key = str | tuple[str, str, int]
"""An entry of a layer: the name of a node or, for an edge that passes the layer, its two ends and the layer number."""


@dataclass(frozen=True)
class Layout:
    """The centres of nodes and the paths of arrows, in inches from the lower left corner."""

    middles: Mapping[str, Point]
    arrows: Sequence[Path]
    width: float
    height: float


def layout(parents: Mapping[str, Sequence[str]], sizes: Mapping[str, Point], *, flow: Flow) -> Layout:
    """Put each node one layer after its last parent, and route edges between the nodes of the layers that they pass.

    >>> drawn = layout({"a": [], "b": ["a"]}, {"a": (1.0, 1.0), "b": (1.0, 2.0)}, flow="right")
    >>> drawn.middles["a"], drawn.height
    ((0.5, 1.0), 2.0)
    """
    layers, chains = _layers(parents)
    # sizes along and across the flow; an edge that passes a layer takes a place in it, as a node does
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
    """Return the entries of every layer in order, and every edge as the chain of entries that it connects.

    To untangle edges, layers are sorted by the mean position of the neighbours of an entry in the adjacent layers.
    """
    depth: dict[Key, int] = {}
    chains: list[list[Key]] = []
    for child, before in parents.items():
        depth[child] = max((depth[parent] + 1 for parent in before), default=0)
        for parent in before:
            passed = range(depth[parent] + 1, depth[child])
            depth |= {(parent, child, number): number for number in passed}
            chains.append([parent, *((parent, child, number) for number in passed), child])
    layers = [[key for key in depth if depth[key] == number] for number in range(max(depth.values()) + 1)]
    ties: dict[Key, list[Key]] = {key: [] for key in depth}
    for one, other in (pair for chain in chains for pair in pairwise(chain)):
        ties[one].append(other)
        ties[other].append(one)
    place: dict[Key, float] = {}
    for layer in layers * 6:  # repeat the sorting a few times
        layer.sort(key=lambda key: fmean([place[tie] for tie in ties[key] if tie in place] or [place.get(key, 0.0)]))
        place |= {key: index - (len(layer) - 1) / 2 for index, key in enumerate(layer)}
    return layers, chains


def _line(stops: Sequence[Point]) -> tuple[list[Point], list[int]]:
    """Return the points and codes of a path: straight within layers, curved in the gaps between them."""
    points, codes = [stops[0]], [int(Path.MOVETO)]
    for leg, ((start, before), (end, after)) in enumerate(pairwise(stops)):
        if leg % 2:
            points += [((start + end) / 2, before), ((start + end) / 2, after), (end, after)]
            codes += [int(Path.CURVE4)] * 3
        elif not math.isclose(start, end):
            points.append((end, after))
            codes.append(int(Path.LINETO))
    return points, codes
