"""Training: the recipe of a run, the training loop, checkpoints, and resuming from them.

A step is one update of the optimizer. Runs that are trained together are called members. This file imports nothing, so
that the command can read recipes without waiting for torch.
"""
