"""Convolutions over the edges of a graph."""
