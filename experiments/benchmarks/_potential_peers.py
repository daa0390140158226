"""A NequIP whose convolutions are computed by this library or by others, with equal parameters."""

from __future__ import annotations

from typing import Any, cast

import jax
from flax import nnx

from experiments.benchmarks._equivariant_peers import PEERS
from jaxgnn import models, nn
from jaxgnn.graph import CSRGraph

OURS = {"ours": None, "recomputed": True}
"""Candidates of this library, with the option ``recompute_weights`` of the model."""

CANDIDATES = (*OURS, "e3nn", "cuequivariance")


class PeerConv(nnx.Module):
    """An ``nn.EquivariantConv`` with the same parameters, whose sum another library computes.

    Features are brought into the order of the other library, and back, at the atoms.
    """

    def __init__(self, conv: nn.EquivariantConv, peer: str):
        self.radial, self.radial_kernel, self.linear = conv.radial, conv.radial_kernel, conv.linear
        self.product, self.num_neighbours = conv.product, conv.num_neighbours
        self.peer = peer

    def __call__(
        self, graph: CSRGraph, x: jax.Array, harmonics: jax.Array, basis: jax.Array
    ) -> jax.Array:
        peer = PEERS[self.peer]
        for layer in self.radial:
            basis = cast(jax.Array, layer(basis))
        run = peer.convolution(graph, self.product)
        x = peer.layout(self.product.irreps_in, x)
        y = peer.restored(
            self.product.irreps_out, run(x, harmonics, basis, self.radial_kernel[...])
        )
        return self.linear(y * self.num_neighbours**-0.5)


def potential(candidate: str, irreps: str, **options: Any) -> models.NequIP:
    """The model of one species, from the same random numbers for each candidate."""
    # Peers need not take a graph without edges, and earlier results are of this option.
    options |= {"recompute_weights": OURS.get(candidate), "subtract_lone_atoms": False}
    model = models.NequIP(1, irreps, rngs=nnx.Rngs(0), **options)
    if candidate not in OURS:
        for step in model.interactions:
            step.conv = PeerConv(step.conv, candidate)
    return model
