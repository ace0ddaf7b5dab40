"""Limits for this library on an H200, and the measurements."""

from typing import Any, Literal, NamedTuple

from .. import record
from ..timing import Spread


class Asked(NamedTuple):
    """An upper or lower limit for a number.

    >>> Asked("a step", "at most", 80.0, "µs").beside(Spread(70.0, 69.0, 71.0))["holds"]
    True
    """

    what: str
    sense: Literal["at most", "at least"]
    limit: float
    unit: str

    def beside(self, measured: Spread) -> dict[str, Any]:
        """Return the limit and the measurement as a record stores them."""
        low = self.sense == "at most"
        return {
            **self._asdict(),
            "measured": record.described_spread(measured),
            "holds": measured.median <= self.limit if low else measured.median >= self.limit,
        }


def line(row: dict[str, Any]) -> str:
    """Return a limit and the measurement as text."""
    (low, high), median = row["measured"]["quartiles"], row["measured"]["median"]
    spread = f"± {row['standard_error']:.2g}" if "standard_error" in row else f"({low:g} – {high:g})"
    verdict = "holds" if row["holds"] else "does not hold"
    return (
        f"asked: {row['what']} {row['sense']} {row['limit']:g} {row['unit']}; measured {median:g} {spread}: {verdict}"
    )
