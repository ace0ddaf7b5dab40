"""Latent variable models."""

from .base import Model
from .paper import density, prediction

__all__ = ["Model", "density", "prediction"]
