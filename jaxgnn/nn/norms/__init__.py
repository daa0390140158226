"""Normalisation over the nodes of each graph."""
