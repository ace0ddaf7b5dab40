"""Timings of this library and of its peers, interleaved in one run."""
