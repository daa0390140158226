"""Forms of code: gathers, sums over segments, products, norms, layers, tensor products."""
