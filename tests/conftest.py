"""Checked shapes, a seed for every test, and one failure budget for all that is random."""

import os

import pytest
import torch
from jaxtyping import install_import_hook

if not os.environ.get("CONCRETELY_UNCHECKED"):
    install_import_hook("concretely", "beartype.beartype")


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test starts from the same randomness, so that a failure repeats."""
    torch.manual_seed(0)
