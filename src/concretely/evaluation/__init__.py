"""Likelihoods of models, and the bias and variance of gradient estimators."""

__all__: list[str] = []
