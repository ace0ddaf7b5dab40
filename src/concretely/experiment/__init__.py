"""Experiments: lists and grids of runs, selection on the validation set, and the tables and figures of the paper.

The functions take plain arguments and callbacks, and print nothing. Names are imported on first use, so that records
and recipes can be read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .grid import expand_grid
    from .paper import experiment_names, load_experiment
    from .plan import plan_experiment, reproduce
    from .scheduler import Monitor, train_members
    from .search import sweep, train_list

__all__ = [
    "Monitor",
    "expand_grid",
    "experiment_names",
    "load_experiment",
    "plan_experiment",
    "reproduce",
    "sweep",
    "train_list",
    "train_members",
]

_MODULES = ("grid", "paper", "plan", "scheduler", "search")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return next(
        getattr(module, name)
        for module in (import_module(f".{module}", __name__) for module in _MODULES)
        if hasattr(module, name)
    )
