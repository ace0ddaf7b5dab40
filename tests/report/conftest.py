import pytest

from concretely.experiment.paper import Experiment, load_experiment


@pytest.fixture
def table() -> Experiment:
    """A table with another number of steps than the paper's."""
    return load_experiment("table-1", steps=30_000)
