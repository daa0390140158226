"""Graph-neural-network layers for JAX that run at the hardware's limit."""
