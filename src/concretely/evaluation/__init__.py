"""Likelihoods of models, and the bias and variance of gradient estimators."""

from .cost import Cost
from .finding import GradientStudy
from .gradient import gradient_study
from .likelihood import Likelihood, evaluate, exact_log_likelihood

__all__ = ["Cost", "GradientStudy", "Likelihood", "evaluate", "exact_log_likelihood", "gradient_study"]
