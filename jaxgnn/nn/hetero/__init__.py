"""Layers for nodes and edges of several types."""
