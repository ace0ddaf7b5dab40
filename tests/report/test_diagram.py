"""A drawn graph is the graph that ran: its nodes, its arrows, and the values."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from torch import Tensor
from torch.distributions import Distribution, Normal

from concretely import Trace, density, mode, parse, run
from concretely.evaluation.illustration import network_traces, sampling_traces
from concretely.report import diagram, style
from concretely.report.anatomy import GROUND
from concretely.report.dot import to_dot
from concretely.report.portrait import CELL

from .example import MASSES, ODD, TRACES, detour, diamond, diverged, variable

Box = tuple[float, float, float, float]
"""The left, lower, right and upper edges."""


def patches(drawn: Figure, kind: type) -> list:
    """The shapes of a kind in the only axes of a figure."""
    (axes,) = drawn.axes
    return [patch for patch in axes.patches if type(patch) is kind]


def contains(box: Box, x: float, y: float, *, margin: float = 0.0) -> bool:
    return box[0] + margin < x < box[2] - margin and box[1] + margin < y < box[3] - margin


def nodes(drawn: Figure) -> dict[str, Box]:
    """The boxes of a figure that are in no other, by the highest text in them."""
    found = [
        (box.get_x(), box.get_y(), box.get_x() + box.get_width(), box.get_y() + box.get_height())
        for box in patches(drawn, FancyBboxPatch)
    ]
    outer = [a for a in found if not any(contains(b, *a[:2]) and contains(b, *a[2:]) for b in found)]
    (axes,) = drawn.axes
    named = {}
    for box in outer:
        inside = [text for text in axes.texts if text.get_text() and contains(box, *text.get_position())]
        named[max(inside, key=lambda text: text.get_position()[1]).get_text()] = box
    assert len(named) == len(outer)
    return named


def arrows(drawn: Figure) -> list[Tensor]:
    """Points along each arrow of a figure, from its tail to its head."""
    lines = (arrow.get_path().to_polygons(closed_only=False) for arrow in patches(drawn, FancyArrowPatch))
    return [torch.as_tensor(line[0]) for line in lines]


def brightness(shapes: list) -> list[float]:
    return [to_rgb(shape.get_facecolor())[0] for shape in shapes]


def state(temperature: float) -> list[float]:
    """The example of the paper's figure."""
    drawn = diagram.side_by_side(sampling_traces([2.0, 0.5, 1.0], [temperature]))
    return brightness(patches(drawn, Circle if temperature else FancyBboxPatch)[-3:])


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_the_figure_of_the_paper_has_every_logit_noise_and_sum(temperature: float) -> None:
    drawn = diagram.side_by_side(sampling_traces([2.0, 0.5, 1.0], [temperature]))
    (axes,) = drawn.axes
    texts = Counter(text.get_text() for text in axes.texts)
    assert all(texts[f"{letter}{k}"] == 1 for letter in ("log α", "G") for k in "₁₂₃")
    assert texts["+"] == 3
    assert texts["softmax( · / λ )" if temperature else "argmax"] == 1
    assert texts[f"λ = {'1/2' if temperature else '0'}"] == 1
    circles, rectangles = patches(drawn, Circle), patches(drawn, FancyBboxPatch)
    assert (len(circles), len(rectangles)) == ((12, 1) if temperature else (9, 4))
    assert sum(to_hex(circle.get_facecolor()) == style.PALE for circle in circles) == 3
    assert len(arrows(drawn)) == 6 + 3 + 1


def test_the_example_has_the_same_noise_at_every_temperature() -> None:
    hard = state(0.0)
    assert sorted(hard) == [0, 0, 1]
    for temperature in (0.5, 1.0, 3.0):
        soft = torch.tensor(state(temperature), dtype=torch.float64)
        assert float(soft.sum()) == pytest.approx(1)
        assert int(soft.argmax()) == hard.index(1)
        noisy = temperature * soft.log().diff()
        torch.testing.assert_close(noisy, torch.tensor(state(2.0), dtype=torch.float64).log().diff() * 2)


def test_a_single_alpha_is_a_binary_variable() -> None:
    (axes,) = diagram.side_by_side(sampling_traces([2.0], [0.0, 0.5])).axes
    texts = {text.get_text() for text in axes.texts}
    assert {"log α", "L", "step", "sigmoid( · / λ )"} <= texts


