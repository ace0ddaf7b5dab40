"""What is shown of a model is what it says: pixel for pixel its probabilities, and the data beside them."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import AxesImage, imread
from torch import Generator, Tensor
from torch.distributions import Normal

from concretely import Bernoulli, Draw, Model, density, mode, prediction, run
from concretely.experiment.picture import Picture, reconstruct_pixels, sample_pixels
from concretely.report import image
from concretely.report.style import DPI
from concretely.report.style import save_figure as save


def seeded() -> Generator:
    return Generator().manual_seed(5)


def bits(points: int, width: int) -> Tensor:
    return torch.randint(2, (points, width), generator=seeded())


def samples(model: Model, *, rows: int, columns: int, generator: Generator | None = None) -> Figure:
    made = sample_pixels(model, rows * columns, generator=generator)
    return image.draw_picture(Picture(made.unflatten(0, (rows, columns))))


def reconstructions(model: Model, x: Tensor, *, generator: Generator | None = None) -> Figure:
    return image.draw_picture(Picture(reconstruct_pixels(model, x, generator=generator).unsqueeze(0), x))


def completions(model: Model, context: Tensor, x: Tensor, *, samples: int, generator: Generator) -> Figure:
    made = sample_pixels(model, samples, context, generator=generator)
    return image.draw_picture(Picture(made.transpose(0, 1), x, context))


def shown(figure: Figure, shades: str) -> list[np.ndarray]:
    """The images in some shades, in the order in which they are read."""
    return [np.asarray(found.get_array()) for found in images(figure) if found.get_cmap().name == shades]


def images(figure: Figure) -> list[AxesImage]:
    (axes,) = figure.axes
    return list(axes.images)


def place(drawn: AxesImage) -> tuple[float, float]:
    """The left upper corner of an image."""
    left, _, _, top = drawn.get_extent()
    return left, top


def test_samples_are_the_pixel_probabilities_given_latents_from_the_prior() -> None:
    model = density("6H-16V")
    drawn = run(model.p, mode=mode.Discrete(), samples=6, generator=seeded())["x"].distribution.probs.unflatten(
        0, (3, 2)
    )
    figure = samples(model, rows=2, columns=3, generator=seeded())
    np.testing.assert_allclose(shown(figure, image.MODEL), drawn.detach().view(6, 4, 4))
    assert not shown(figure, image.DATA)


def test_each_reconstruction_is_below_its_data_and_is_given_latents_from_the_posterior() -> None:
    model, x = density("6H-16V"), bits(image.BROAD + 2, 16)
    p, _ = model.trace(x, mode=mode.Discrete(), generator=seeded())
    figure = reconstructions(model, x, generator=seeded())
    made = p["x"].distribution.probs.detach().view(-1, 4, 4)
    np.testing.assert_array_equal(shown(figure, image.DATA), x.view(-1, 4, 4))
    np.testing.assert_allclose(shown(figure, image.MODEL), made)
    corners = {
        shades: [place(found) for found in images(figure) if found.get_cmap().name == shades]
        for shades in (image.DATA, image.MODEL)
    }
    pitch = 4 * round(image.TILE / 4) + image.GAP
    assert corners[image.MODEL] == [(left, top + pitch) for left, top in corners[image.DATA]]
    assert len(set(corners[image.DATA] + corners[image.MODEL])) == 2 * len(x)


def test_completions_go_on_below_what_is_given() -> None:
    model, whole = prediction("6V-5H-3V"), bits(2, 9)
    given, x = whole.split([6, 3], -1)
    drawn = run(model.p, given, mode=mode.Discrete(), samples=3, generator=seeded())["x"].distribution.probs.unflatten(
        0, (3, 2)
    )
    figure = completions(model, given, x, samples=3, generator=seeded())
    np.testing.assert_allclose(shown(figure, image.MODEL), drawn.detach().transpose(0, 1).reshape(6, 1, 3))
    upper = [found for found in images(figure) if found.get_array().shape == (2, 3)]
    lower = [found for found in images(figure) if found.get_array().shape == (1, 3)]
    assert len(upper) == 2 * 5
    assert len(lower) == 2 * 4
    np.testing.assert_array_equal(
        [found.get_array() for found in upper], given.view(2, 1, 2, 3).repeat(1, 5, 1, 1).flatten(0, 1)
    )
    np.testing.assert_array_equal([found.get_array() for found in lower[::4]], x.view(2, 1, 3))
    side = round(image.TILE / 3)
    below = {(left, top + 2 * side) for left, top in map(place, upper)}
    assert {place(found) for found in lower} < below


@pytest.mark.parametrize("widths", [(6, 4), (5, 4)])
def test_what_makes_no_square_or_no_whole_rows_is_shown_apart(widths: tuple[int, int]) -> None:
    given, x = bits(2, sum(widths)).split(widths, -1)
    figure = completions(prediction(f"{widths[0]}V-5H-{widths[1]}V"), given, x, samples=3, generator=seeded())
    assert len({place(found) for found in images(figure)}) == len(images(figure)) == 2 * 5


@pytest.mark.parametrize("width", [*range(1, 30), 64, 392, 784])
def test_pixels_are_the_bits_in_rows_and_nearly_a_square(width: int) -> None:
    x = bits(3, width)
    found = image.pixels(x)
    rows, columns = found.shape[1:]
    assert columns == round(math.sqrt(width))
    assert 0 <= rows * columns - width < columns
    assert abs(rows - columns) <= 1
    torch.testing.assert_close(found.flatten(1)[:, :width], x.float(), rtol=0, atol=0)
    assert found.flatten(1)[:, width:].isnan().all()
    if math.isqrt(width) ** 2 == width:
        assert rows == columns


@pytest.mark.parametrize(
    ("shape", "shown_as"),
    [
        ((4, 6), lambda x: x),
        ((1, 4, 6), lambda x: x[:, 0]),
        ((4, 6, 1), lambda x: x[..., 0]),
        ((3, 4, 6), lambda x: x.movedim(1, -1)),
        ((4, 6, 3), lambda x: x),
        ((2, 4, 6), lambda x: torch.cat([x[:, 0], x[:, 1]], -1)),
        ((6,), lambda x: image.pixels(x)),
        ((1, 6), lambda x: image.pixels(x[:, 0])),
    ],
)
def test_images_of_ones_own_have_their_shape_and_colors(
    shape: tuple[int, ...], shown_as: Callable[[Tensor], Tensor]
) -> None:
    made, x = torch.rand(3, *shape, generator=seeded()), bits(3, math.prod(shape)).view(3, *shape).float()
    figure = image.draw_picture(Picture(made.flatten(1).unsqueeze(0), x.flatten(1), shape=shape))
    drawn = [torch.as_tensor(np.asarray(found.get_array())) for found in images(figure)]
    for found, expected in zip(drawn, [*shown_as(x), *shown_as(made)], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: samples(density("3H-7V"), rows=2, columns=3, generator=seeded()),
        lambda: samples(density("3H-900V"), rows=1, columns=1, generator=seeded()),
        lambda: reconstructions(density("3H-9V"), bits(1, 9), generator=seeded()),
        lambda: completions(prediction("6V-3H-9V"), bits(2, 6), bits(2, 9), samples=1, generator=seeded()),
    ],
)
def test_images_are_on_the_page_and_apart_and_a_pixel_is_a_whole_number_of_dots(draw: Callable[[], Figure]) -> None:
    figure = draw()
    width, height = figure.get_size_inches() * DPI
    boxes = []
    for found in images(figure):
        left, right, bottom, top = found.get_extent()
        assert 0 < left < right < width
        assert 0 < top < bottom < height
        rows, columns = found.get_array().shape
        assert (right - left) % columns == (bottom - top) % rows == 0
        assert (right - left) / columns == (bottom - top) / rows
        boxes.append((left, right, top, bottom))
    for one in boxes:
        others = [other for other in boxes if other != one]
        assert not any(a < d and c < b and e < h and g < f for a, b, e, f in [one] for c, d, g, h in others)
    (note,) = figure.axes[0].texts
    box = note.get_window_extent()
    scale = DPI / figure.dpi
    assert 0 < box.x0 * scale < box.x1 * scale < width
    assert box.y0 * scale > 0
    assert box.y1 * scale < height - max(bottom for *_, bottom in boxes)


def test_the_first_pixel_is_at_the_upper_left_and_a_one_is_dark(tmp_path: Path) -> None:
    x = torch.tensor([[1, 1, 1, 0, 0, 0, 1, 0, 0]])
    png, _ = save(reconstructions(density("3H-9V"), x), tmp_path / "picture")
    dots = imread(png)[..., :3].mean(-1)
    side = round(image.TILE / 3)
    middles = [image.MARGIN + side // 2 + side * place for place in range(3)]
    assert (dots[np.ix_(middles, middles)] < 0.5).tolist() == x.view(3, 3).bool().tolist()


def test_the_same_seed_is_saved_as_the_same_bytes_and_another_is_not(tmp_path: Path) -> None:
    model = density("3H-9V")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        save(samples(model, rows=2, columns=2, generator=Generator().manual_seed(seed)), tmp_path / name)
    for kind in ("png", "svg"):
        first, second, other = ((tmp_path / f"{name}.{kind}").read_bytes() for name in "abc")
        assert first == second
        assert first != other


def test_looking_teaches_a_model_nothing() -> None:
    model = density("3H-3H-9V").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    samples(model, rows=1, columns=2)
    reconstructions(model, bits(2, 9))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_what_cannot_be_shown_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"^samples must be a positive whole number, got 0$"):
        sample_pixels(density("3H-9V"), 0)
    with pytest.raises(ValueError, match=r"^samples must be a positive whole number, got 0$"):
        completions(prediction("3V-3H-6V"), bits(1, 3), bits(1, 6), samples=0, generator=seeded())
    with pytest.raises(ValueError, match=r"^x must have at least one data point, got shape \(0, 9\)$"):
        reconstructions(density("3H-9V"), bits(0, 9))
    with pytest.raises(
        ValueError, match=r"^a model must have q to reconstruct data, got none: draw completions instead$"
    ):
        reconstructions(prediction("3V-3H-6V"), bits(1, 6))

    def p(draw: Draw, x: Tensor | None = None) -> Tensor:
        z = draw("z", Bernoulli(logits=torch.zeros(9)))
        return draw("x", Normal(z, 1.0), observed=x)

    with pytest.raises(ValueError, match=r"^p must end with bits to be shown as an image, got Normal at node 'x'$"):
        sample_pixels(Model(p), 2)
