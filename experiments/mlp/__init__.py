"""Fused multilayer perceptrons: their speed beside plain JAX and torch, and their exactness."""