@pytest.mark.parametrize("meaning", [mode.Discrete(), mode.Relaxed(0.5), mode.Surrogate(0.5)])
def test_a_small_graph_shows_states_as_squares_and_relaxed_ones_as_circles(meaning: mode.Mode) -> None:
    trace = run(diamond, mode=meaning)
    drawn = diagram.picture(trace)
    relaxed = isinstance(meaning, mode.Relaxed)
    kind, side = (Circle, "radius") if relaxed else (FancyBboxPatch, "_width")
    length = CELL / 2 if relaxed else CELL
    shades = brightness([shape for shape in patches(drawn, kind) if getattr(shape, side) == length])
    assert shades == pytest.approx(
        torch.cat([value.detach().flatten() for value in (each.value for each in trace.values())]).tolist()
    )


@pytest.mark.parametrize("law", [lambda: Normal(0.0, 1.0), MASSES["Bernoulli"]])
def test_arrows_end_before_the_ground_of_what_was_observed(law: Callable[[], Distribution]) -> None:
    drawn = diagram.picture(variable(law, observed=torch.tensor(1.0)))
    (ground,) = (box for box in patches(drawn, FancyBboxPatch) if to_hex(box.get_facecolor()) == GROUND)
    (line,) = arrows(drawn)
    assert float(line[-1, 1]) <= ground.get_y() + 1e-9


def test_a_large_graph_shows_every_node_as_a_box_with_its_state_and_shape() -> None:
    trace = run(detour, torch.randn(4, 8), mode=mode.Discrete(), samples=2)
    drawn = diagram.picture(trace)
    (axes,) = drawn.axes
    assert set(nodes(drawn)) == set(trace)
    assert {"80", "7", "14", "3 × 2", "6"} <= {text.get_text() for text in axes.texts}
    shown = {name: image.get_array().compressed() for name, image in zip(trace, axes.images, strict=True)}
    assert shown["a"].tolist() == trace["a"].value[0, 0].tolist()
    assert shown["b"].tolist() == trace["b"].value[0, 0].tolist()
    assert shown["d"].tolist() == ((1 + trace["d"].value[0, 0]) / 2).flatten().tolist()
    assert shown["x"].tolist() == trace["x"].value[0].tolist()
    ground = {to_hex(box.get_facecolor()) for box in patches(drawn, FancyBboxPatch) if box.get_facecolor()[3]}
    assert ground == {style.PALE, GROUND}


