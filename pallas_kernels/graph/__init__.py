"""Kernels over the edges of a graph: its rows, the sparse product, the softmax of edges."""
