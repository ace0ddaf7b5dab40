"""Tables, figures and pages. Nothing is computed here: results come from `evaluation` and `experiment`.

>>> from concretely import report
>>> figure = report.simplex(alpha=[2.0, 0.5, 1.0], temperatures=[0.0, 0.5, 1.0])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .curve import draw_curve
    from .diagram import picture, side_by_side
    from .dot import to_dot
    from .dotplot import draw_study
    from .relaxation import binary, simplex

__all__ = ["binary", "draw_curve", "draw_study", "picture", "side_by_side", "simplex", "to_dot"]

_MODULES = {
    "binary": "relaxation",
    "draw_curve": "curve",
    "draw_study": "dotplot",
    "picture": "diagram",
    "side_by_side": "diagram",
    "simplex": "relaxation",
    "to_dot": "dot",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import matplotlib on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
