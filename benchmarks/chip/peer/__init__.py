"""The same training step and the same likelihood written by hand in other libraries, one a file."""
