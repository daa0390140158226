"""Attention over the neighbours of a node."""
