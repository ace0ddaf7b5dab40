"""Programs share a device in threads: errors and signals in one of them stop the others, which save."""

import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from concretely.cli.terminal import stop_requested
from concretely.data import Dataset, load_data
from concretely.experiment.scheduler import Monitor, train_members
from concretely.training.folder import restored
from concretely.training.recipe import Member, Recipe, resolve


def digits(recipe: Recipe) -> Dataset:
    return load_data("digits", width=64)


def test_an_interruption_after_training_hides_no_error_in_another_program(tmp_path: Path) -> None:
    def then(group: Sequence[Member], monitor: Monitor) -> None:
        if group[0].recipe.notation == "5H-64V":
            raise ZeroDivisionError
        while not monitor.stop():
            sleep(0.01)
        raise KeyboardInterrupt

    members = [Member(resolve(notation=f"{units}H-64V", steps=2), tmp_path / str(units)) for units in (4, 5)]
    with pytest.raises(ZeroDivisionError):
        train_members(members, digits, programs=2, then=then)


def test_a_signal_that_comes_to_the_thread_of_a_program_is_obeyed(tmp_path: Path) -> None:
    asked = []

    def then(group: Sequence[Member], monitor: Monitor) -> None:
        if group[0].recipe.notation == "5H-64V":
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        end = monotonic() + 10
        while not monitor.stop() and monotonic() < end:
            sleep(0.01)
        asked.append(monitor.stop())

    members = [Member(resolve(notation=f"{units}H-64V", steps=2), tmp_path / str(units)) for units in (4, 5)]
    with stop_requested() as stop:
        assert not train_members(members, digits, programs=2, monitor=Monitor(stop), then=then)
    assert asked == [True, True]


def test_an_error_in_one_program_ends_the_others(tmp_path: Path) -> None:
    recipes = [resolve(notation=f"{units}H-64V", steps=10**6) for units in (4, 5)]

    def data(recipe: Any) -> Any:
        if recipe.notation == "5H-64V":
            while not (tmp_path / "4H-64V" / "recipe.toml").exists():
                time.sleep(0.01)
            raise ZeroDivisionError
        return digits(recipe)

    members = [Member(recipe, tmp_path / recipe.notation) for recipe in recipes]
    with pytest.raises(ZeroDivisionError):
        train_members(members, data, programs=2)
    assert restored(tmp_path / "4H-64V")[0].step > 0
