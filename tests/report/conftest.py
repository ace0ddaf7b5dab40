import pytest

from concretely.recipe import Experiment, experiment


@pytest.fixture
def table() -> Experiment:
    """A table with another number of steps than the paper's."""
    return experiment("table-1", steps=30_000)
