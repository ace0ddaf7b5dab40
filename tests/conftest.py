"""Checked shapes, a seed for every test, and one failure budget for all that is random."""

import os

import pytest
import torch
from jaxtyping import install_import_hook

import tests.checker  # noqa: F401 (named to the hook as a string)

CHECKED = not os.environ.get("CONCRETELY_UNCHECKED")
if CHECKED:
    install_import_hook("concretely", "tests.checker.checked")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests marked as unchecked to a run of their own, which leaves all others to this one."""
    left = [item for item in items if bool(item.get_closest_marker("unchecked")) == CHECKED]
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=left)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test starts from the same randomness and with nothing compiled, so that a failure repeats."""
    torch.manual_seed(0)
    torch.compiler.reset()
