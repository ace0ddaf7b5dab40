"""One failure budget for all statistical tests of the suite.

Were the seeds not fixed, a run of the whole suite would fail by chance once in a million; each of its p-values is held
against an equal share of that.
"""

import numpy as np
from scipy import stats
from torch import Tensor

FAILURES_PER_RUN = 1e-6
P_VALUES_PER_RUN = 2000
SHARE = FAILURES_PER_RUN / P_VALUES_PER_RUN


def assert_likely(p_value: float, what: str = "") -> None:
    """Fail if chance alone would hardly give this p-value."""
    assert p_value > SHARE, f"p-value {p_value:.3g} {what}"


def assert_mean(draws: Tensor, mean: float, what: str = "") -> None:
    """Fail if independent draws hardly have this mean."""
    draws = draws.double().flatten()
    z = (draws.mean().item() - mean) / max(draws.std().item() / len(draws) ** 0.5, 1e-300)
    assert_likely(2 * stats.norm.sf(abs(z)), f"of mean {draws.mean().item():.6g} against {mean:.6g} {what}")


def assert_frequency(hits: int, *, of: int, probability: float, what: str = "") -> None:
    """Fail if an event of this probability hardly happens so often."""
    assert_likely(stats.binomtest(hits, of, probability).pvalue, f"of {hits} in {of} against {probability:.4g} {what}")


def assert_uniform(draws: Tensor, what: str = "") -> None:
    """Fail if draws hardly are uniform."""
    assert_likely(stats.kstest(np.asarray(draws.double().flatten()), "uniform").pvalue, what)
