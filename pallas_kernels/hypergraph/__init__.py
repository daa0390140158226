"""Kernels of hypergraphs: one small matrix for the nodes of every token."""
