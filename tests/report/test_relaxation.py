"""What is drawn is what the paper defines, and what is written is whole."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from scipy.special import expit
from scipy.stats import logistic

from concretely.evaluation import illustration
from concretely.report import relaxation, style

ALPHA = [2.0, 0.5, 1.0]


def density_on_simplex(point: np.ndarray, temperature: float) -> np.ndarray:
    """Definition 1, in plain arithmetic."""
    alpha = np.array(ALPHA)
    product = np.prod(alpha * point ** (-temperature - 1), axis=-1)
    return 2 * temperature**2 * product / (alpha * point**-temperature).sum(-1) ** 3


@cache
def shading(temperature: float) -> PolyCollection:
    """The tiles of one drawn triangle."""
    (axes,) = relaxation.simplex(ALPHA, [temperature]).axes
    (tiles,) = axes.collections
    return tiles


def centres(tiles: PolyCollection) -> np.ndarray:
    """The points of the simplex in the middle of drawn tiles."""
    middle = np.stack([path.vertices[:3].mean(0) for path in tiles.get_paths()])
    corners = np.vstack([np.array(relaxation.VERTICES).T, np.ones(3)])
    return np.linalg.solve(corners, np.column_stack([middle, np.ones(len(middle))]).T).T


def areas(plot: Axes) -> dict[str, float]:
    """The area of each filled shape by its colour."""
    shapes = {}
    for shape in plot.collections:
        x, y = shape.get_paths()[0].vertices.T
        shapes[to_hex(shape.get_facecolor()[0])] = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
    return shapes


def test_the_tiles_are_equal_and_cover_the_simplex() -> None:
    tiles = illustration.tiles(7)
    assert len(tiles) == 49
    assert tiles.min() == 0
    np.testing.assert_allclose(tiles.sum(-1), 1, rtol=1e-14)
    np.testing.assert_allclose(tiles.det().abs(), 1 / 49, rtol=1e-12)
    assert len({tuple(centre) for centre in tiles.mean(1).mul(21).round().tolist()}) == 49


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_each_tile_shows_the_density_at_its_centre(temperature: float) -> None:
    tiles = shading(temperature)
    np.testing.assert_allclose(tiles.get_array(), density_on_simplex(centres(tiles), temperature), rtol=1e-8)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_drawn_density_integrates_to_one(temperature: float) -> None:
    assert shading(temperature).get_array().mean() / 2 == pytest.approx(1, abs=4e-3)


def test_at_low_temperature_the_mass_missing_from_the_tiles_is_what_lies_in_the_corners() -> None:
    # within a distance r of a vertex lies a mass of order r^λ, so that the error falls by 2^λ when the side doubles
    coarse, fine = (density_on_simplex(illustration.tiles(side).mean(1).numpy(), 0.5).mean() / 2 for side in (200, 400))
    assert (2**0.5 * fine - coarse) / (2**0.5 - 1) == pytest.approx(1, abs=2e-3)
    assert shading(0.5).get_array().mean() / 2 == pytest.approx(coarse, rel=1e-10)


def test_at_temperature_zero_the_areas_of_the_circles_are_the_masses() -> None:
    (axes,) = relaxation.simplex(ALPHA, [0.0]).axes
    circles = [patch for patch in axes.patches if isinstance(patch, Circle)]
    area = np.array([circle.radius**2 for circle in circles])
    np.testing.assert_allclose(area / area.sum(), np.array(ALPHA) / sum(ALPHA), rtol=1e-12)
    np.testing.assert_array_equal([circle.center for circle in circles], relaxation.VERTICES)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_triangle_is_equilateral_and_its_vertices_bear_their_names(temperature: float) -> None:
    corners = np.array(relaxation.VERTICES)
    np.testing.assert_allclose(np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1), 1)
    (axes,) = relaxation.simplex(ALPHA, [temperature]).axes
    assert axes.get_aspect() == 1
    for name, corner in zip(("(1, 0, 0)", "(0, 1, 0)", "(0, 0, 1)"), corners, strict=True):
        nearest = min(axes.texts, key=lambda text: np.linalg.norm(text.get_position() - corner))
        assert nearest.get_text() == name


@pytest.mark.parametrize(("temperature", "clipped"), [(0.5, 0.05), (1.0, 0.05), (2.0, 0.0), (5.0, 0.0)])
def test_only_an_unbounded_density_is_clipped_and_only_on_a_twentieth(temperature: float, clipped: float) -> None:
    low, high = shading(temperature).get_clim()
    assert low == 0
    assert (shading(temperature).get_array() > high).mean() == pytest.approx(clipped, abs=1e-4)


@pytest.mark.parametrize("alpha", [2.0, 0.1])
def test_the_input_of_the_curve_is_logistic_and_splits_at_zero_as_the_masses_do(alpha: float) -> None:
    (axes,) = relaxation.binary(alpha, [0.5]).axes
    below = axes.child_axes[1]
    for shape in below.collections:
        x, y = shape.get_paths()[0].vertices.T
        np.testing.assert_allclose(y[y > 0], logistic.pdf(x[y > 0], loc=np.log(alpha)), rtol=1e-9)
    shapes = areas(below)
    assert shapes[style.STRONG] == pytest.approx(alpha / (1 + alpha), abs=5e-3)  # the tails reach beyond the page
    assert shapes[style.PALE] == pytest.approx(1 / (1 + alpha), abs=5e-3)


@pytest.mark.parametrize("alpha", [2.0, 0.1])
@pytest.mark.parametrize("temperature", [1.0, 1.5, 2.0])
def test_the_output_of_the_curve_splits_at_a_half_as_the_masses_do(alpha: float, temperature: float) -> None:
    (axes,) = relaxation.binary(alpha, [temperature]).axes
    shapes = areas(axes.child_axes[2])
    # the first and last 1/400 of the interval are not drawn
    assert shapes[style.STRONG] == pytest.approx(alpha / (1 + alpha), abs=0.03)
    assert sum(shapes.values()) == pytest.approx(1, abs=0.03)


def test_at_temperature_zero_the_bars_are_the_masses() -> None:
    (axes,) = relaxation.binary(2.0, [0.0]).axes
    bars = axes.child_axes[2].patches
    assert [bar.get_width() for bar in bars] == pytest.approx([1 / 3, 2 / 3])
    assert [bar.get_y() + bar.get_height() / 2 for bar in bars] == pytest.approx([0, 1])


@pytest.mark.parametrize("temperature", [0.0, 0.5, 2.0])
def test_the_curve_is_the_sigmoid_or_the_unit_step(temperature: float) -> None:
    (axes,) = relaxation.binary(2.0, [temperature]).axes
    x, y = axes.child_axes[0].lines[0].get_data()
    np.testing.assert_allclose(y, expit(x / temperature) if temperature else x > 0, rtol=1e-9)


def test_captions_are_written_as_in_the_paper() -> None:
    temperatures = [0.0, 0.5, 1.0, 2 / 3, 0.05, 2.5, 30.5]
    captions = [axes.get_xlabel() for axes in relaxation.binary(1.0, temperatures).axes]
    assert captions == [f"λ = {text}" for text in ("0", "1/2", "1", "2/3", "0.05", "5/2", "30.5")]


def test_what_cannot_be_drawn_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"^alpha must be three positive numbers, got 2$"):
        relaxation.simplex([1.0, 1.0], [0.0])
    with pytest.raises(ValueError, match=r"^temperatures must hold at least one number, got none$"):
        relaxation.binary(1.0, [])


@pytest.mark.parametrize(
    "draw", [lambda: relaxation.simplex(ALPHA, [0.0, 0.5]), lambda: relaxation.binary(2.0, [0.0, 2.0])]
)
def test_the_same_figure_is_saved_as_the_same_bytes(draw: Callable[[], Figure], tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        files.append(style.save_figure(draw(), tmp_path / name / "picture"))
    assert [file.name for file in files[0]] == ["picture.png", "picture.svg"]
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert files[0][0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in files[0][1].read_bytes()
    assert b"dc:date" not in files[0][1].read_bytes()
    assert sorted(tmp_path.glob("*/*")) == sorted(files[0] + files[1])


def test_a_failed_save_leaves_the_older_files_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in ("picture.png", "picture.svg"):
        (tmp_path / file).write_text("older")
    whole = Path.write_bytes

    def fail_on_svg(self: Path, content: bytes) -> None:
        whole(self, content)
        if self.suffix == ".svg":
            raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", fail_on_svg)
    with pytest.raises(OSError, match="no space left"):
        style.save_figure(relaxation.binary(2.0, [0.0]), tmp_path / "picture")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "picture.png": "older",
        "picture.svg": "older",
    }
