"""Kernels for a GPU, in Triton: one file an operator.

`operator` registers a kernel with its definition, which lives in `functional` or `noise`, and is the only place that
decides whether a kernel runs. `native`, `row`, `category` and `tile` are what kernels are made of; `deferred` holds
gradients of weights that stay factors. The kernels of a training step, `adam`, `muon` and `bits`, change their
arguments in place and are called by `training`. The first axis of all tensors counts members: independent programs that
run as one, each with its own seed.
"""
