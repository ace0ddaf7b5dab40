"""Benchmarks refuse to time what is wrong, leave out what fails, and show what they have written."""
