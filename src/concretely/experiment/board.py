"""The progress of programs that run elsewhere, and the actor of Ray that collects it."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class ProgramState(NamedTuple):
    """The state of a program, as last reported."""

    name: str
    """The name of its first member."""
    members: int
    steps: int
    step: int = 0
    objective: float | None = None
    """The last objective, averaged over the members."""
    state: str = "queued"
    """Whether it is queued, training, scoring, done or stopped."""
    starts: int = 0
    """How often it was started: more than once if the process or the machine was lost."""


class Board:
    """The states of programs, and sentences about them. Ray runs it as an actor."""

    def __init__(self) -> None:
        self._states: dict[int, dict[str, Any]] = {}
        self._notes: list[tuple[int, str]] = []

    def start(self, program: int) -> None:
        """Count one more start of a program."""
        before = self._states.get(program, {})
        self._states[program] = {**before, "state": "training", "starts": before.get("starts", 0) + 1}

    def report(self, program: int, state: Mapping[str, Any]) -> None:
        """Update the state of a program."""
        self._states[program] = {**self._states.get(program, {}), **state}

    def note(self, program: int, sentence: str) -> None:
        """Keep a sentence until it is read."""
        self._notes.append((program, sentence))

    def read(self) -> tuple[dict[int, dict[str, Any]], list[tuple[int, str]]]:
        """Return the states of all programs that were started, and the sentences since the last call."""
        notes, self._notes = self._notes, []
        return self._states, notes
