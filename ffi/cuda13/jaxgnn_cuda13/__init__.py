"""The CUDA library of jaxgnn, which finds it here."""
