"""Fused fast paths, each beside its plain definition.

Every folder is one operation. Its `naive.py` is the definition, in tensor operations that run anywhere; its `triton.py`
does the same in one pass on a GPU and is judged by the definition; its `__init__.py` makes of both an operator of
torch, which picks one by where the tensors are, can be differentiated, batched and compiled, and never waits for the
device. The first axis of all tensors counts members: independent programs that run as one, each with its own seed.
"""
