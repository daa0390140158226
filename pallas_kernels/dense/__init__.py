"""Kernels of stacks of dense layers with activations: one launch forward and one backward."""
