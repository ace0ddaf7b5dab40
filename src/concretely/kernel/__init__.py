"""GPU kernels in Triton, one file per operator.

`operator` registers a kernel with its definition, which is in `functional`, and alone decides whether a kernel runs.
`launch`, `layout`, `native`, `row`, `category` and `tile` are shared by several kernels. `deferred` keeps
gradients of weights as pairs of factors. The kernels of a training step, `adam`, `muon` and `bits`, are called by
`training`; `adam` and `muon` modify their arguments in place. The first axis of all tensors counts members: independent
models that are computed together, each with its own seed. A "program" is an instance of a Triton kernel, which computes
one tile of the result.
"""
