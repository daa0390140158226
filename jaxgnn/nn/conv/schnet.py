"""SchNet: convolutions whose filters are functions of distances."""

from __future__ import annotations

import math
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule
from jaxgnn.nn.shared.layer import GraphLayer, Nodes, widths_of_ends
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, int_at_least, positive, require

_checked = checked_options(
    cutoff=positive, num_filters=int_at_least(1), num_gaussians=int_at_least(2)
)


def shifted_softplus(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``log(½ e^x + ½)``, a smooth softplus that is zero at zero.

    Args:
      x: numbers of any shape.

    Example:
      >>> float(shifted_softplus(jnp.zeros(())))
      0.0
    """
    return jax.nn.softplus(x) - math.log(2)


def gaussian_smearing(
    distances: Float[Array, "*edges"], cutoff: float, num_gaussians: int
) -> Float[Array, "*edges num_gaussians"]:
    """Distances as features: ``exp(-½ ((d - c_k) / s)²)`` at equally spaced centres ``c_k``.

    The centres go from 0 to ``cutoff``, both included, and s is the distance between two of them.

    Args:
      distances: lengths of edges, in the unit of ``cutoff``.
      cutoff: the last centre.
      num_gaussians: number of centres, at least two.

    Returns:
      The features, in a new last axis, in the dtype of the distances, or JAX's default float dtype
      if they are integers.

    Raises:
      ValueError: if ``cutoff`` is not positive, or ``num_gaussians`` is not an int of at least two.

    Example:
      >>> np.asarray(gaussian_smearing(jnp.array([0.0, 1.0]), 1.0, 2), float).round(3).tolist()
      [[1.0, 0.607], [0.607, 1.0]]
    """
    require("nn.gaussian_smearing", "cutoff", cutoff, positive)
    require("nn.gaussian_smearing", "num_gaussians", num_gaussians, int_at_least(2))
    distances = jnp.asarray(distances)
    if not jnp.issubdtype(distances.dtype, jnp.floating):
        distances = distances.astype(jnp.result_type(float))
    centres = jnp.asarray(np.linspace(0, cutoff, num_gaussians), distances.dtype)
    apart = (distances[..., None] - centres) * ((num_gaussians - 1) / cutoff)
    return jnp.exp(-0.5 * apart * apart)


def cosine_cutoff(distances: Float[Array, "*edges"], cutoff: float) -> Float[Array, "*edges"]:
    """``½ (cos(π d / cutoff) + 1)``, from 1 at zero to 0 at ``cutoff``, and 0 beyond.

    Args:
      distances: lengths of edges, in the unit of ``cutoff``.
      cutoff: distance at which it becomes zero, as does its first derivative.

    Raises:
      ValueError: if ``cutoff`` is not positive.

    Example:
      >>> np.asarray(cosine_cutoff(jnp.array([0.0, 1.0, 3.0]), 2.0)).round(3).tolist()
      [1.0, 0.5, 0.0]
    """
    require("nn.cosine_cutoff", "cutoff", cutoff, positive)
    is_inside = distances < cutoff
    # The cosine of infinity is NaN, and so is its gradient, even where it is unused.
    angles = jnp.where(is_inside, distances, 0) * (math.pi / cutoff)
    return jnp.where(is_inside, 0.5 * (jnp.cos(angles) + 1), 0)


class CFConv(GraphLayer):
    """Continuous-filter convolution: ``y_i = W₂ Σ_j (W₁ x_j) ⊙ f(d_ij) C(d_ij) + b``.

    The filter f is a network of two layers, with ``shifted_softplus`` between them, on the
    ``gaussian_smearing`` of the distance; C is ``cosine_cutoff``. See
    https://arxiv.org/abs/1706.08566. It computes what PyTorch Geometric's ``CFConv`` does with the
    filter network of its ``SchNet``, and is zero beyond the cutoff. Differentiable in the distances
    twice, so that a loss may contain forces. A graph with weights or scales is refused.

    Args:
      in_features: width of the features of the senders.
      num_filters: width of the filters.
      num_gaussians: number of features of a distance.
      cutoff: distance beyond which edges are ignored, in the unit of the distances.

    Example:
      >>> from jaxgnn.graph import radius_graph
      >>> points = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
      >>> edges = radius_graph(points, 3.0)
      >>> layer = nn.CFConv(8, 4, num_filters=16, cutoff=3.0, rngs=nnx.Rngs(0))
      >>> layer(edges.graph(), jnp.ones((3, 8)), edges.distances(points)).shape
      (3, 4)
    """

    @_checked
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_filters: int = 128,
        num_gaussians: int = 50,
        cutoff: float = 10.0,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        check_widths(self._name, in_features, out_features)
        self.in_features, self.num_gaussians, self.cutoff = in_features, num_gaussians, cutoff
        self.sender_linear = self._linear(in_features, num_filters, use_bias=False, rngs=rngs)
        self.filter_hidden = self._linear(num_gaussians, num_filters, rngs=rngs)
        self.filter_linear = self._linear(num_filters, num_filters, rngs=rngs)
        self.linear = self._linear(num_filters, out_features, rngs=rngs)

    def __call__(
        self,
        graph: CSRGraph,
        x: Nodes,
        distances: Float[Array, "*#batch edges"],
    ) -> Float[Array, "*batch rows out"]:
        """Applies the convolution.

        Args:
          x: features of the nodes of a square graph, whose leading axes share the graph; or a pair
            ``(x_dst, x_src)``, of which only the senders' features are read.
          distances: length of each edge slot, such as ``NeighbourEdges.distances``, with or
            without the leading axes of ``x``.
        """
        widths = widths_of_ends(self._name, self.in_features)
        ends = self._ends(graph, x, widths)
        features = self._apply(self.sender_linear, ends.src)
        filters = self._filters(graph, distances, ends.src).astype(features.dtype)
        y = ops.filtered_sum(graph, features, filters, implementation=self.implementation)
        return self._apply(self.linear, y)

    def _filters(self, graph: CSRGraph, edge_distances: Any, x: Array) -> Array:
        """Computes the filter of each edge, [*batch, edges, num_filters]."""
        distances = jnp.asarray(edge_distances)
        if distances.shape[-1:] != (graph.num_edges,) or distances.shape[:-1] not in (
            (),
            x.shape[:-2],
        ):
            expected = f"of shape [{graph.num_edges}], one for each edge slot"
            raise bad_input(self._name, "distances", expected, f"shape {distances.shape}")
        if not jnp.issubdtype(distances.dtype, jnp.floating):
            raise bad_input(self._name, "distances", "of a floating dtype", distances.dtype)
        # Padding may contain anything.
        distances = jnp.where(graph.receivers() < graph.num_rows, distances, 0)
        smeared = gaussian_smearing(distances, self.cutoff, self.num_gaussians).astype(x.dtype)
        hidden = shifted_softplus(self._apply(self.filter_hidden, smeared))
        cutoff = cosine_cutoff(distances, self.cutoff).astype(x.dtype)
        return self._apply(self.filter_linear, hidden) * cutoff[..., None]


class SchNetInteraction(DocumentedModule):
    """SchNet's interaction block: ``v = W shifted_softplus(cfconv(x)) + b``.

    A network adds it to its input, ``x + block(graph, x, distances)``, several times. See
    https://arxiv.org/abs/1706.08566. It computes what PyTorch Geometric's ``InteractionBlock``
    does.

    Args:
      features: width of the input and of the output.
      num_filters: width of the filters.
      num_gaussians: number of features of a distance.
      cutoff: distance beyond which edges are ignored, in the unit of the distances.
      implementation: name of the kernels of the sparse ops; linear layers run the fastest kernels
        unless it is ``"xla"``. None for the default.

    Example:
      >>> from jaxgnn.graph import radius_graph
      >>> points = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
      >>> edges = radius_graph(points, 3.0)
      >>> block = nn.SchNetInteraction(8, num_filters=16, cutoff=3.0, rngs=nnx.Rngs(0))
      >>> x = jnp.ones((3, 8))
      >>> (x + block(edges.graph(), x, edges.distances(points))).shape
      (3, 8)
    """

    @_checked
    def __init__(
        self,
        features: int,
        *,
        num_filters: int = 128,
        num_gaussians: int = 50,
        cutoff: float = 10.0,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        sizes: dict[str, Any] = {"num_filters": num_filters, "num_gaussians": num_gaussians}
        self.conv = CFConv(features, features, **sizes, cutoff=cutoff, rngs=rngs, **common)
        self.linear = self.conv._linear(features, features, rngs=rngs)

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch nodes features"],
        distances: Float[Array, "*#batch edges"],
    ) -> Float[Array, "*batch nodes features"]:
        """Applies the block.

        Args:
          graph: square graph; rows are receivers, columns are senders.
          x: features of the nodes; leading axes share the graph.
          distances: length of each edge slot, such as ``NeighbourEdges.distances``, with or
            without the leading axes of ``x``.
        """
        y = shifted_softplus(self.conv(graph, x, distances))
        return self.conv._apply(self.linear, y)
