"""Signs that a model ignores its latents."""

from collections.abc import Callable, Mapping

from .train_state import Row

LEAST = 1e-2
"""A node has collapsed if its KL is below this, in nats for each unit."""
EARLY, FEW = 0.1, 100
"""Nothing is reported before this share of a run and this number of steps."""


class CollapseWatch:
    """Reports each collapsed node once, after a tenth of the run.

    >>> said = []
    >>> watch = CollapseWatch(2000, {"h": 2}, said.append)
    >>> for step in (100, 300, 400):
    ...     watch(Row(step, 0.0, 1e-3, None, -1.0, -1.0, metrics={"kl/h": 0.01}))
    >>> said
    ["the KL of node 'h' is 0.005 nats per unit at step 300: the model ignores it; try a warm-up of the KL (see beta)"]
    """

    def __init__(
        self, steps: int, units: Mapping[str, int], note: Callable[[str], None], *, relaxes: bool = True
    ) -> None:
        self._start, self._units, self._note = max(EARLY * steps, FEW), units, note
        self._cure = "a higher temperature or another estimator" if relaxes else "another estimator"
        self._said = set[str]()

    def __call__(self, row: Row) -> None:
        """Check a row of the curve."""
        if row.step <= self._start:
            return
        for node, units in self._units.items():
            kl, constant = row.metrics.get(f"kl/{node}"), row.metrics.get(f"constant/{node}")
            if node in self._said:
                continue
            if kl is not None and kl / units < LEAST:
                sentence = f"the KL of node {node!r} is {kl / units:.2g} nats per unit at step {row.step:,}"
                self._say(node, f"{sentence}: the model ignores it; try a warm-up of the KL (see beta)")
            elif constant is not None and constant == 1.0:
                every = f"node {node!r} has one category for all data at step {row.step:,}"
                self._say(node, f"{every}: if it should depend on the data, try {self._cure}")

    def _say(self, node: str, sentence: str) -> None:
        self._said.add(node)
        self._note(sentence)
