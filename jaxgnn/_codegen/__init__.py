"""Writes the CUDA source of kernels that are generated for the product that a call is made for.

Text alone: nothing here compiles or launches. ``jaxgnn._ffi`` does both.
"""
