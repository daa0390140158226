"""Equivariant convolution: neighbours times spherical harmonics, weighted by a radial network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.equivariant import Irreps, separate_paths
from jaxgnn.equivariant.irreps import as_irreps
from jaxgnn.graph import CSRGraph
from jaxgnn.nn.equivariant.equivariant_linear import EquivariantLinear
from jaxgnn.nn.equivariant.normalized import SECOND_MOMENTS
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import GraphLayer, zero_padding_edges
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, flag, int_at_least, or_none, positive

_BEHIND_SILU = nnx.initializers.variance_scaling(1 / SECOND_MOMENTS["silu"], "fan_in", "normal")
_BEHIND_BASIS = nnx.initializers.variance_scaling(1.0, "fan_in", "normal")


class EquivariantConv(GraphLayer):
    """Equivariant convolution: ``y_i = L (Σ_j w(b_ij) C (x_j ⊗ Y_ij)) / √n``.

    ``x_j ⊗ Y_ij`` are all tensor products of the sender's features with the spherical harmonics of
    the edge that have an irrep of ``irreps_out``, each with a weight for each channel. The weights
    are a network of the basis ``b_ij`` of the distance, with silu between its layers and
    without biases, so an edge whose basis is zero has no part in the sum. L is a
    ``nn.EquivariantLinear``, and n the number of neighbours. This is the convolution of NequIP
    (https://arxiv.org/abs/2101.03164). The last layer of the network is applied inside of
    ``ops.tensor_product_sum``. Differentiable twice, for losses of forces. A graph with weights or
    scales is refused.

    If vectors of edges and ``x`` are rotated or reflected, so is the result.

    Args:
      irreps_in: irreps of the features of the senders.
      irreps_sh: irreps of the spherical harmonics, such as ``"0e+1o+2e"``.
      irreps_out: irreps of the result.
      num_basis: number of functions in the basis of a distance.
      radial_features: widths of the hidden layers of the radial network.
      num_neighbours: typical number of neighbours n, whose root divides the sum.
      precision: products of float32 numbers in ``"highest"``, ``"tf32"`` or ``"bf16x3"``
        precision; None for the setting of JAX.
      recompute_weights: whether kernels of a GPU make the weights wherever they use them, in
        about a third of the memory, but slower; None if they would take more than 2 GiB.

    Example:
      >>> from jaxgnn.equivariant import spherical_harmonics
      >>> from jaxgnn.graph import radius_graph
      >>> points = jnp.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
      >>> edges = radius_graph(points, 3.0)
      >>> distances = edges.distances(points)
      >>> envelope = nn.polynomial_envelope(distances, 3.0)[:, None]
      >>> basis = nn.BesselBasis(8, 3.0)(distances) * envelope
      >>> harmonics = spherical_harmonics("0e+1o", edges.displacements(points))
      >>> conv = nn.EquivariantConv("8x0e", "0e+1o", "8x0e+4x1o", num_basis=8, rngs=nnx.Rngs(0))
      >>> conv(edges.graph(), jnp.ones((3, 8)), harmonics, basis).shape
      (3, 20)
    """

    @checked_options(
        num_basis=int_at_least(1), num_neighbours=positive, recompute_weights=or_none(flag)
    )
    def __init__(
        self,
        irreps_in: Irreps | str,
        irreps_sh: Irreps | str,
        irreps_out: Irreps | str,
        *,
        num_basis: int,
        radial_features: Sequence[int] = (64, 64),
        num_neighbours: float = 1.0,
        precision: ops.Precision | None = "highest",
        recompute_weights: bool | None = None,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        self.irreps_in = as_irreps(self._name, "irreps_in", irreps_in)
        self.irreps_sh = as_irreps(self._name, "irreps_sh", irreps_sh)
        self.irreps_out = as_irreps(self._name, "irreps_out", irreps_out)
        self._check_reachable()
        if not isinstance(radial_features, Sequence):
            raise bad_input(self._name, "radial_features", "a sequence of widths", radial_features)
        check_widths(f"{self._name}: radial_features", *radial_features)
        self.num_basis, self.num_neighbours = num_basis, num_neighbours
        self.precision, self.recompute_weights = precision, recompute_weights
        self.product = separate_paths(self.irreps_in, self.irreps_sh, keep=self.irreps_out)
        widths = [num_basis, *radial_features]
        inits = [_BEHIND_BASIS, *[_BEHIND_SILU] * len(radial_features)]
        options: dict[str, Any] = {"activation": "silu", "use_bias": False, "rngs": rngs}
        options |= {"precision": precision}
        self.radial = nnx.List(
            self._linear(before, after, kernel_init=init, **options)
            for before, after, init in zip(widths, widths[1:], inits, strict=False)
        )
        shape = widths[-1], self.product.num_weights
        self.radial_kernel = nnx.Param(inits[-1](rngs.params(), shape, self.param_dtype))
        self.linear = EquivariantLinear(
            self.product.irreps_out, self.irreps_out, precision=precision, rngs=rngs, **self._dtypes
        )

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch cols in"],
        harmonics: Float[Array, "*#batch edges sh"],
        basis: Float[Array, "*#batch edges num_basis"],
    ) -> Float[Array, "*batch rows out"]:
        """Applies the convolution.

        Args:
          x: features of the senders, of ``irreps_in``; leading axes share the graph.
          harmonics: spherical harmonics of each edge slot, of ``irreps_sh``.
          basis: features of the distance of each edge slot, zero where the edge is ignored.
        """
        self._check(graph, x, self.irreps_in.dim)
        (x,) = self._to_floats(x)
        hidden = self._checked_edges(graph, "basis", basis, self.num_basis, x).astype(x.dtype)
        harmonics = self._checked_edges(graph, "harmonics", harmonics, self.irreps_sh.dim, x)
        for layer in self.radial:
            hidden = self._apply(layer, hidden)
        y = ops.tensor_product_sum(
            graph,
            x,
            harmonics,
            basis=hidden,
            kernel=self.radial_kernel[...],
            precision=self.precision,
            recompute_weights=self.recompute_weights,
            implementation=self.implementation,
            **self.product.arguments,
        )
        return self.linear(y * (1 / math.sqrt(self.num_neighbours)))

    def _check_reachable(self) -> None:
        """Raises ValueError if an entry of the result would always be zero."""
        reachable = {
            irrep
            for entry in self.irreps_in
            for harmonic in self.irreps_sh
            for irrep in entry.irrep.products(harmonic.irrep)
        }
        for entry in self.irreps_out:
            if entry.irrep not in reachable:
                expected = f"of irreps of the product of {self.irreps_in} and {self.irreps_sh}"
                got = f"{self.irreps_out}, with {entry}"
                raise bad_input(self._name, "irreps_out", expected, got)

    def _checked_edges(
        self, graph: CSRGraph, name: str, features: Any, width: int, x: Array
    ) -> Array:
        """Returns features of edges, zeros in padding; raises ValueError for another width."""
        array = as_jax(self._name, name, features)
        is_floating = jnp.issubdtype(array.dtype, jnp.floating)
        batch = array.shape[:-2]
        fits = array.shape[-2:] == (graph.num_edges, width) and batch in ((), x.shape[:-2])
        if not fits or not is_floating:
            expected = f"floating [{graph.num_edges}, {width}], a row for each edge slot"
            raise bad_input(self._name, name, expected, f"{array.dtype}{list(array.shape)}")
        return zero_padding_edges(graph, array)
