"""A seed for every test, slow tests first, and checks of shapes where `tests/test_annotation.py` asks for them."""

import os
from io import BytesIO
from typing import Any

import pytest
import torch

CHECKED = bool(os.environ.get("CONCRETELY_CHECKED"))
if CHECKED:
    from jaxtyping import install_import_hook

    import tests.checker  # noqa: F401 (the hook is given its name)

    install_import_hook("concretely", "tests.checker.checked")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put slow tests first, so that no worker is left with one at the end.

    With checked shapes, leave out the tests that a check would stop: of the compiler, and of bad input.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if CHECKED:
        unchecked = [item for item in items if item.get_closest_marker("unchecked")]
        items[:] = [item for item in items if not item.get_closest_marker("unchecked")]
        config.hook.pytest_deselected(items=unchecked)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Start every test from the same seed and with nothing compiled, so that a failure repeats."""
    torch.manual_seed(0)
    torch.compiler.reset()


@pytest.fixture
def blank_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pictures blank, as drawing those of a run takes several times as long as training it."""
    if request.node.get_closest_marker("drawn"):
        return
    from matplotlib.figure import Figure

    from concretely.report import image

    def savefig(figure: Figure, file: BytesIO, **options: Any) -> None:
        file.write({"png": b"\x89PNG\r\n\x1a\n", "svg": b"<svg/>"}[options["format"]])

    monkeypatch.setattr(Figure, "savefig", savefig)
    monkeypatch.setattr(image, "_page", lambda *arguments: Figure())
