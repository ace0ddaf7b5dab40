"""Experiments: lists and grids of runs, selection on the validation set, and the tables and figures of the paper.

The functions take plain arguments and callbacks, and print nothing. Nothing is imported here, so that the command reads
records and tables without waiting for torch.
"""
