"""Checked shapes, a seed for every test, and one failure budget for all that is random."""

import os
from importlib.util import find_spec

import pytest
import torch
from jaxtyping import install_import_hook

CAN_CHECK = find_spec("beartype") is not None
CHECKED = CAN_CHECK and not os.environ.get("CONCRETELY_UNCHECKED")
if CHECKED:
    import tests.checker  # noqa: F401 (named to the hook as a string)

    install_import_hook("concretely", "tests.checker.checked")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests marked as unchecked to a run of their own, which leaves all others to this one."""
    if CAN_CHECK:
        left = [item for item in items if bool(item.get_closest_marker("unchecked")) == CHECKED]
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test starts from the same randomness and with nothing compiled, so that a failure repeats."""
    torch.manual_seed(0)
    torch.compiler.reset()
