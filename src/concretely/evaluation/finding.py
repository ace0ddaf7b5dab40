"""The results of a gradient study, and how they are printed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from .reference import Reference
from .tally import Measure

SURE = 1e-3
"""The p-value below which an estimator counts as biased."""


@dataclass(frozen=True, eq=False)
class Finding:
    """The results for one estimator."""

    samples: int
    reference: Reference
    mean: tuple[Tensor, ...] = field(repr=False)
    """The mean estimate, one tensor for each parameter."""
    squared_bias: Measure
    """An unbiased estimate of the squared norm of the bias, which may be negative."""
    p_value: float
    """The p-value of the hypothesis that the bias is zero. It is at least 2⁻¹⁵."""
    variance: Measure
    """The trace of the covariance matrix of one estimate."""
    seconds: float
    """The median time of one estimate."""

    @property
    def is_biased(self) -> bool:
        """Whether the bias is significant. With fewer than 11 repeats it never is."""
        return self.p_value < SURE

    @property
    def bias(self) -> float:
        """The norm of the bias divided by the norm of the reference, or zero if `squared_bias` is negative."""
        return self.relative(self.squared_bias.value)

    @property
    def bias_limit(self) -> float:
        """The relative bias two standard errors above the estimate."""
        return self.relative(max(self.squared_bias.value, 0) + 2 * self.squared_bias.error)

    @property
    def noise(self) -> Measure:
        """The standard deviation of one estimate relative to the norm of the reference."""
        value = self.relative(self.variance.value)
        return Measure(value, self.relative(self.variance.value + self.variance.error) - value)

    @property
    def seconds_to_signal(self) -> float:
        """The time to compute so many estimates that the noise of their average is 1."""
        return self.seconds * self.noise.value**2

    def relative(self, squared: float) -> float:
        """Return the root of a squared norm divided by the norm of the reference, or infinity if that norm is zero."""
        length = self.reference.length
        return math.sqrt(max(squared, 0)) / length if length else math.inf


@dataclass(frozen=True, eq=False)
class GradientStudy:
    """The results of a study by the names of the estimators. Print it to get a table."""

    findings: Mapping[str, Finding]

    def __getitem__(self, name: str) -> Finding:
        return self.findings[name]

    @property
    def references(self) -> list[Reference]:
        """The reference gradients, one for each objective."""
        return list(dict.fromkeys(finding.reference for finding in self.findings.values()))

    def __str__(self) -> str:
        titles = ("estimator", "samples", "objective", "bias", "noise", "ms", "ms × noise²")
        table = [titles, *(_row(name, finding) for name, finding in self.findings.items())]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]) for name, *cells in table]
        notes = [
            *(f"gradient: {reference}" for reference in self.references),
            "bias: of the mean estimate, relative to the gradient; ≤ x, an upper limit, where none is significant",
            "noise: the standard deviation of one estimate, relative to the gradient",
            "ms: the time of one estimate; ms × noise² is the time to average the noise down to 1",
        ]
        return "\n".join([*lines, "", *notes])


def _row(name: str, finding: Finding) -> tuple[str, ...]:
    return (
        name,
        str(finding.samples),
        finding.reference.aim.title,
        f"{finding.bias:.2g}" if finding.is_biased else f"≤ {finding.bias_limit:.2g}",
        str(finding.noise),
        _milliseconds(finding.seconds),
        _milliseconds(finding.seconds_to_signal),
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"
