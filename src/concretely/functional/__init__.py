"""Pure, differentiable functions behind the distributions, estimators and models, one file per family.

A function runs its Triton kernel if the kernel is eligible, and its definition in torch operations otherwise. A leading
`members` axis stacks independent models that are trained together, each with its own parameters and random key.
"""
