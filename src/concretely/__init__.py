"""Models with discrete random variables: relax discrete nodes, train by backpropagation, evaluate discretely."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import layer, report
    from .data import load_data
    from .distribution import *
    from .estimator import *
    from .evaluation import *
    from .experiment.place import Ray, Share
    from .experiment.search import sweep, sweep_recipes
    from .graph import *
    from .layer.gumbel import gumbel_sigmoid, gumbel_softmax
    from .layer.straight_through import straight_through
    from .model import *
    from .notation import *
    from .objective import *
    from .schedule import *
    from .training.callback import CSVLog, ProgressBar, TensorBoard
    from .training.fit import FittedRun, fit
    from .training.folder import load
    from .training.recipe import Recipe

__version__ = "0.1.0"

__all__ = [
    "NVIL",
    "RLOO",
    "VIMCO",
    "Annealing",
    "Architecture",
    "Bernoulli",
    "BinaryCircuit",
    "BinaryConcrete",
    "CSVLog",
    "CircuitNode",
    "Concrete",
    "Cost",
    "Draw",
    "EdgeWarning",
    "Estimate",
    "Estimator",
    "Exact",
    "ExpConcrete",
    "ExpLogisticNormal",
    "FittedRun",
    "GradientStudy",
    "Gumbel",
    "GumbelSinkhorn",
    "GumbelSoftmax",
    "HardConcrete",
    "Hypercube",
    "HypercubeConcrete",
    "HypercubeLogisticNormal",
    "Likelihood",
    "Logistic",
    "LogisticNormal",
    "Model",
    "OneHotCategorical",
    "Pathwise",
    "Permutation",
    "ProgressBar",
    "Ray",
    "Recipe",
    "Reinforce",
    "Share",
    "StraightThrough",
    "StraightThroughGumbelSoftmax",
    "Subset",
    "SubsetConcrete",
    "TensorBoard",
    "Trace",
    "Warmup",
    "average",
    "bound",
    "density",
    "estimate",
    "evaluate",
    "exact_log_likelihood",
    "fit",
    "gradient_study",
    "gumbel_sigmoid",
    "gumbel_softmax",
    "layer",
    "load",
    "load_data",
    "mode",
    "monte_carlo_kl",
    "parse",
    "prediction",
    "report",
    "run",
    "straight_through",
    "sweep",
    "sweep_recipes",
    "tile",
]

_ROOMS = (
    "distribution",
    "notation",
    "schedule",
    "graph",
    "model",
    "objective",
    "estimator",
    "evaluation",
)


_ELSEWHERE = {
    "CSVLog": ".training.callback",
    "FittedRun": ".training.fit",
    "ProgressBar": ".training.callback",
    "Ray": ".experiment.place",
    "Recipe": ".training.recipe",
    "Share": ".experiment.place",
    "TensorBoard": ".training.callback",
    "fit": ".training.fit",
    "gumbel_sigmoid": ".layer.gumbel",
    "gumbel_softmax": ".layer.gumbel",
    "layer": ".layer",
    "load": ".training.folder",
    "load_data": ".data",
    "report": ".report",
    "straight_through": ".layer.straight_through",
    "sweep": ".experiment.search",
    "sweep_recipes": ".experiment.search",
}
"""The modules of the public names that are in none of `_ROOMS`."""


def __getattr__(name: str) -> Any:
    """Import the library and torch on first use, so that `concretely --help` is fast."""
    if name not in __all__:
        raise AttributeError(f"module 'concretely' has no attribute {name!r}")
    if name in _ELSEWHERE:
        module = import_module(_ELSEWHERE[name], __name__)
        value = module if name in ("layer", "report") else getattr(module, name)
    else:
        rooms = (import_module(f".{room}", __name__) for room in _ROOMS)
        value = next(getattr(room, name) for room in rooms if name in room.__all__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
