"""Kernels of manifold-constrained hyper-connections: in front of a layer, behind it, between."""
