"""Experiments: lists and grids of runs, selection on the validation set, and the tables and figures of the paper.

An experiment is a table or figure of the paper; each of its cells is one model that the paper trained. The functions
take plain arguments and callbacks, and print nothing. This file imports nothing, so that the command can read records
and tables without waiting for torch.
"""
