"""A transformer whose nodes attend to their neighbours, and through virtual nodes to all nodes."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxgnn import ops
from jaxgnn._arrays.arrays import shown_sides
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, GraphBatch
from jaxgnn.graph.csr.require_graph import refuse_weights
from jaxgnn.models._layer_scan import HyperBody
from jaxgnn.models._virtual_nodes import VirtualNodes, graph_ids, num_graphs, virtual_nodes
from jaxgnn.models.saveable import saveable
from jaxgnn.nn import FusedLinear, FusedMLP, apply_linear, check_widths
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule, Settings
from jaxgnn.nn.shared.dropout import Dropout, training_rngs
from jaxgnn.nn.shared.linear import apply_mlp
from jaxgnn.nn.shared.maxk import check_kept
from jaxgnn.nn.shared.options import checked_options, flag, int_at_least, or_none, rate
from jaxgnn.ops.core.dtypes import accumulation_dtype

_NAME = "GraphTransformer"
_LAYER_NORM_EPSILON = 1e-5


@saveable
class GraphTransformer(DocumentedModule):
    """Transformer on graphs: nodes attend to their neighbours, and optionally to all nodes.

    ``lin_in`` and the positions' linear map, then ``num_layers`` times these branches, then a
    LayerNorm and ``lin_out``. Each branch begins with a LayerNorm and is added to its input:

    - ``ops.dot_attention`` over the senders of each node, with ``heads`` heads;
    - with ``virtual_nodes=n`` attention through n virtual nodes of each graph. They attend to all
      nodes of their graph by learnt queries, and all nodes attend to them (the induced points of
      https://arxiv.org/abs/1810.00825). This takes time and memory in proportion to the nodes;
    - an MLP with one hidden layer of ``mlp_features`` and GELU.

    A node attends to itself only in a graph with self loops; nodes without edges get nothing from
    their neighbours. A graph with weights or scales is refused.

    With ``k`` each head keeps the k largest of its values, as MaxK-GNN does before its
    aggregation (https://arxiv.org/abs/2312.08656). With ``hyper_connections=n`` the branches are
    those of ``nn.HyperConnection`` over n streams, and ``nn.HyperHead`` joins the streams.

    Features of edges are mapped linearly to a number for each head, which is added to the score of
    the edge; and, unless ``edge_values`` is False, to values that are added to those of its sender.

    Positions of nodes are features that describe their place in the graph, for example
    ``graph.laplacian_positions`` and ``graph.random_walk_positions``. The sign of a Laplacian
    eigenvector is arbitrary: in training, each eigenvector of each graph is multiplied with a
    random sign in each step.

    Args:
      hidden_features: width of the layers, a multiple of ``heads``.
      out_features: number of classes, or of tasks.
      num_layers: number of layers.
      mlp_features: width inside the MLPs; None for twice ``hidden_features``.
      k: kept entries of each head's values, at most ``hidden_features / heads``; None for all.
      edge_features: width of the edges' features, zero if there are none.
      edge_values: whether edges have values besides scores; ignored without edge features.
      laplacian_features: number of Laplacian eigenvectors, zero if there are none.
      walk_features: width of other positions, zero if there are none.
      virtual_nodes: number of virtual nodes of each graph, zero for attention to neighbours alone.
      hyper_connections: number of streams, or None for residual connections.
      dropout: probability of zeroing an entry of a branch's result in training.
      attention_dropout: probability of dropping a neighbour for a head in training.
      implementation: name of the kernels of the sparse ops and of hyper-connections; linear layers
        run the fastest kernels unless it is ``"xla"``. None for the default.

    Example:
      >>> from jaxgnn.graph import laplacian_positions
      >>> graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3).with_self_loops()
      >>> options = {"num_layers": 2, "laplacian_features": 2, "virtual_nodes": 1}
      >>> model = GraphTransformer(8, 16, 5, **options, rngs=nnx.Rngs(0))
      >>> model(graph, jnp.ones((3, 8)), laplacian=laplacian_positions(graph, 2)).shape
      (3, 5)
    """

    @checked_options(
        k=or_none(int_at_least(1)),
        edge_values=flag,
        laplacian_features=int_at_least(0),
        walk_features=int_at_least(0),
        virtual_nodes=int_at_least(0),
        hyper_connections=or_none(int_at_least(1)),
        attention_dropout=rate,
    )
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 4,
        heads: int = 4,
        mlp_features: int | None = None,
        k: int | None = None,
        edge_features: int = 0,
        edge_values: bool = True,
        laplacian_features: int = 0,
        walk_features: int = 0,
        virtual_nodes: int = 0,
        hyper_connections: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        mlp = 2 * hidden_features if mlp_features is None else mlp_features
        check_widths(_NAME, in_features, hidden_features, out_features, mlp)
        if hidden_features % heads:
            expected = f"a multiple of {heads} heads"
            raise bad_input(_NAME, "hidden_features", expected, hidden_features)
        if k is not None:
            check_kept(_NAME, k, hidden_features // heads)
        sizes = _Sizes(hidden_features, heads, k, edge_features, edge_values, virtual_nodes, mlp)
        settings = Settings(**common)
        implementation, options = settings.implementation, settings.dtypes | {"rngs": rngs}
        self.sizes = sizes
        self.laplacian_features = laplacian_features
        self.walk_features = walk_features
        self.implementation = implementation
        self.lin_in = FusedLinear(in_features, hidden_features, **options)
        positions = laplacian_features + walk_features
        self.signs = _RandomSigns() if laplacian_features else None
        self.lin_positions = (
            FusedLinear(positions, hidden_features, use_bias=False, **options)
            if positions
            else None
        )
        branches = [
            branch
            for _ in range(num_layers)
            for branch in _branches(sizes, (dropout, attention_dropout), implementation, options)
        ]
        if hyper_connections is None:
            self.body = _Residuals(branches)
        else:
            streams = {"num_streams": hyper_connections, "implementation": implementation}
            streams |= {"features": hidden_features, "rngs": rngs}
            self.body = HyperBody(branches, None, False, streams)
        self.norm = _Norm(hidden_features, options)
        self.lin_out = FusedLinear(hidden_features, out_features, **options)

    def __call__(
        self,
        graph: CSRGraph | GraphBatch,
        x: Float[Array, "*batch nodes in"] | CSRGraph,
        *,
        edge_features: Float[Array, "*#batch edges f"] | None = None,
        laplacian: Float[Array, "*#batch nodes p"] | None = None,
        walks: Float[Array, "*#batch nodes w"] | None = None,
        node_mask: Bool[Array, " nodes"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch nodes out"]:
        """Returns the scores of each node; those of padding nodes are undefined.

        Args:
          graph: one graph, or a batch of graphs, whose virtual nodes are not shared.
          x: node features; for bags of words and other rows of mostly zeros also a sparse matrix,
            ``CSRGraph.from_scipy(matrix)`` with a row for each node and a column for each feature.
          edge_features: features of the edge slots.
          laplacian: Laplacian eigenvectors, a column each.
          walks: other positions of the nodes, such as return probabilities of random walks.
          node_mask: for one padded graph, False for nodes that virtual nodes must not read. A batch
            has its own mask.

        Raises:
          ValueError: if the graph is not square or has weights or scales, shapes do not match the
            graph or the options, or there is a ``node_mask`` beside a batch.
        """
        surroundings = self._surroundings(graph, edge_features, node_mask)
        nodes = surroundings.graph.num_rows
        _check_nodes(x, nodes, self.lin_in.in_features)
        h = apply_linear(self.lin_in, x, self.implementation)
        if self.signs is not None:
            _check_given("laplacian", laplacian, (nodes, self.laplacian_features))
            laplacian = self.signs(laplacian, graph, rngs)
        else:
            _check_given("laplacian", laplacian, (nodes, 0))
        _check_given("walks", walks, (nodes, self.walk_features))
        if self.lin_positions is not None:
            parts = [jnp.asarray(p).astype(h.dtype) for p in (laplacian, walks) if p is not None]
            positions = jnp.concatenate(parts, axis=-1)
            h = h + apply_linear(self.lin_positions, positions, self.implementation).astype(h.dtype)
        h = self.norm(self.body(surroundings, h, rngs=rngs))
        return apply_linear(self.lin_out, h, self.implementation)

    def _surroundings(
        self,
        graph: CSRGraph | GraphBatch,
        edge_features: Array | None,
        node_mask: Array | None,
    ) -> _Surroundings:
        """Checks the inputs that a node reads, and adds virtual nodes."""
        if not isinstance(graph, CSRGraph | GraphBatch):
            raise bad_input(_NAME, "graph", "a CSRGraph or a GraphBatch", type(graph).__name__)
        if isinstance(graph, GraphBatch) and node_mask is not None:
            raise bad_input(_NAME, "node_mask", "None for a GraphBatch, which has its own", "one")
        structure = graph.graph if isinstance(graph, GraphBatch) else graph
        refuse_weights(_NAME, "graph", structure, "pass weights as edge_features")
        if not structure.is_square:
            raise bad_input(_NAME, "graph", "square", shown_sides(structure))
        if node_mask is not None:
            _check_mask(node_mask, structure.num_rows)
        sizes = self.sizes
        _check_given("edge_features", edge_features, (structure.num_edges, sizes.edge_features))
        joined = None
        if sizes.virtual_nodes:
            joined = virtual_nodes(graph, sizes.virtual_nodes, node_mask)
        features = None
        if edge_features is not None:  # padding slots are undefined
            real = (structure.receivers() < structure.num_rows)[:, None]
            features = jnp.where(real, edge_features, 0)
        return _Surroundings(structure, features, joined)


class _Sizes(NamedTuple):
    """Sizes of the branches, as ``GraphTransformer`` describes them."""

    features: int
    heads: int
    k: int | None
    edge_features: int
    edge_values: bool
    virtual_nodes: int
    mlp_features: int


class _Surroundings(NamedTuple):
    """The inputs of the branches besides the features of the nodes [*batch, nodes, d]."""

    graph: CSRGraph
    edge_features: Array | None
    virtual: VirtualNodes | None


def _check_nodes(x: Array | CSRGraph, nodes: int, width: int) -> None:
    """Checks the rows of ``x``; the width of a sparse matrix is checked where it is multiplied."""
    if isinstance(x, CSRGraph):
        if x.num_rows != nodes:
            expected, got = f"of one row for each of {nodes} nodes", f"{x.num_rows} rows"
            raise bad_input(_NAME, "x", expected, got)
    elif x.ndim < 2 or x.shape[-2:] != (nodes, width):
        expected = f"of shape [..., {nodes}, {width}], nodes by features"
        raise bad_input(_NAME, "x", expected, f"shape {x.shape}")


def _check_mask(node_mask: Array, nodes: int) -> None:
    """Raises ValueError unless there is a flag for each node."""
    if node_mask.shape != (nodes,) or node_mask.dtype != bool:
        expected = f"bool of shape ({nodes},), one flag for each node"
        raise bad_input(
            _NAME, "node_mask", expected, f"{node_mask.dtype} of shape {node_mask.shape}"
        )


def _check_given(argument: str, array: Any, shape: tuple[int, int]) -> None:
    """Raises ValueError unless the array has these last axes, or is None if its width is zero."""
    length, width = shape
    if not width:
        if array is not None:
            expected = f"None, since the model was made with {_OPTIONS[argument]}=0"
            raise bad_input(_NAME, argument, expected, f"shape {array.shape}")
        return
    expected = f"of shape [..., {length}, {width}], as {_OPTIONS[argument]}={width} says"
    if array is None or array.ndim < 2 or array.shape[-2:] != shape:
        got = None if array is None else f"shape {array.shape}"
        raise bad_input(_NAME, argument, expected, got)


# The option that sets the width of an argument.
_OPTIONS = {
    "edge_features": "edge_features",
    "laplacian": "laplacian_features",
    "walks": "walk_features",
}


def _branches(
    sizes: _Sizes,
    rates: tuple[float, float],
    implementation: ops.Name | None,
    options: dict[str, Any],
) -> list[nnx.Module]:
    """The branches of one layer; the rates of dropout are those of results and of attention."""
    parts: list[nnx.Module] = [_NeighbourAttention(sizes, rates[1], implementation, options)]
    if sizes.virtual_nodes:
        parts.append(_VirtualAttention(sizes, implementation, options))
    parts.append(_MLP(sizes, implementation, options))
    return [_Branch(part, rates[0], sizes.features, options) for part in parts]


class _Branch(nnx.Module):
    """A LayerNorm, a function of the nodes and their surroundings, and dropout."""

    def __init__(self, function: nnx.Module, dropout: float, features: int, options: Any):
        self.norm = _Norm(features, options)
        self.function = function
        self.dropout = Dropout(dropout, _NAME)

    def __call__(self, surroundings: _Surroundings, h: Array, *, rngs: nnx.Rngs | None) -> Array:
        result = self.function(surroundings, self.norm(h), rngs=rngs)
        return self.dropout(result, rngs, surroundings.graph)


class _Residuals(nnx.Module):
    """Adds each branch to its input."""

    def __init__(self, branches: list[nnx.Module]):
        self.branches = nnx.List(branches)

    def __call__(self, surroundings: _Surroundings, h: Array, *, rngs: nnx.Rngs | None) -> Array:
        for branch in self.branches:
            h = h + branch(surroundings, h, rngs=rngs).astype(h.dtype)
        return h


class _Norm(DocumentedModule):
    """LayerNorm, which is computed in the accumulation dtype and rounded afterwards."""

    def __init__(self, features: int, options: dict[str, Any]):
        self.scale = nnx.Param(jnp.ones(features, options["param_dtype"]))
        self.bias = nnx.Param(jnp.zeros(features, options["param_dtype"]))

    def __call__(self, h: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        wide = accumulation_dtype(h.dtype)
        centred = h.astype(wide)
        centred = centred - jnp.mean(centred, axis=-1, keepdims=True)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        y = centred * jax.lax.rsqrt(variance + _LAYER_NORM_EPSILON) * self.scale[...].astype(wide)
        return (y + self.bias[...].astype(wide)).astype(h.dtype)


class _NeighbourAttention(nnx.Module):
    """Attention of each node to its senders."""

    def __init__(
        self,
        sizes: _Sizes,
        dropout: float,
        implementation: ops.Name | None,
        options: dict[str, Any],
    ):
        d, edges = sizes.features, sizes.edge_features
        self.heads, self.k = sizes.heads, sizes.k
        self.rate = dropout
        self.deterministic: bool | None = None
        self.implementation = implementation
        self.query_key_value = FusedLinear(d, 3 * d, **options)
        self.edge_logits = FusedLinear(edges, sizes.heads, **options) if edges else None
        has_values = edges > 0 and sizes.edge_values
        self.edge_values = FusedLinear(edges, d, **options) if has_values else None
        self.out = FusedLinear(d, d, **options)

    def __call__(self, surroundings: _Surroundings, h: Array, *, rngs: nnx.Rngs | None) -> Array:
        rngs = training_rngs(_NAME, self.deterministic, self.rate, rngs)
        q, k, v = _projected(self.query_key_value, h, self.heads, self.implementation)
        kept: Any = v if self.k is None else ops.maxk(v, self.k, implementation=self.implementation)
        y: Any = ops.dot_attention(
            surroundings.graph,
            q,
            k,
            kept,
            edge_logits=self._logits(surroundings.edge_features),
            **self._terms_of_values(surroundings.edge_features, v.dtype),
            dropout=0.0 if rngs is None else self.rate,
            key=None if rngs is None else rngs.dropout(),
            implementation=self.implementation,
        )
        return apply_linear(self.out, _joined(y), self.implementation)

    def _logits(self, features: Array | None) -> Any:
        if self.edge_logits is None or features is None:
            return None
        # The dtype of the nodes' values, or float32, as the op requires.
        return apply_linear(self.edge_logits, features, self.implementation)

    def _terms_of_values(self, features: Array | None, dtype: Any) -> dict[str, Any]:
        """Arguments of the op for the values of edges, which are never stored.

        The bias is the map of another feature, which is one for every edge.
        """
        layer = self.edge_values
        if layer is None or features is None:
            return {}
        assert layer.bias is not None
        if features.dtype != jnp.float32:
            features = features.astype(dtype)
        ones = jnp.ones_like(features[..., :1])
        rows = [layer.kernel[...], layer.bias[...][None]]
        kernel = jnp.concatenate(rows).astype(accumulation_dtype(dtype))
        kernel = kernel.reshape(kernel.shape[0], self.heads, -1)
        features = jnp.concatenate([features, ones], axis=-1)
        return {"edge_features": features, "edge_kernel": (None, kernel)}


class _VirtualAttention(nnx.Module):
    """Attention of virtual nodes to all nodes of their graph, and of the nodes to virtual nodes."""

    def __init__(self, sizes: _Sizes, implementation: ops.Name | None, options: dict[str, Any]):
        d, rngs = sizes.features, options["rngs"]
        self.heads, self.count = sizes.heads, sizes.virtual_nodes
        self.implementation = implementation
        shape = self.heads, self.count, d // self.heads
        queries = jax.random.normal(rngs.params(), shape, jnp.float32)
        self.queries = nnx.Param(queries.astype(options["param_dtype"]))
        self.query_key_value = FusedLinear(d, 3 * d, **options)
        self.norm = _Norm(d, options)
        self.key_value = FusedLinear(d, 2 * d, **options)
        self.out = FusedLinear(d, d, **options)

    def __call__(self, surroundings: _Surroundings, h: Array, *, rngs: nnx.Rngs | None) -> Array:
        virtual = surroundings.virtual
        assert virtual is not None, "the model makes them wherever it has this branch"
        options = {"implementation": self.implementation}
        q, k, v = _projected(self.query_key_value, h, self.heads, self.implementation)
        # Consecutive queries share a head of the keys, so that no key is read more than once.
        queries = self.queries[...].astype(q.dtype).reshape(self.heads * self.count, -1)
        shape = *q.shape[:-3], virtual.readers.num_cols // self.count, *queries.shape
        queries = jnp.broadcast_to(queries, shape)
        z: Any = virtual.attend(queries, k, v, self.implementation)
        z = z.reshape(*z.shape[:-2], self.heads, self.count, z.shape[-1])
        z = self.norm(_joined(jnp.moveaxis(z, -2, -3)))  # [*batch, graphs, virtual nodes, d]
        z = z.reshape(*z.shape[:-3], virtual.readers.num_cols, z.shape[-1])
        k, v = _projected(self.key_value, z, self.heads, self.implementation)
        y: Any = ops.dot_attention(virtual.readers, q, k, v, **options)
        return apply_linear(self.out, _joined(y), self.implementation)


class _MLP(nnx.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, sizes: _Sizes, implementation: ops.Name | None, options: dict[str, Any]):
        widths = [sizes.features, sizes.mlp_features, sizes.features]
        self.implementation = implementation
        self.mlp = FusedMLP(widths, activation="gelu", **options)

    def __call__(self, surroundings: _Surroundings, h: Array, *, rngs: nnx.Rngs | None) -> Array:
        return apply_mlp(self.mlp, h, self.implementation)


class _RandomSigns(nnx.Module):
    """In training, multiplies each column of each graph with 1 or -1 at random."""

    def __init__(self):
        self.deterministic: bool | None = None

    def __call__(
        self, positions: Any, graph: CSRGraph | GraphBatch, rngs: nnx.Rngs | None
    ) -> Float[Array, "*batch nodes p"]:
        rngs = training_rngs(_NAME, self.deterministic, 1.0, rngs)
        if rngs is None:
            return positions
        positions = jnp.asarray(positions)
        shape = num_graphs(graph), positions.shape[-1]
        signs = jax.random.rademacher(rngs.dropout(), shape, positions.dtype)
        return positions * signs[graph_ids(graph)]


def _projected(
    layer: FusedLinear, h: Array, heads: int, implementation: ops.Name | None
) -> list[Float[Array, "*batch nodes heads dim"]]:
    """The layer's result, split into parts as wide as its input, by heads."""
    y = apply_linear(layer, h, implementation)
    parts = jnp.split(y, layer.out_features // layer.in_features, axis=-1)
    return [part.reshape(*part.shape[:-1], heads, part.shape[-1] // heads) for part in parts]


def _joined(x: Float[Array, "*batch heads dim"]) -> Float[Array, "*batch d"]:
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
