"""Implementations of a training step, one per file. A file is imported only if its library is installed."""
