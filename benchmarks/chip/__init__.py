"""Timings on one device, a GPU where there is one: nodes, steps, likelihoods, cost against size, recipes against time.

Run it with `python -m benchmarks.chip`. It needs no more than torch and this library; peers that are not there are left
out. On a device, work is put in a queue: a turn ends when the queue is empty, not when the last call returns.
"""
