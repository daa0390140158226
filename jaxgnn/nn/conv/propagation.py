"""Layers that carry features several steps along the edges: SGC, APPNP and Chebyshev filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Unpack, get_args

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._arrays.identity_cache import IdentityMemory
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, is_concrete, remove_self_loops
from jaxgnn.graph.local.local_graph import max_over_devices
from jaxgnn.nn.conv.gcn_sum import gcn_sum
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import GraphLayer
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, fraction, int_at_least, one_of
from jaxgnn.ops.core.dtypes import accumulation_dtype

LaplacianKind = Literal["sym", "rw"]
"""Normalisations of a Laplacian, besides none."""


class SGConv(GraphLayer):
    """Simple graph convolution: ``y = P^K x W + b``.

    See https://arxiv.org/abs/1902.07153. ``P`` is the normalised adjacency of ``nn.GCNConv``, with
    self loops, and ``K`` the number of steps. It computes what PyTorch Geometric's ``SGConv`` does.
    The steps are taken on the narrower side of ``W``.

    Args:
      num_steps: number of products with ``P``.
      add_self_loops: whether nodes without a self loop get one, of weight one.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1], receivers=[1, 2], num_nodes=3)
      >>> nn.SGConv(8, 4, num_steps=2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 8))).shape
      (3, 4)
    """

    applies_weights = True

    @checked_options()
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_steps: int = 1,
        add_self_loops: bool = True,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        check_widths(self._name, in_features, out_features)
        self.num_steps = num_steps
        self.add_self_loops = add_self_loops
        self.linear = self._linear(in_features, out_features, use_bias=False, rngs=rngs)
        self.bias = self._zeros(out_features, use_bias)

    def __call__(
        self, graph: CSRGraph, x: Float[Array, "*batch nodes in"]
    ) -> Float[Array, "*batch nodes out"]:
        """Applies the convolution.

        Args:
          graph: square graph; one that is already normalised is used unchanged.
          x: features of the nodes; leading axes share the graph.
        """
        self._check(graph, x, self.linear.in_features)
        self._check_square(graph, "since the sum is taken several times")
        p = gcn_sum(self._name, graph, normalize=True, add_self_loops=self.add_self_loops)
        linear_first = self.linear.out_features < self.linear.in_features
        (x,) = self._to_floats(x)
        x = self._apply(self.linear, x) if linear_first else x
        for _ in range(self.num_steps):
            x = p(x, self.implementation)
        x = x if linear_first else self._apply(self.linear, x)
        return self._biased(x)


class APPNP(GraphLayer):
    """Personalised propagation: ``z_{k+1} = (1 - α) P z_k + α x`` for ``K`` steps from ``z_0 = x``.

    See https://arxiv.org/abs/1810.05997. ``P`` is the normalised adjacency of ``nn.GCNConv``, with
    self loops. The layer has no parameters: it follows a network on each separate node. It
    computes what PyTorch Geometric's ``APPNP`` does.

    Args:
      num_steps: number of steps ``K``.
      alpha: share of the node's own features in each step, in [0, 1].
      dropout: probability of dropping an edge or self loop in training, drawn again in each step.
      implementation: name of the kernels of the sparse op; None for the default.
      dtype: dtype of the computation; None for that of the input.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0], receivers=[1], num_nodes=2)
      >>> layer = nn.APPNP(num_steps=1, alpha=0.5, add_self_loops=False, normalize=False)
      >>> layer(graph, jnp.array([[2.0], [4.0]])).tolist()
      [[1.0], [3.0]]
    """

    applies_weights = True

    @checked_options(alpha=fraction)
    def __init__(
        self,
        *,
        num_steps: int = 10,
        alpha: float = 0.1,
        dropout: float = 0.0,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        implementation: ops.Name | None = None,
        dtype: DTypeLike | None = None,
    ):
        super().__init__(dropout=dropout, implementation=implementation, dtype=dtype)
        self.num_steps = num_steps
        self.alpha = alpha
        self.normalize = normalize
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch nodes d"],
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch nodes d"]:
        """Applies the layer.

        Args:
          graph: square graph; one that is already normalised is used unchanged.
          x: features of the nodes; leading axes share the graph.

        Raises:
          ValueError: if graph and features do not fit each other, or ``rngs`` lack the stream.
        """
        self._check(graph, x, None)
        self._check_square(graph, "since the sum is taken several times")
        drawn_from = self._training_rngs(rngs)
        x = jnp.asarray(x)
        x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)
        x = z = x if self.dtype is None else x.astype(self.dtype)
        options = {"normalize": self.normalize, "add_self_loops": self.add_self_loops}
        p = gcn_sum(self._name, graph, **options)
        for _ in range(self.num_steps):
            step = p if drawn_from is None else p.dropped(self.dropout_rate, drawn_from.dropout())
            z = (1 - self.alpha) * step(z, self.implementation) + self.alpha * x
        return z


class ChebConv(GraphLayer):
    """Chebyshev filters of the Laplacian: ``y = Σ_{k<K} T_k(L̂) x W_k + b``.

    See https://arxiv.org/abs/1606.09375. ``L̂ = 2 L / λ - 1``, where λ is the largest eigenvalue of
    the Laplacian ``L`` or a bound of it, and ``T_0 = 1``, ``T_1(z) = z`` and
    ``T_k(z) = 2 z T_{k-1}(z) - T_{k-2}(z)``. By ``normalization``, ``L`` is ``1 - D^-½ A D^-½`` for
    ``"sym"``, ``1 - A D^-1`` for ``"rw"``, a random walk, and ``D - A`` for None, where ``D`` are
    the sums of the weights of the edges that enter each node. Self loops of the graph are ignored
    in ``A``. On undirected graphs it computes what PyTorch Geometric's ``ChebConv`` does; on
    directed ones ``D`` counts outgoing edges there.

    The recurrence runs on the narrower side of ``W_k``: on ``x``, or backwards on ``x W_k``
    (Clenshaw's algorithm).

    Args:
      num_terms: number ``K`` of polynomials, so that ``y_i`` depends on nodes ``K - 1`` steps away.
      normalization: ``"sym"``, ``"rw"`` or None, which select the Laplacian.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1], receivers=[1, 0], num_nodes=2)
      >>> nn.ChebConv(8, 4, num_terms=3, rngs=nnx.Rngs(0))(graph, jnp.ones((2, 8))).shape
      (2, 4)
    """

    applies_weights = True

    @checked_options(
        num_terms=int_at_least(1), normalization=one_of(None, *get_args(LaplacianKind))
    )
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_terms: int = 3,
        normalization: LaplacianKind | None = "sym",
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        check_widths(self._name, in_features, out_features)
        self.normalization: LaplacianKind | None = normalization
        self.linears = nnx.List(
            self._linear(in_features, out_features, use_bias=False, rngs=rngs)
            for _ in range(num_terms)
        )
        self.bias = self._zeros(out_features, use_bias)

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch nodes in"],
        *,
        lambda_max: float | Float[Array, ""] | None = None,
    ) -> Float[Array, "*batch nodes out"]:
        """Applies the convolution.

        Args:
          graph: square graph; with ``normalization="sym"`` one that is already normalised is used
            unchanged, as ``D^-½ A D^-½``.
          x: features of the nodes; leading axes share the graph.
          lambda_max: λ, the largest eigenvalue of the Laplacian, or a bound. None for a bound of
            all of them: 2, or for ``D - A`` twice the largest degree.

        Raises:
          ValueError: if graph and features do not fit each other or the layer, ``lambda_max`` is
            not a positive number, or the graph is normalised for another Laplacian than ``"sym"``.
        """
        first = self.linears[0]
        self._check(graph, x, first.in_features)
        self._check_square(graph, "since the sum is taken several times")
        (x,) = self._to_floats(x)
        options = {"lambda_max": lambda_max, "implementation": self.implementation}
        laplacian = scaled_laplacian(self._name, graph, self.normalization, x.dtype, **options)
        run = self._backward if first.out_features < first.in_features else self._forward
        return self._biased(run(laplacian, x))

    def _forward(self, laplacian, x: Array) -> Array:
        before, now = x, x
        y = self._apply(self.linears[0], x)
        for place, linear in enumerate(self.linears[1:]):
            before, now = now, laplacian(x) if place == 0 else 2 * laplacian(now) - before
            y = y + self._apply(linear, now)
        return y

    def _backward(self, laplacian, x: Array) -> Array:
        """Clenshaw's algorithm: ``b_k = x W_k + 2 L̂ b_{k+1} - b_{k+2}``, from the last term."""
        terms = [self._apply(linear, x) for linear in self.linears]
        if len(terms) == 1:
            return terms[0]
        now, after = terms[-1], jnp.zeros_like(terms[-1])
        for term in terms[-2:0:-1]:
            now, after = term + 2 * laplacian(now) - after, now
        return terms[0] + laplacian(now) - after


