"""Reductions over the edges of each row, several in one pass, and their gradients."""
