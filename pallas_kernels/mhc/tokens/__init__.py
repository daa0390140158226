"""Backward pass of hyper-connections by SIMT code, for all shapes and dtypes."""
