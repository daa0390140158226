"""Kernels of the k largest entries of rows, also straight behind a linear layer."""