def scaled_laplacian(
    where: str,
    graph: CSRGraph,
    normalization: LaplacianKind | None,
    dtype: DTypeLike,
    *,
    lambda_max: Any,
    implementation: ops.Name | None,
) -> Callable[[Array], Array]:
    """The product of ``2 L / λ - 1`` with features [*batch, nodes, width]; see ``ChebConv``.

    Degrees are summed in float32, and in float64 for features of that ``dtype``.
    ``lambda_max`` of None stands for an upper bound of the eigenvalues: 2, or for ``D - A`` twice
    the largest degree.
    """
    _check(where, graph, normalization, lambda_max)
    options = {"implementation": implementation}
    wide = accumulation_dtype(dtype)
    diagonal, of_senders = jnp.ones((), wide), None
    p = graph if graph.is_normalized else _drop_loops(graph)
    if normalization == "sym":
        p = p if p.is_normalized else p.normalized("gcn")
    else:
        degrees: Any = ops.spmm(p, jnp.ones((p.num_cols, 1), wide), **options)
        if normalization is None:
            diagonal = degrees
        else:
            has_edges = degrees > 0
            of_senders = jnp.where(has_edges, 1 / jnp.where(has_edges, degrees, 1), 0)
    if lambda_max is None:
        bound = 2 * max_over_devices(graph, jnp.max(diagonal))
        lambda_max = jnp.where(bound > 0, bound, 2)  # without edges any number is valid
    share = 2.0 / jnp.asarray(lambda_max, wide)

    def laplacian(z: Array) -> Array:
        of_node, of_edge = (share * diagonal - 1).astype(z.dtype), share.astype(z.dtype)
        sent = z if of_senders is None else of_senders.astype(z.dtype) * z
        return of_node * z - of_edge * ops.spmm(p, sent, **options)

    return laplacian


