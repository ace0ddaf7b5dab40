"""Triton kernels, one file per operator.

`operator` registers a kernel with its definition in `functional` or `noise`, and decides whether the kernel runs.
`native`, `row`, `category` and `tile` contain the building blocks; `deferred` keeps gradients of weights as factors.
`training` calls `adam`, `muon` and `bits` directly. The first axis of every tensor is the member axis: members are
independent runs, each with its own seed.
"""
