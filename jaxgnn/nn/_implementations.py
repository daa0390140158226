"""What the name that a layer was given means to those of its ops that have no such kernels."""

from __future__ import annotations

from jaxgnn import ops


def xla_or_fastest(implementation: ops.Name | None):
    """Context manager: the implementation of ops that a layer's names of kernels do not mean.

    They have nothing to choose from, or are no sparse ops. ``"xla"`` is plain JAX for them as well,
    which forward-mode differentiation needs; any other name leaves them to what is fastest.

    Args:
      implementation: that of the layer; None for the session default.
    """
    asked = ops.requested_implementation(implementation)
    return ops.default_implementation("xla" if asked == "xla" else None)
