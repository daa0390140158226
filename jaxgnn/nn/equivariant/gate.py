"""The gated nonlinearity of equivariant features."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.equivariant import Irrep, Irreps, MulIrrep
from jaxgnn.equivariant.irreps import as_irreps
from jaxgnn.nn.equivariant.channels import check_features
from jaxgnn.nn.equivariant.normalized import normalized
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.options import activation as known_activation
from jaxgnn.nn.shared.options import checked_options
from jaxgnn.ops.core.eager import run_compiled

_EVEN = Irrep(0, 1)


class Gate(DocumentedModule):
    """Gated nonlinearity: scalars through activations, other channels times activated scalars.

    A nonlinear function of the components of a vector would not turn with it. So each channel of a
    degree above 0 is multiplied by a gate, an even scalar of its own. Even scalars (``0e``) go
    through ``activation``, odd ones (``0o``) through tanh, which is odd, and gates through
    ``gate_activation``. No parameters. See https://arxiv.org/abs/1807.02547.

    The input has the scalars of ``irreps_out``, then the gates, then the other entries: it has
    ``irreps_in``, an attribute of the layer. As in e3nn, activations are divided by
    ``√E[act(z)²]`` for a standard normal z, so that variances of one stay about one.

    Args:
      irreps_out: irreps of the output.
      activation: activation of even scalars, one of ``"relu"``, ``"gelu"``, ``"gelu_exact"``,
        ``"silu"``, ``"mish"``, ``"squared_relu"``, ``"tanh"``, ``"sigmoid"``, or None.
      gate_activation: activation of the gates, one of the same.

    Attributes:
      irreps_in: irreps of the input.

    Example:
      >>> gate = nn.Gate("8x0e+4x1o+2x2e")
      >>> str(gate.irreps_in)
      '8x0e+6x0e+4x1o+2x2e'
      >>> gate(jnp.ones((3, 36))).shape
      (3, 30)
    """

    @checked_options(activation=known_activation, gate_activation=known_activation)
    def __init__(
        self,
        irreps_out: Irreps | str,
        *,
        activation: ops.Activation | None = "silu",
        gate_activation: ops.Activation | None = "sigmoid",
    ):
        self.irreps_out = as_irreps(type(self).__name__, "irreps_out", irreps_out)
        self.activation: ops.Activation | None = activation
        self.gate_activation: ops.Activation | None = gate_activation
        scalars = [entry for entry in self.irreps_out if entry.irrep.degree == 0]
        others = [entry for entry in self.irreps_out if entry.irrep.degree > 0]
        gates = [MulIrrep(sum(e.multiplicity for e in others), _EVEN)] if others else []
        self.irreps_in = Irreps((*scalars, *gates, *others))

    def __call__(self, x: Float[Array, "*rows in"]) -> Float[Array, "*rows out"]:
        """Applies the gate to the last axis.

        Args:
          x: features of ``irreps_in``.
        """
        x = check_features(type(self).__name__, x, self.irreps_in)
        return run_compiled(
            _apply, _Kind(self.irreps_out, self.activation, self.gate_activation), x
        )


class _Kind(NamedTuple):
    """Static description of a gate."""

    irreps_out: Irreps
    activation: ops.Activation | None
    gate_activation: ops.Activation | None


def _apply(kind: _Kind, x: Array) -> Array:
    """Activates the scalars and multiplies the channels of other entries by their gates."""
    entries = list(kind.irreps_out)
    num_scalars = sum(e.dim for e in entries if e.irrep.degree == 0)
    num_gates = sum(e.multiplicity for e in entries if e.irrep.degree > 0)
    scalar, gate, other = 0, num_scalars, num_scalars + num_gates  # Starts of the next entries.
    gates = normalized(x[..., gate:other], kind.gate_activation)
    used, parts = 0, []
    for entry in entries:
        if entry.irrep.degree == 0:
            activation = kind.activation if entry.irrep == _EVEN else "tanh"
            parts.append(normalized(x[..., scalar : scalar + entry.dim], activation))
            scalar += entry.dim
            continue
        channels = x[..., other : other + entry.dim].reshape(
            *x.shape[:-1], entry.multiplicity, entry.irrep.dim
        )
        entry_gates = gates[..., used : used + entry.multiplicity, None]
        parts.append((entry_gates * channels).reshape(*x.shape[:-1], entry.dim))
        other, used = other + entry.dim, used + entry.multiplicity
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
