"""Layers for hypergraphs, and the coupling of experts."""
