"""Mosaic GPU kernels, one module an op. Private to jaxgnn; imports only JAX."""