def _check(where: str, graph: CSRGraph, normalization: Any, lambda_max: Any) -> None:
    """Raises ValueError if λ is not positive, or a normalised graph is used without ``"sym"``."""
    is_number = lambda_max is None or jnp.ndim(lambda_max) == 0
    is_known = lambda_max is not None and is_concrete(lambda_max)
    if not is_number or (is_known and not lambda_max > 0):
        raise bad_input(where, "lambda_max", "a positive number", lambda_max)
    if normalization != "sym" and graph.is_normalized:
        expected = f"not normalised, with normalization={normalization!r}"
        raise bad_input(where, "graph", expected, "one that is normalised")


_LOOPLESS: IdentityMemory[CSRGraph | None] = IdentityMemory()


def _drop_loops(graph: CSRGraph) -> CSRGraph:
    """Removes the self loops of a graph; a traced graph keeps them with weight zero."""
    arrays = graph.indptr, graph.indices, graph.weights
    if is_concrete(*arrays):
        loopless = _LOOPLESS.get(arrays, graph.num_cols, lambda: _loopless_on_host(graph))
        return graph if loopless is None else loopless
    weights = graph.weights
    weights = jnp.ones(graph.num_edges, jnp.float32) if weights is None else jnp.asarray(weights)
    is_loop = jnp.asarray(graph.receivers()) == graph.senders_as_rows()
    return graph.with_weights(jnp.where(is_loop, 0, weights))


def _loopless_on_host(graph: CSRGraph) -> CSRGraph | None:
    """Returns the graph without its self loops; None if it has none: only new graphs are cached."""
    loopless = remove_self_loops(graph)
    # Under jit an element of a concrete array would be traced.
    return None if loopless.num_edges == np.asarray(graph.indptr)[-1] else loopless
