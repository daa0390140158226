"""Kernels of dense layers between both ends of edges, and a sum over each row."""
