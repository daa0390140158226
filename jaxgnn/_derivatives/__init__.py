"""Functions with derivatives of their own, in reverse mode and in forward mode."""
