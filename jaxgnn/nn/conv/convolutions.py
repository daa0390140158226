"""Graph convolutions, with a MaxK or ReLU activation before the aggregation, and LEConv."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.nn.conv.gcn_sum import gcn_sum
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.dropout import Features, dropout
from jaxgnn.nn.shared.layer import Ends, GraphLayer, Nodes, widths_of_ends
from jaxgnn.nn.shared.linear import FusedLinear, apply_linear
from jaxgnn.nn.shared.maxk import (
    Activation,
    KernelMode,
    aggregate,
    check_widths,
    make_activation,
)
from jaxgnn.nn.shared.options import checked_options, one_of
from jaxgnn.ops.shared import WEIGHTED

_checked = checked_options()


class _Convolution(GraphLayer):
    """Base class of the convolutions that activate their input, or the values they aggregate."""

    applies_weights = True

    def __init__(
        self,
        activation: Activation | None,
        k: int | None,
        width: int,
        kernel_mode: KernelMode,
        *,
        dropout: float,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(dropout=dropout, **common)
        self.activation: Activation | None = activation
        self.maxk = make_activation(self._name, activation, k, width, self.implementation)
        self.kernel_mode: KernelMode = kernel_mode

    def _activate(
        self, graph: CSRGraph, x: Array, rngs: nnx.Rngs | None, k: int | None
    ) -> Features:
        if self.maxk is not None:
            activated = self.maxk(x, k)
        else:
            activated = jax.nn.relu(x) if self.activation == "relu" else x
        return self._drop(graph, activated, rngs)

    def _drop(self, graph: CSRGraph, x: Features, rngs: nnx.Rngs | None) -> Features:
        return dropout(x, self.dropout_rate, self._training_rngs(rngs), graph)

    def _apply_and_activate(
        self,
        graph: CSRGraph,
        layer: FusedLinear,
        x: Array,
        rngs: nnx.Rngs | None,
        k: int | None,
    ) -> Features:
        """Computes ``act(layer(x))`` as one op, then dropout; dense layers fuse the activation."""
        if self.maxk is None:
            activated = self._apply(layer, x)
        elif ops.requested_implementation(self.implementation) in (None, "xla"):
            epilogue = ops.MaxK(self.maxk.k if k is None else k)
            activated = apply_linear(layer, x, self.implementation, activation=epilogue)
        else:
            # An implementation name refers to the kernel of maxk, not to one fused with the
            # product.
            activated = self.maxk(self._apply(layer, x), k)
        return self._drop(graph, activated, rngs)

    def _dense_activation(self) -> ops.Activation | None:
        return "relu" if self.activation == "relu" else None

    def _activate_ends(
        self, graph: CSRGraph, x: Any, widths: Ends[int], activated: Callable[[Array], Features]
    ) -> Ends[Any]:
        """Applies ``activated`` to the checked features of both ends; once if they are the same."""
        ends = self._checked_ends(graph, x, widths)
        if ends.are_one:
            one = activated(ends.dst)
            return Ends(one, one)
        return Ends(*map(activated, ends))

    def _aggregate(self, graph: CSRGraph, x: Features) -> Array:
        return aggregate(graph, x, kernel_mode=self.kernel_mode, implementation=self.implementation)

    def _dense(self, x: Features) -> Array:
        return ops.todense(x, implementation=self.implementation) if isinstance(x, CBSR) else x


class SAGEConv(_Convolution):
    """GraphSAGE: ``y_i = W_self h_i + b + W_neigh mean_j h_j``, ``h = act(x)``.

    See https://arxiv.org/abs/1706.02216. With ``activation="maxk"`` and a mean or a sum, activated
    features are only stored in compressed form.

    Args:
      reduce: reduction of the neighbours instead of the mean, one of those of
        ``ops.neighbour_reduce``. The mean is weighted by the weights of the graph, the sum by its
        weights and scales, and the others refuse a graph that has either.
      activation: ``"maxk"``, ``"relu"`` or None, applied to the input.
      dropout: probability of zeroing an activated entry in training.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> layer = nn.SAGEConv(8, 4, activation="maxk", k=2, rngs=nnx.Rngs(0))
      >>> layer(graph, jnp.ones((3, 8))).shape
      (3, 4)
    """

    @checked_options(reduce=one_of(*get_args(ops.Aggregation)))
    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        reduce: ops.Aggregation = "mean",
        activation: Activation | None = None,
        k: int | None = None,
        dropout: float = 0.0,
        kernel_mode: KernelMode = "auto",
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        of = widths_of_ends(self._name, in_features)
        check_widths(self._name, out_features)
        super().__init__(activation, k, min(of), kernel_mode, dropout=dropout, **common)
        self.in_widths: Ends[int] = of
        self.reduce: ops.Aggregation = reduce
        self.applies_weights = reduce in WEIGHTED
        self.self_linear = self._linear(of.dst, out_features, rngs=rngs)
        self.neighbor_linear = self._linear(of.src, out_features, use_bias=False, rngs=rngs)

    def __call__(
        self,
        graph: CSRGraph,
        x: Nodes,
        *,
        rngs: nnx.Rngs | None = None,
        k: int | None = None,
    ) -> Float[Array, "*batch rows out"]:
        """Applies the convolution.

        Args:
          graph: rows are receivers, columns are senders. The mean is over the edges that enter a
            node, weighted if the graph has weights. A graph that is already normalised is used
            unchanged.
        """

        def activated(x: Array) -> Features:
            is_floating = jnp.issubdtype(x.dtype, jnp.floating)
            return self._activate(graph, x if is_floating else x.astype(self.param_dtype), rngs, k)

        h = self._activate_ends(graph, x, self.in_widths, activated)
        neighbors = self._reduced(graph, h.src)
        return self._apply(self.self_linear, h.dst) + self._apply(self.neighbor_linear, neighbors)

    def _reduced(self, graph: CSRGraph, h: Features) -> Array:
        """The reduction of the neighbours of each row."""
        if self.reduce == "mean":
            return self._aggregate(graph if graph.is_normalized else graph.normalized("mean"), h)
        if self.reduce == "sum":
            return self._aggregate(graph, h)
        options = {"implementation": self.implementation}
        return ops.neighbour_reduce(graph, self._dense(h), self.reduce, **options)


class GCNConv(_Convolution):
    """Graph convolution: ``y_i = Σ_j w_ij h_j / √(d_i d_j) + b``, ``h = act(W x)``.

    See https://arxiv.org/abs/1609.02907. ``d_i`` is the sum of the weights of the edges that enter
    node ``i``, self loops included; an unweighted graph has the weight one everywhere. Without an
    ``activation`` the layer computes what PyTorch Geometric's ``GCNConv`` does, on directed and on
    weighted graphs too: nodes without a self loop get one of weight one, and existing ones keep
    their weight. (Of several loops of one node all count here, and only the last one there.)

    A normalised graph is used unchanged. If the graph is an argument of a jitted function, prepare
    it once for all layers, by ``graph.with_self_loops().normalized("gcn")``. The coefficients of
    other graphs are computed in every call if they are traced, and once if they are concrete.

    Args:
      activation: ``"maxk"``, ``"relu"`` or None, between the product and the aggregation.
      dropout: probability of zeroing an activated entry in training.
      normalize: whether to divide by ``√(d_i d_j)``. Without it no self loops are added, and the
        sum is weighted only by the weights of the graph.
      use_linear_bias: whether to add a bias before the activation as well, which MaxK-GNN does.

    Raises:
      ValueError: if an option has a type or value other than described above, or self loops are
        requested without ``normalize``.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1], receivers=[1, 2], num_nodes=3)
      >>> layer = nn.GCNConv(8, 4, rngs=nnx.Rngs(0))
      >>> layer(graph, jnp.ones((3, 8))).shape
      (3, 4)
    """

    @_checked
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: Activation | None = None,
        k: int | None = None,
        dropout: float = 0.0,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        use_linear_bias: bool = False,
        kernel_mode: KernelMode = "auto",
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        check_widths(type(self).__name__, in_features, out_features)
        if add_self_loops and not normalize:
            expected = "False or None with normalize=False, which uses the graph unchanged"
            raise bad_input(type(self).__name__, "add_self_loops", expected, add_self_loops)
        super().__init__(activation, k, out_features, kernel_mode, dropout=dropout, **common)
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        self.normalize = normalize
        options = {"activation": self._dense_activation(), "use_bias": use_linear_bias}
        self.linear = self._linear(in_features, out_features, **options, rngs=rngs)
        self.bias = self._zeros(out_features)

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch nodes in"],
        *,
        rngs: nnx.Rngs | None = None,
        k: int | None = None,
    ) -> Float[Array, "*batch nodes out"]:
        """Applies the convolution.

        Args:
          graph: square graph; one that is already normalised is used unchanged, and may have
            other numbers of senders and receivers.

        Warns:
          UserWarning: once, if self loops are requested for a graph that is already normalised and
            concrete, and lacks some.
        """
        self._check(graph, x, self.linear.in_features)
        h = self._apply_and_activate(graph, self.linear, x, rngs, k)
        options = {"normalize": self.normalize, "add_self_loops": self.add_self_loops}
        neighbors = gcn_sum(self._name, graph, **options)
        aggregated = self._aggregate(neighbors.graph, h)
        if neighbors.loops is not None:
            aggregated = neighbors.add_loop_terms(aggregated, self._dense(h))
        return self._biased(aggregated)


class GINConv(_Convolution):
    """Graph isomorphism convolution: ``y_i = mlp((1 + ε) h_i + Σ_j h_j)``, ``h = act(W x + b)``.

    See https://arxiv.org/abs/1810.00826. ε is learnt, from zero. The published layer, which PyTorch
    Geometric also has, has neither W nor an activation before the sum: ``linear=False``.

    Args:
      in_features: width of the input, of both ends.
      out_features: width of the sum; without an ``mlp``, width of the output.
      activation: ``"maxk"``, ``"relu"`` or None, applied before the aggregation.
      dropout: probability of zeroing an activated entry in training.
      linear: whether a linear layer precedes the activation; without it ``h = act(x)``, and
        ``out_features`` equals ``in_features``.
      mlp: module applied to the sum, as in the paper; None returns the sum itself, as in
        MaxK-GNN.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1], receivers=[1, 0], num_nodes=2)
      >>> rngs = nnx.Rngs(0)
      >>> mlp = nn.FusedMLP([8, 16, 4], activation="relu", rngs=rngs)
      >>> layer = nn.GINConv(8, 8, linear=False, mlp=mlp, rngs=rngs)
      >>> layer(graph, jnp.ones((2, 8))).shape
      (2, 4)
    """

    @_checked
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: Activation | None = None,
        k: int | None = None,
        dropout: float = 0.0,
        linear: bool = True,
        mlp: nnx.Module | None = None,
        kernel_mode: KernelMode = "auto",
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        name = type(self).__name__
        check_widths(name, in_features, out_features)
        if not linear and in_features != out_features:
            expected = f"in_features, {in_features}, with linear=False"
            raise bad_input(name, "out_features", expected, out_features)
        super().__init__(activation, k, out_features, kernel_mode, dropout=dropout, **common)
        self.in_features = in_features
        options = {"activation": self._dense_activation(), "rngs": rngs}
        self.linear = self._linear(in_features, out_features, **options) if linear else None
        self.epsilon = nnx.Param(jnp.zeros((), self.param_dtype))
        self.mlp = mlp

    def __call__(
        self,
        graph: CSRGraph,
        x: Nodes,
        *,
        rngs: nnx.Rngs | None = None,
        k: int | None = None,
    ) -> Float[Array, "*batch rows out"]:
        """Applies the convolution; the sum is not normalised by this layer.

        Args:
          graph: rows are receivers, columns are senders; one that is already normalised is used
            unchanged.
          x: features of the nodes of a square graph, whose leading axes share the graph; or a pair
            ``(x_dst, x_src)`` of the receivers' and the senders' features, of one width.
        """

        def activated(x: Array) -> Features:
            if self.linear is not None:
                return self._apply_and_activate(graph, self.linear, x, rngs, k)
            (floats,) = self._to_floats(x)
            return self._activate(graph, floats, rngs, k)

        h = self._activate_ends(graph, x, Ends(self.in_features, self.in_features), activated)
        neighbors = self._aggregate(graph, h.src)
        total = (1 + self.epsilon[...].astype(neighbors.dtype)) * self._dense(h.dst) + neighbors
        return total if self.mlp is None else self._apply_mlp(self.mlp, total)


class LEConv(GraphLayer):
    """Differences to neighbours: ``y_i = W_self x_i + b + Σ_j w_ij (W_src x_j + c - W_dst x_i)``.

    The local extremum convolution of https://arxiv.org/abs/1911.07979, as PyTorch Geometric's
    ``LEConv`` computes it. Without self loops or a normalisation it can detect nodes whose features
    are extremes of their neighbourhood, which is used to select the nodes of a pooling.

    Args:
      use_bias: whether to add the biases b and c.

    Example:
      >>> papers = CSRGraph.from_edges([0, 3], [1, 0], 2, num_senders=4)
      >>> layer = nn.LEConv((8, 5), 4, rngs=nnx.Rngs(0))
      >>> layer(papers, (jnp.ones((2, 8)), jnp.ones((4, 5)))).shape
      (2, 4)
    """

    applies_weights = True

    @checked_options()
    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        self.in_widths = widths_of_ends(self._name, in_features)
        check_widths(self._name, out_features)
        dst, src = self.in_widths
        self.sender_linear = self._linear(src, out_features, use_bias=use_bias, rngs=rngs)
        self.receiver_linear = self._linear(dst, out_features, use_bias=False, rngs=rngs)
        self.self_linear = self._linear(dst, out_features, use_bias=use_bias, rngs=rngs)

    def __call__(self, graph: CSRGraph, x: Nodes) -> Float[Array, "*batch rows out"]:
        """Applies the convolution.

        Args:
          graph: rows are receivers, columns are senders; its weights are used, and the scales of a
            normalised graph.
        """
        ends = self._ends(graph, x, self.in_widths)
        messages = self._apply(self.sender_linear, ends.src)
        options = {"implementation": self.implementation}
        ones = jnp.ones((graph.num_cols, 1), messages.dtype)
        totals = ops.spmm(graph, ones, **options)  # sums of the weights of each row
        differences = ops.spmm(graph, messages, **options) - totals * self._apply(
            self.receiver_linear, ends.dst
        )
        return self._apply(self.self_linear, ends.dst) + differences
