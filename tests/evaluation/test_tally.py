"""P-values and squared biases are those of their definitions."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from concretely.evaluation.tally import p_value, squared_expectation
from tests.budget import assert_uniform


@pytest.mark.parametrize("scales", [[1.0], [1.0, 0.1, 0.01], [1 / (i + 1) for i in range(40)], [1.0] * 40])
def test_without_a_bias_all_p_values_are_as_likely_whatever_the_covariance(scales: Sequence[float]) -> None:
    gaps = torch.randn(200, 14, len(scales), dtype=torch.float64) * torch.tensor(scales, dtype=torch.float64)
    assert_uniform(torch.tensor([p_value(gap) for gap in gaps]))


def test_a_bias_makes_small_p_values_and_rounding_does_not() -> None:
    gaps = torch.randn(16, 3, dtype=torch.float64) + 3
    assert p_value(gaps) == 2**-15
    assert p_value(gaps, rounding=10.0) == 1
    assert p_value(torch.zeros(16, 3, dtype=torch.float64)) == 1


def test_the_squared_bias_is_the_mean_product_of_different_groups_with_the_error_of_the_jackknife() -> None:
    gaps = torch.randn(7, 3, dtype=torch.float64) + 0.5

    def squared(rows: Tensor) -> float:
        return np.mean([float(a @ b) for a, b in itertools.permutations(rows, 2)])

    without = np.array([squared(torch.cat([gaps[:row], gaps[row + 1 :]])) for row in range(7)])
    value, error = squared_expectation(gaps)
    assert value == pytest.approx(squared(gaps), rel=1e-10)
    assert error == pytest.approx(math.sqrt(6 / 7 * ((without - without.mean()) ** 2).sum()), rel=1e-10)
    assert squared_expectation(gaps[:2]).error == math.inf
