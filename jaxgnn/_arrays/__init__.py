"""Arrays of JAX and NumPy: checks, ownership, byte order, and whether values are known."""
