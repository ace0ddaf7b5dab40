"""Timings on one device, by default a GPU: nodes, steps, likelihoods, cost against size, recipes against time.

Run it with `python -m benchmarks.chip`. It needs only torch and this library; peers that are not installed are left
out. Work on a device is queued: a turn ends when the queue is empty, not when the last call returns.
"""
