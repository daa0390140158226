"""Fused multilayer perceptrons: speed against plain JAX and torch, and numerical accuracy."""
