"""Kernels of the product of a sparse matrix and compressed rows, forward and backward."""
