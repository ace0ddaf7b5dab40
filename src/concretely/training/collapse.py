"""Signs that a model ignores its latents."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..spelling import listed
from .train_state import Row

LEAST = 1e-2
"""A node has collapsed if its KL is below this, in nats for each unit."""
EARLY, FEW = 0.1, 100
"""Nothing is reported before this share of a run and this number of steps."""


class CollapseWatch:
    """Reports each collapsed node once, after a tenth of the run: those of a row in one sentence.

    `past` are the rows of a resumed run, whose nodes were reported before.

    >>> said = []
    >>> watch = CollapseWatch(2000, {"h": 2}, said.append)
    >>> for step in (100, 300, 400):
    ...     watch(Row(step, 0.0, 1e-3, None, -1.0, -1.0, metrics={"kl/h": 0.01}))
    >>> said
    ["the KL of node 'h' is 0.005 nats per unit at step 300: the model ignores it; try a warm-up of the KL (see beta)"]
    """

    def __init__(
        self,
        steps: int,
        units: Mapping[str, int],
        note: Callable[[str], None],
        *,
        relaxes: bool = True,
        past: Sequence[Row] = (),
    ) -> None:
        self._start, self._units, self._note = max(EARLY * steps, FEW), units, note
        self._cure = "a higher temperature or another estimator" if relaxes else "another estimator"
        self._said = set[str]()
        for row in past:
            self._collapsed(row)

    def __call__(self, row: Row) -> None:
        """Check a row of the curve."""
        ignored, constant = self._collapsed(row)
        if ignored:
            node, kl = next(iter(ignored.items()))
            what, it = f"the KL of node {node!r} is {kl:.2g} nats per unit at step {row.step:,}", "it"
            if len(ignored) > 1:
                what, it = f"the KL of {_nodes(ignored)} is below {LEAST:g} nats per unit at step {row.step:,}", "them"
            self._note(f"{what}: the model ignores {it}; try a warm-up of the KL (see beta)")
        if constant:
            what = f"node {constant[0]!r} has" if len(constant) == 1 else f"{_nodes(constant)} have"
            it = "it" if len(constant) == 1 else "they"
            what = f"{what} one category for all data at step {row.step:,}"
            self._note(f"{what}: if {it} should depend on the data, try {self._cure}")

    def _collapsed(self, row: Row) -> tuple[dict[str, float], list[str]]:
        """Return the KL per unit of nodes that the model newly ignores, and nodes that newly have one category."""
        ignored, constant = dict[str, float](), list[str]()
        for node, units in self._units.items() if row.step > self._start else ():
            kl, share = row.metrics.get(f"kl/{node}"), row.metrics.get(f"constant/{node}")
            if node in self._said:
                continue
            if kl is not None and kl / units < LEAST:
                ignored[node] = kl / units
            elif share == 1.0:
                constant.append(node)
        self._said |= {*ignored, *constant}
        return ignored, constant


def _nodes(names: Iterable[str]) -> str:
    """Return the number of several nodes and their names.

    >>> _nodes(["a", "b"])
    "2 nodes ('a', 'b')"
    """
    every = [repr(name) for name in names]
    return f"{len(every)} nodes ({listed(every)})"
