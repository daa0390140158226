"""Neighbours of points in space, and positions of nodes in a graph."""
