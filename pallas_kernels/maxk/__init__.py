"""Kernels of the k largest entries of rows, also directly after a linear layer."""
