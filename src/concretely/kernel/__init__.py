"""Fused fast paths, each beside its plain definition.

Every folder is one operation, but for `native`, `row` and `category`, which kernels are made of. Its `naive.py` is the
definition, in tensor operations that run anywhere; its `triton.py` does the same in one pass on a GPU and is judged by
the definition; its `__init__.py` picks one by where the tensors are, and never waits for the device. What models
compute is an operator of torch, which can be differentiated, batched and compiled; what only a step of training does,
`adam`, `muon` and `line`, changes its arguments in place. The first axis of all tensors counts members: independent
programs that run as one, each with its own seed. `exp_logistic_normal` is by the kernels of `exp_concrete`.
"""
