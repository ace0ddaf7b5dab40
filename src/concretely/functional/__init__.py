"""Pure, differentiable functions behind the distributions, estimators and models, one file per family.

A function runs its Triton kernel if the kernel is eligible, and its definition in torch operations otherwise.
"""
