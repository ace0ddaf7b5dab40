"""What a study finds about gradient estimators, and how it is printed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from .reference import Reference
from .tally import Measure

SURE = 1e-3
"""The p-value below which a bias is found."""


@dataclass(frozen=True, eq=False)
class Finding:
    """What a study found about one estimator."""

    samples: int
    reference: Reference
    mean: tuple[Tensor, ...] = field(repr=False)
    """The mean estimate, one tensor for each parameter."""
    squared_bias: Measure
    """The squared length of the mean estimate less the reference; without what noise adds, it may be negative."""
    p_value: float
    """How often an estimator without bias would look as biased as this; 2⁻¹⁵ if never, as far as one can tell."""
    variance: Measure
    """The trace of the covariance of one estimate."""
    seconds: float
    """The median time of one estimate."""

    @property
    def is_biased(self) -> bool:
        """Whether a bias was found; fewer than 11 repeats find none."""
        return self.p_value < SURE

    @property
    def bias(self) -> float:
        """The bias in lengths of the reference, or zero where noise would explain more than all of it."""
        return self.relative(self.squared_bias.value)

    @property
    def bias_limit(self) -> float:
        """What the bias would be if it were two standard errors above the one found: as large as it may well be."""
        return self.relative(max(self.squared_bias.value, 0) + 2 * self.squared_bias.error)

    @property
    def noise(self) -> Measure:
        """The standard deviation of one estimate in lengths of the reference."""
        value = self.relative(self.variance.value)
        return Measure(value, self.relative(self.variance.value + self.variance.error) - value)

    @property
    def seconds_to_signal(self) -> float:
        """The time of as many estimates as have a noise of 1 if averaged."""
        return self.seconds * self.noise.value**2

    def relative(self, squared: float) -> float:
        """The root of a squared length, in lengths of the reference."""
        length = self.reference.length
        return math.sqrt(max(squared, 0)) / length if length else math.inf


@dataclass(frozen=True, eq=False)
class GradientStudy:
    """What a study found, by the names of the estimators; to be printed."""

    findings: Mapping[str, Finding]

    def __getitem__(self, name: str) -> Finding:
        return self.findings[name]

    @property
    def references(self) -> list[Reference]:
        """The gradients that the estimators were judged by, one for each objective."""
        return list(dict.fromkeys(finding.reference for finding in self.findings.values()))

    def __str__(self) -> str:
        titles = ("estimator", "samples", "objective", "bias", "noise", "ms", "ms × noise²")
        table = [titles, *(_row(name, finding) for name, finding in self.findings.items())]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]) for name, *cells in table]
        notes = [
            *(f"gradient: {reference}" for reference in self.references),
            "bias: of the mean estimate, in lengths of the gradient; ≤ x if none was found, and none above x is likely",
            "noise: the standard deviation of one estimate, in lengths of the gradient",
            "ms: the time of one estimate; times noise², that of as many as have a noise of 1 if averaged",
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
