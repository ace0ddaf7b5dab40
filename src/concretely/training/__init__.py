"""Training: the recipe of a run, its loop, what it leaves on the disk and how it goes on from there.

Nothing is imported here, so that the command reads recipes without waiting for torch.
"""
