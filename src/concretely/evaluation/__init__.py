"""Likelihoods of models, and the bias and variance of gradient estimators."""

from .finding import GradientStudy
from .likelihood import Likelihood, evaluate, exact_log_likelihood
from .study import gradient_study

__all__ = ["GradientStudy", "Likelihood", "evaluate", "exact_log_likelihood", "gradient_study"]
