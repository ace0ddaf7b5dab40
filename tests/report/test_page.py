"""A page says all that a record says, needs nothing but itself, and opens in a browser."""

import json
import re
import shutil
import subprocess
import tomllib
from base64 import b64decode
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from concretely import density
from concretely.experiment.picture import Picture, sample_pixels
from concretely.report import image
from concretely.report.page import Image, curve_image, embed_figure, page

RECIPE = {
    "notation": "32H~64V",
    "data": "digits",
    "estimator": "concrete",
    "samples": 5,
    "temperature": 2 / 3,
    "lr": 3e-4,
    "weight_decay": 0.0,
    "validate": True,
    "remark": 'a "quoted" \\ line\nand <b>another</b> & so on',
}
RECORD = {
    "recipe": {**RECIPE, "prior_temperature": None},
    "commit": {"hash": "0123456789abcdef0123456789abcdef01234567", "dirty": True},
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "device": {"cpu": "AMD EPYC", "cores": 2, "gpu": "NVIDIA H200"},
    "seed": 1234,
    "metrics": {
        "test_nll": {"value": 98.76543, "standard_error": 0.5123, "samples": 1000},
        "test_bound": {"value": -1234.5678, "standard_error": 12.3},
        "speed": {"value": 0.25, "standard_error": 0.001, "meaning": "Seconds that a step takes."},
    },
    "seconds": 83.4,
}
ROWS = [{"step": 10 * step, "objective": -30.0 + step, "discrete": -31.0 + step, "valid": None} for step in range(1, 5)]
VOID = {"meta", "img", "br", "link", "hr"}


class Reader(HTMLParser):
    """The elements and words of a page, whose tags must be balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return "".join(self.words)


def pictures() -> list[Image]:
    samples = image.draw_picture(Picture(sample_pixels(density("3H-9V"), 6).view(2, 3, 9)))
    return [embed_figure("Samples & <more>", samples), embed_figure("Others", Figure(figsize=(2, 1)))]


@pytest.fixture(scope="module")
def text() -> str:
    return page(RECORD, curve_image(ROWS), pictures())


def test_the_page_says_all_that_the_record_says(text: str) -> None:
    found = Reader(text)
    cells = Counter(word for word in found.words)
    for key, value in RECIPE.items():
        assert cells[key] >= 1
        assert cells[str(value)] >= 1
    assert "prior_temperature" not in found.text
    for words in ("98.77 ± 0.51", "−1,235 ± 12", "0.2500 ± 0.0010", "test NLL", "1,000 samples", "Lower is better"):
        assert words in found.text
    assert "Seconds that a step takes." in found.text
    assert [data["value"] for data in found.all("data")] == ["98.76543", "-1234.5678", "0.25"]
    for words in (RECORD["commit"]["hash"] + ", with changes", "python 3.11.7, torch 2.13.0", "1234", "1 min 23 s"):
        assert words in found.text
    assert "NVIDIA H200 beside AMD EPYC, 2 cores" in found.text


def test_an_estimated_likelihood_has_its_effective_sample_size() -> None:
    metric = {"value": 20.0, "standard_error": 0.1, "samples": 2000, "effective_sample_size": 1124.2}
    found = Reader(page({"metrics": {"test_nll": metric}}))
    assert "2,000 samples of the latents. The mean effective sample size is 1,124." in found.text


def test_the_caption_of_the_curve_of_a_program_says_cost() -> None:
    caption = curve_image(ROWS, objective="cost").caption
    assert caption == "At step 40 the training cost is 26 and the discrete cost is 27."


def test_the_recipe_can_be_copied_and_made_again(text: str) -> None:
    blocks = re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)
    toml, command = (Reader(block).text for block in blocks)
    assert tomllib.loads(toml) == RECIPE
    assert command == "concretely train --recipe recipe.toml"


@pytest.mark.parametrize(
    ("changed", "command"),
    [
        ({}, "concretely train my_package.my_model:build --recipe recipe.toml"),
        ({"estimator": "RLOO()"}, None),
        ({"data": "data"}, None),
        ({"model": ""}, None),
        ({"model": "__main__:build"}, None),
    ],
)
def test_a_run_of_ones_own_is_repeated_by_a_command_only_if_all_has_names(
    changed: dict[str, str], command: str | None
) -> None:
    own = {"model": "my_package.my_model:build", "data": "my.npz", "estimator": "rloo", "arguments": {}}
    text = page({"recipe": {**own, **changed}})
    blocks = [Reader(block).text for block in re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)]
    assert blocks[1:] == ([] if command is None else [command])
    assert ("call <code>concretely.fit</code> with the same model" in text) == (command is None)


def test_the_title_is_notation_data_and_estimator(text: str) -> None:
    assert "<title>32H~64V on digits by concrete</title>" in text
    assert "<h1>32H~64V on digits by concrete</h1>" in text
    assert "<h1>A run</h1>" in page({})


def test_pictures_stand_in_the_page_with_their_captions_and_sizes(text: str) -> None:
    found = Reader(text)
    images = found.all("img")
    assert [picture["alt"] for picture in images][1:] == ["Samples & <more>", "Others"]
    assert "Samples & <more>" in found.words
    assert images[0]["alt"] == "At step 40 the training bound is −26 nats and the discrete bound is −27 nats."
    for picture in images:
        kind, _, content = str(picture["src"]).partition(",")
        assert kind == "data:image/png;base64"
        assert b64decode(content, validate=True).startswith(b"\x89PNG")
    assert (images[2]["width"], images[2]["height"]) == ("192", "96")


def test_the_page_needs_nothing_but_itself(text: str) -> None:
    assert not re.search(r"https?:|url\(|@import|<script|<link|<iframe|javascript:", text)
    for tag, attributes in Reader(text).elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in ("href", "srcset", "action", "data")
            assert name != "src" or str(value).startswith("data:"), tag


def test_the_page_has_a_language_a_scheme_and_an_outline(text: str) -> None:
    found = Reader(text)
    assert text.startswith("<!doctype html>")
    assert found.all("html") == [{"lang": "en"}]
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    headings = [tag for tag, _ in found.elements if re.fullmatch(r"h\d", tag)]
    assert headings == ["h1", *["h2"] * 5]
    names = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(set(names)) == len(names)
    assert {part["aria-labelledby"] for part in found.all("section")} == set(names)


EVIL = "<script>alert('\"&</td>')</script>"


def test_no_value_can_become_part_of_the_page() -> None:
    metric = {"value": 1.0, "standard_error": 0.1, "meaning": EVIL}
    record = {
        **RECORD,
        "recipe": {EVIL: EVIL, "data": EVIL},
        "metrics": {EVIL: metric},
        "versions": {EVIL: EVIL},
        "seed": EVIL,
    }
    text = page(record, None, [embed_figure(EVIL, Figure(figsize=(1, 1)))])
    found = Reader(text)
    assert not found.all("script")
    assert found.text.count(EVIL) >= 9
    assert found.all("img")[0]["alt"] == EVIL


@pytest.mark.usefixtures("unpictured")
@pytest.mark.parametrize("missing", [*RECORD, "rows", "pictures"])
def test_what_is_missing_is_left_out(missing: str) -> None:
    record: dict[str, Any] = {key: value for key, value in RECORD.items() if key != missing}
    curve, images = (None if missing == "rows" else curve_image(ROWS)), ([] if missing == "pictures" else pictures())
    whole, found = Reader(page(RECORD, curve_image(ROWS), pictures())), Reader(page(record, curve, images))
    assert len(found.text) < len(whole.text)
    sections = {"metrics": "Results", "rows": "Training", "pictures": "Pictures", "recipe": "Recipe"}
    headings = {name for name in [*sections.values(), "Environment"] if name in found.words}
    assert headings == {*sections.values(), "Environment"} - {sections.get(missing)}
    assert "None" not in found.text


def test_an_empty_record_is_a_page_without_sections() -> None:
    assert not Reader(page({})).all("section")
    assert not Reader(page({"metrics": {}, "recipe": {}})).all("section")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (98.76543, 0.5123, "98.77 ± 0.51"),
        (-98.76543, 0.0951, "−98.765 ± 0.095"),
        (98.76543, 12.0, "99 ± 12"),
        (98.76543, None, "98.77"),
        (98.76543, float("inf"), "98.77"),
        (98.76543, 0.0, "98.77"),
        (None, None, "unknown"),
        (float("nan"), 1.0, "unknown"),
        (float("inf"), float("inf"), "∞"),
        (float("-inf"), None, "−∞"),
    ],
)
def test_numbers_have_as_many_digits_as_are_known(value: float | None, error: float | None, text: str) -> None:
    found = Reader(page({"metrics": {"nll": {"value": value, "standard_error": error}}}))
    assert text in found.words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (119.7, "2 min 0 s"), (3599.8, "1 h 0 min"), (7300, "2 h 2 min")],
)
def test_time_is_written_as_one_would_say_it(seconds: float, text: str) -> None:
    assert text in Reader(page({"seconds": seconds})).words


def test_the_commit_of_an_installed_package_is_not_known() -> None:
    assert "not in a repository" in Reader(page({"commit": None})).words


LOOK = """<script>addEventListener("load", () => {
  const images = [...document.images].map(image => [image.naturalWidth, image.clientWidth])
  const white = getComputedStyle(document.querySelector(".white")).backgroundColor
  const paper = getComputedStyle(document.body).backgroundColor
  const page = document.documentElement.scrollWidth
  document.title = JSON.stringify({images, white, paper, page, window: innerWidth})
})</script></body>"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium to open the page in")
    profile = tmp_path_factory.mktemp("profile")
    return [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]


