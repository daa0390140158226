"""Layers on equivariant features, and functions of the distances of atoms."""
