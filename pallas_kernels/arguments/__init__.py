"""Arguments that ops, wrappers of compiled kernels and Pallas kernels share, by family."""
