"""Kernels of manifold-constrained hyper-connections: before, after and between layers."""