def seen(browser: list[str], file: Path, *options: str) -> dict[str, Any]:
    """What a browser makes of a copy of a page that looks at itself."""
    command = [*browser, *options, "--dump-dom", file.as_uri()]
    document = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    (title,) = re.findall("<title>(.*?)</title>", document)
    found: dict[str, Any] = json.loads(title)
    return found


@pytest.mark.parametrize("width", [500, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_all_images_on_white_and_nothing_beside_the_window(
    text: str, browser: list[str], width: int, scheme: str, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", LOOK))
    dark = ["--force-dark-mode"] if scheme == "dark" else []
    found = seen(browser, file, f"--window-size={width},900", *dark)
    assert len(found["images"]) == 3
    assert all(natural > 0 and 0 < shown <= width for natural, shown in found["images"])
    assert found["white"] == "rgb(255, 255, 255)"
    assert (found["paper"] == "rgb(255, 255, 255)") is (scheme == "light")
    assert found["page"] <= found["window"]


def test_a_browser_shows_the_page_as_it_is_and_runs_no_script_in_it(
    text: str, browser: list[str], tmp_path: Path
) -> None:
    file, picture = tmp_path / "report.html", tmp_path / "report.png"
    file.write_text(text.replace("</body>", "<script>document.title = 'ran'</script></body>"))
    command = [*browser, f"--screenshot={picture}", "--window-size=1000,800", file.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert picture.read_bytes().startswith(b"\x89PNG")
    dumped = subprocess.run([*browser, "--dump-dom", file.as_uri()], check=True, capture_output=True, text=True).stdout
    assert "<title>32H~64V on digits by concrete</title>" in dumped
