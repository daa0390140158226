"""Gradients of hyper-connections by whole tokens, by warps."""
