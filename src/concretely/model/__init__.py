"""Latent variable models."""

from .model import Model
from .paper import density, prediction

__all__ = ["Model", "density", "prediction"]
