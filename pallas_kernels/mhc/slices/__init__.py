"""Backward pass of hyper-connections by slices of 64 columns, on tensor cores."""
