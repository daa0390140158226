"""Implementations of a layer's ops that lack the kernels requested by name."""

from __future__ import annotations

from jaxgnn import ops


def xla_or_fastest(implementation: ops.Name | None):
    """Context manager that sets the implementation of ops without named kernels in a layer.

    These are ops with one implementation, or ops that are not sparse. ``"xla"`` also selects plain
    JAX for them, which forward-mode differentiation requires; any other name selects the fastest.

    Args:
      implementation: name passed to the layer; None for the session default.
    """
    asked = ops.requested_implementation(implementation)
    return ops.default_implementation("xla" if asked == "xla" else None)
