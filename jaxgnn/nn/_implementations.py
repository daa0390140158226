"""Implementations for those ops of a layer that lack the kernels it asks for by name."""

from __future__ import annotations

from jaxgnn import ops


def xla_or_fastest(implementation: ops.Name | None):
    """Context manager that sets the implementation of ops without named kernels in a layer.

    These are ops with one implementation, or ops that are not sparse. ``"xla"`` selects plain JAX
    for them too, which forward-mode differentiation needs; any other name selects the fastest.

    Args:
      implementation: name that the layer was given; None for the session default.
    """
    asked = ops.requested_implementation(implementation)
    return ops.default_implementation("xla" if asked == "xla" else None)
