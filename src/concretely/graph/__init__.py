"""Stochastic graphs: programs, the modes in which they run, and the traces of their runs."""

from . import mode
from .program import Draw
from .run import run
from .trace import Trace, tile

__all__ = ["Draw", "Trace", "mode", "run", "tile"]
