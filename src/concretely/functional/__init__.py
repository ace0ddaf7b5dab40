"""The mathematics: one pure, differentiable function a law, one file a family.

Distributions, estimators and models call these functions, and so may users. This is the only room, beside the training
engine, that knows of kernels: a function runs its kernel where that is eligible and its definition everywhere else.
"""
