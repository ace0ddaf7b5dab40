"""A layout keeps nodes apart and in the order of the arrows, and untangles what can be."""

from itertools import combinations

import pytest

from concretely.report.layout import GAP, Flow, layout

GRAPHS = {
    "chain": {"a": [], "b": ["a"], "c": ["b"]},
    "diamond": {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]},
    "detour": {"a": [], "b": ["a"], "c": ["b"], "d": ["a", "c"]},
    "crossed": {"a": [], "b": [], "c": [], "d": ["c"], "e": ["b"], "f": ["a"]},
    "apart": {"a": [], "b": []},
}
SIZES = {"a": (1.0, 0.5), "b": (0.7, 1.2), "c": (1.0, 1.0), "d": (0.3, 0.4), "e": (2.0, 0.6), "f": (0.9, 0.9)}


@pytest.mark.parametrize("flow", ["up", "right", "left"])
@pytest.mark.parametrize("name", GRAPHS)
def test_nodes_keep_apart_and_on_the_page_and_every_arrow_points_along_the_flow(name: str, flow: Flow) -> None:
    parents = GRAPHS[name]
    drawn = layout(parents, {node: SIZES[node] for node in parents}, flow=flow)
    for one, other in combinations(parents, 2):
        gaps = [
            abs(drawn.middles[one][k] - drawn.middles[other][k]) - (SIZES[one][k] + SIZES[other][k]) / 2 for k in (0, 1)
        ]
        assert max(gaps) > GAP - 1e-9
    for node, middle in drawn.middles.items():
        for place, size, length in zip(middle, SIZES[node], (drawn.width, drawn.height), strict=True):
            assert size / 2 - 1e-9 <= place <= length - size / 2 + 1e-9
    assert len(drawn.arrows) == sum(map(len, parents.values()))
    for path in drawn.arrows:
        tail, head = path.vertices[0], path.vertices[-1]
        assert {"up": head[1] > tail[1], "right": head[0] > tail[0], "left": head[0] < tail[0]}[flow]


def test_chains_side_by_side_do_not_cross() -> None:
    parents = GRAPHS["crossed"]
    middles = layout(parents, dict.fromkeys(parents, (1.0, 1.0)), flow="up").middles
    for child, above in parents.items():
        assert all(middles[child][0] == middles[parent][0] for parent in above)
