"""Mosaic GPU kernels, a folder for each family. Private to jaxgnn; imports only JAX.

A family's module that is named like an op is what ``jaxgnn.ops`` calls; the others are its parts.
"""