@pytest.mark.parametrize("trace", [TRACES["diamond"], TRACES["chain"], TRACES["detour"]])
def test_arrows_between_nodes_join_parents_to_children_and_pass_no_node(trace: Callable[[], Trace]) -> None:
    ran = trace()
    drawn = diagram.picture(ran)
    places = nodes(drawn)
    names = dict(zip(places, ran, strict=True))  # drawn in the order of the program
    found = set()
    for line in arrows(drawn):
        if any(contains(box, *line[len(line) // 2].tolist()) for box in places.values()):
            continue  # within a node
        ends = []
        for end in (line[0], line[-1]):
            distance = {
                name: max(box[0] - end[0], end[0] - box[2], box[1] - end[1], end[1] - box[3])
                for name, box in places.items()
            }
            ends.append(min(distance, key=distance.__getitem__))
        found.add((names[ends[0]], names[ends[1]]))
        assert not any(contains(box, *point, margin=0.03) for box in places.values() for point in line.tolist())
    assert found == {(parent, child) for child, parents in ran.parents.items() for parent in parents}


@pytest.mark.parametrize(
    "draw",
    [
        *(lambda trace=trace: diagram.picture(trace()) for trace in TRACES.values()),
        lambda: diagram.side_by_side(sampling_traces([2.0, 0.5, 1.0], [0.0, 0.5, 1.0])),
        lambda: diagram.side_by_side(sampling_traces([1.0] * 6, [0.0, 0.5])),
        lambda: diagram.side_by_side(network_traces(parse("20H-20H:4~30V"), [0.0, 2 / 3])),
        lambda: diagram.side_by_side(network_traces(parse("12V-20H-30V"), [0.5])),
    ],
)
def test_nodes_and_texts_keep_apart_and_on_the_page(draw: Callable[[], Figure]) -> None:
    drawn = draw()
    FigureCanvasAgg(drawn).draw()
    (axes,) = drawn.axes
    extents = [text.get_window_extent() for text in axes.texts if text.get_text()]
    extents += [image.get_window_extent() for image in axes.images]
    for extent in extents:
        assert all(map(drawn.bbox.containsx, extent.intervalx))
        assert all(map(drawn.bbox.containsy, extent.intervaly))
    for one, other in combinations(extents, 2):
        assert not one.overlaps(other)


def test_both_networks_of_a_model_show_the_same_state_and_point_opposite_ways() -> None:
    (axes,) = (drawn := diagram.side_by_side(network_traces(parse("20H-10H~30V"), [0.5]))).axes
    (h2, h1, x), (x_q, h1_q, h2_q) = ([image.get_array() for image in axes.images[k : k + 3]] for k in (0, 3))
    for above, below in ((h2, h2_q), (h1, h1_q), (x, x_q)):
        assert (above == below).all()
    assert set(x.compressed().tolist()) <= {0, 1}
    assert all(0 < shade < 1 for shade in h1.compressed().tolist())
    rightwards = [bool(line[0, 0] < line[-1, 0]) for line in arrows(drawn)]
    assert rightwards == [True, True, False, False]


def test_a_prediction_starts_from_its_context() -> None:
    drawn = diagram.side_by_side(network_traces(parse("12V-20H-30V"), [0.0]))
    left = {name: box[0] for name, box in nodes(drawn).items()}
    assert sorted(left, key=left.__getitem__) == ["context", "h1", "x"]
    assert len(arrows(drawn)) == 2


def test_drawing_changes_neither_the_trace_nor_the_global_randomness() -> None:
    model = density("20H-10H~30V").eval()
    _, q = model.trace(model.sample(3), mode=mode.Relaxed(0.5), samples=2)
    before, seed = (
        {name: value.clone() for name, value in {name: each.value for name, each in q.items()}.items()},
        torch.get_rng_state(),
    )
    diagram.picture(q)
    to_dot(q)
    diagram.side_by_side(sampling_traces([2.0, 1.0], [0.0, 1.0]))
    assert torch.equal(seed, torch.get_rng_state())
    assert all(
        torch.equal(before[name], value) for name, value in {name: each.value for name, each in q.items()}.items()
    )


@pytest.mark.parametrize(
    "draw",
    [
        lambda: diagram.side_by_side(sampling_traces([2.0, 0.5, 1.0], [0.0, 0.5])),
        lambda: diagram.side_by_side(network_traces(parse("20H~30V"), [0.0, 0.5])),
        lambda: diagram.picture(run(detour, torch.ones(2, 8), mode=mode.Discrete())),
    ],
)
def test_the_same_graph_is_saved_as_the_same_bytes(draw: Callable[[], Figure], tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        torch.manual_seed(1)
        files.append(style.save_figure(draw(), tmp_path / name))
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()
    ElementTree.parse(files[0][1])


def test_what_cannot_be_drawn_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"^alpha must be one to six positive numbers, got 7$"):
        diagram.side_by_side(sampling_traces([1.0] * 7, [0.0]))
    with pytest.raises(ValueError, match=r"^temperatures must hold at least one number, got none$"):
        diagram.side_by_side(sampling_traces([1.0], []))
    with pytest.raises(ValueError, match=r"^a run must have a node to be drawn, got none$"):
        diagram.picture(run(lambda draw: None, mode=mode.Discrete()))
    empty = run(detour, torch.zeros(0, 8), mode=mode.Discrete())
    with pytest.raises(ValueError, match=r"^a node must have a value to be drawn, got shape \(0, 80\) at node 'a'$"):
        diagram.picture(empty)


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_any_name_is_drawn(name: str, tmp_path: Path) -> None:
    trace = run(lambda draw: draw(name, MASSES["Bernoulli"]()), mode=mode.Discrete())
    _, svg = style.save_figure(diagram.picture(trace), tmp_path / "picture")
    ElementTree.parse(svg)


@pytest.mark.parametrize("units", [1, 40])
def test_a_run_that_has_diverged_is_drawn(units: int, tmp_path: Path) -> None:
    style.save_figure(diagram.picture(diverged(units)), tmp_path / "picture")
