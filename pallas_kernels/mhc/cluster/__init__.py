"""Kernels of ``mhc_pre`` whose clusters of blocks share the columns of a tile of tokens."""
