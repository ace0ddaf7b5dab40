"""Latent variable models."""

from .base import Model
from .density import density
from .prediction import prediction

__all__ = ["Model", "density", "prediction"]
