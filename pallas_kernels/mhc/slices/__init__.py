"""Gradients of hyper-connections by slices of columns, by tensor cores."""
