"""Functions that are single instructions of a GPU, for kernels to be made of."""
