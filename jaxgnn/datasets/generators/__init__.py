"""Synthetic graphs of any size."""
