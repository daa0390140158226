"""Hyper-connections: several residual streams, mixed under constraints."""
