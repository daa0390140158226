"""Parts between convolutions: dropped edges and nodes, virtual nodes, joined outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, GraphBatch, LocalGraph
from jaxgnn.graph.local.local_graph import with_edges
from jaxgnn.nn.shared.activations import CELL_FUNCTIONS
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule
from jaxgnn.nn.shared.dropout import training_rngs
from jaxgnn.nn.shared.graph_ids import (
    check_batch,
    check_features,
    rows_where,
    spread_to_nodes,
    sums,
)
from jaxgnn.nn.shared.linear import FusedLinear, FusedMLP, apply_linear
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.node_draws import bernoulli_of_rows, bits_of_edges
from jaxgnn.nn.shared.options import (
    checked_options,
    flag,
    instance_of,
    int_at_least,
    one_of,
    or_none,
    rate,
)


class DropEdge(DocumentedModule):
    """Drops some edges of a graph in training, others in each call.

    Each edge is kept with probability ``1 - rate``. Kept edges are not scaled up: normalise the
    graph after this layer, as convolutions do for a graph that is not normalised yet. See
    https://arxiv.org/abs/1907.10903.

    The new graph has the same number of edge slots as the old one, with dropped edges at the end,
    so that nothing is compiled again.

    Args:
      rate: probability of dropping an edge.
      undirected: whether both directions of a pair, and all of its repeats, are dropped together.

    Attributes:
      deterministic: None to drop edges when a call has ``rngs``; False, which ``train()`` sets,
        to require them; True, which ``eval()`` sets, to drop none.

    Example:
      >>> graph = CSRGraph.from_edges([0, 1, 1, 2], [1, 0, 2, 1], 3)
      >>> layer = nn.DropEdge(0.5, undirected=True)
      >>> layer(graph, rngs=nnx.Rngs(dropout=2)).degrees().tolist()
      [0, 1, 1]
      >>> layer(graph).degrees().tolist()
      [1, 2, 1]
    """

    @checked_options(rate=rate, undirected=flag)
    def __init__(self, rate: float, *, undirected: bool = False):
        self.rate = rate
        self.undirected = undirected
        self.deterministic: bool | None = None

    def __call__(
        self, graph: CSRGraph, edge_data: PyTree = None, *, rngs: nnx.Rngs | None = None
    ) -> Any:
        """Drops some edges.

        Args:
          graph: a graph that is not normalised.
          edge_data: None, or a pytree of arrays [edges, ...] in the order of the graph's edges.

        Returns:
          The graph; with ``edge_data`` a pair of the graph and the data in its order.

        Raises:
          ValueError: if ``graph`` is not a graph or is normalised, or ``rngs`` lack the stream.
        """
        if not isinstance(graph, CSRGraph):
            raise bad_input("DropEdge", "graph", "a jaxgnn.CSRGraph", type(graph).__name__)
        if graph.is_normalized:
            expected = "not normalised yet, since degrees change"
            raise bad_input("DropEdge", "graph", expected, repr(graph.normalization))
        drawn_from = training_rngs("DropEdge", self.deterministic, self.rate, rngs)
        if drawn_from is None:
            return graph if edge_data is None else (graph, edge_data)
        stays = self._stays(graph, drawn_from.dropout())
        if isinstance(graph, LocalGraph):
            dropped, order = with_edges(graph, stays)
        else:
            dropped, order = _keep_edges(graph, stays)
        if edge_data is None:
            return dropped
        return dropped, jax.tree.map(lambda leaf: jnp.asarray(leaf)[order], edge_data)

    def _stays(self, graph: CSRGraph, key: Array) -> Bool[Array, " edges"]:
        """Mask of the kept edge slots; False for padding."""
        receivers = jnp.asarray(graph.receivers())
        if not self.undirected:
            draws = bits_of_edges("DropEdge", key, graph)
        elif isinstance(graph, LocalGraph):
            # A pair has the ids of its nodes in the whole graph, so all devices draw the same.
            senders = graph.sender_table(graph.halo.ids)[jnp.asarray(graph.indices)]
            draws = _pair_bits(senders, graph.row_numbers().at[receivers].get(mode="clip"), key)
        else:
            draws = _pair_bits(jnp.asarray(graph.indices), receivers, key)
        bound = min(round(self.rate * 2**32), 2**32 - 1)
        return (receivers < graph.num_rows) & (draws >= jnp.uint32(bound))


class DropNode(DocumentedModule):
    """Zeroes all features of some nodes in training, and scales up those of the others.

    ``y_i = z_i x_i / (1 - rate)``, where ``z_i`` is zero with probability ``rate``, otherwise one.
    A dropped node still receives from its neighbours. See https://arxiv.org/abs/2005.11079.

    Args:
      rate: probability of dropping a node.

    Attributes:
      deterministic: None to drop nodes when a call has ``rngs``; False, which ``train()`` sets,
        to require them; True, which ``eval()`` sets, to drop none.

    Example:
      >>> nn.DropNode(0.5)(jnp.ones((4, 2)), rngs=nnx.Rngs(dropout=0)).sum(axis=1).tolist()
      [0.0, 4.0, 4.0, 4.0]
    """

    @checked_options(rate=rate)
    def __init__(self, rate: float):
        self.rate = rate
        self.deterministic: bool | None = None

    def __call__(
        self,
        x: Float[Array, "*batch nodes features"],
        graph: CSRGraph | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch nodes features"]:
        """Zeroes the features of some nodes.

        Args:
          graph: the graph of the nodes, required if it is spread over devices, so that the same
            nodes are dropped on any number of them.

        Raises:
          ValueError: if ``x`` has fewer than two axes, or ``rngs`` lack the stream.
        """
        if x.ndim < 2:
            raise bad_input("DropNode", "x", "of shape [..., nodes, features]", f"shape {x.shape}")
        drawn_from = training_rngs("DropNode", self.deterministic, self.rate, rngs)
        if drawn_from is None:
            return x
        key, shape = drawn_from.dropout(), (*x.shape[:-1], 1)
        kept: Bool[Array, "*batch nodes 1"] = bernoulli_of_rows(
            "DropNode", key, 1 - self.rate, graph, shape, x.ndim - 2
        )
        return jnp.where(kept, x / (1 - self.rate), 0)


def _keep_edges(graph: CSRGraph, stays: Bool[Array, " edges"]) -> tuple[CSRGraph, Array]:
    """Returns the graph of the kept edges, and the old slot of each new one."""
    indptr = jnp.asarray(graph.indptr)
    before = jnp.pad(jnp.cumsum(stays, dtype=indptr.dtype), (1, 0))
    slots, total = jnp.arange(stays.shape[0], dtype=indptr.dtype), before[-1]
    # The new slot of each old one: kept edges in their order, and the others after them.
    places = jnp.where(stays, before[:-1], total + slots - before[:-1])
    order = jnp.zeros_like(slots).at[places].set(slots, unique_indices=True)
    kept_graph = CSRGraph(
        indptr=before[indptr],
        indices=jnp.where(slots < total, jnp.asarray(graph.indices)[order], 0),
        weights=None if graph.weights is None else jnp.asarray(graph.weights)[order],
        num_cols=graph.num_cols,
        in_range=graph.in_range,
    )
    return kept_graph, order


def _pair_bits(senders: Array, receivers: Array, key: Array) -> UInt32[Array, " edges"]:
    """Draws a random number for each pair of nodes: one for both directions and all repeats.

    The numbers of the nodes are mixed with two random ones as in MurmurHash3's finalizer.
    """
    seeds = jax.random.bits(key, (2,), jnp.uint32)
    low, high = jnp.minimum(senders, receivers), jnp.maximum(senders, receivers)
    mixed = _mixed(low.astype(jnp.uint32) ^ seeds[0])
    return _mixed(mixed ^ _mixed(high.astype(jnp.uint32) ^ seeds[1]))


def _mixed(bits: UInt32[Array, " edges"]) -> UInt32[Array, " edges"]:
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


class VirtualNode(DocumentedModule):
    """Adds a node to each graph by which all of its nodes exchange messages at any distance.

    ``x_i ← x_i + v_g`` for the nodes of each graph ``g``, and ``v_g ← v_g + mlp(v_g + Σ_i x_i)``
    with the new ``x``. Use one before each convolution of a network; the state of the virtual nodes
    is passed from one to the next. See https://arxiv.org/abs/1704.01212. This is the form in the
    examples of the Open Graph Benchmark with a residual connection.

    Args:
      hidden_features: width of the perceptron's hidden layer; None for twice ``features``.
      dtype: dtype of the perceptron; None for the promoted dtype of input and parameters.

    Example:
      >>> pair = GraphSample(senders=[0], receivers=[1], num_nodes=2)
      >>> batch = GraphBatch.from_graphs([pair, pair], pad_to=(8, 4))
      >>> layer = nn.VirtualNode(5, rngs=nnx.Rngs(0))
      >>> x, state = layer(jnp.ones((8, 5)), batch)
      >>> x.shape, state.shape
      ((8, 5), (3, 5))
    """

    @checked_options()
    def __init__(
        self,
        features: int,
        *,
        hidden_features: int | None = None,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        check_widths("VirtualNode", features)
        hidden = 2 * features if hidden_features is None else hidden_features
        check_widths("VirtualNode", hidden)
        self.features = features
        widths = [features, hidden, features]
        self.mlp = FusedMLP(widths, activation="relu", rngs=rngs, **common)

    def __call__(
        self,
        x: Float[Array, "nodes features"],
        batch: GraphBatch,
        state: Float[Array, "graphs features"] | None = None,
    ) -> tuple[Float[Array, "nodes features"], Float[Array, "graphs features"]]:
        """Adds the virtual nodes to the others, and the others to the virtual nodes.

        Args:
          state: features of the virtual nodes, [graphs, features], from the previous layer; None
            for zeros.

        Returns:
          The new features of the nodes, zeros for padding, and of the virtual nodes, zeros for
          padding graphs.

        Raises:
          ValueError: if ``x`` does not have a row for each node slot of the batch, or ``x`` or
            ``state`` has another width.
        """
        check_batch("VirtualNode", x, batch)
        check_features("VirtualNode", x, self.features)
        shape = (batch.num_graphs, self.features)
        if state is None:
            state = jnp.zeros(shape, x.dtype)
        elif state.shape != shape:
            raise bad_input("VirtualNode", "state", f"of shape {shape}", f"shape {state.shape}")
        node_mask = jnp.asarray(batch.node_mask)
        x = rows_where(node_mask, x + spread_to_nodes(state.astype(x.dtype), batch))
        heard = self.mlp(state + sums(x, batch).astype(state.dtype))
        return x, rows_where(jnp.asarray(batch.graph_mask), state + heard.astype(state.dtype))


class JumpingKnowledge(DocumentedModule):
    """Combines the outputs ``h_1 … h_L`` of all layers of a network, node by node.

    - ``"concat"``: concatenated, ``L`` times as wide.
    - ``"max"``: the maximum of each feature.
    - ``"lstm"``: ``Σ_l softmax_l(a · [→h_l, ←h_l]) h_l``, weights from an LSTM over the layers in
      both directions.

    See https://arxiv.org/abs/1806.03536.

    Args:
      mode: ``"concat"``, ``"max"`` or ``"lstm"``.
      features: width of each layer's output, for ``"lstm"``; else None.
      num_layers: number of layers, for ``"lstm"``; its states have
        ``num_layers * features // 2`` features. Else None.
      rngs: random streams from which the initial parameters are drawn, for ``"lstm"``; else None.

    Example:
      >>> layers = [jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 0.0]])]
      >>> nn.JumpingKnowledge("max")(layers).tolist()
      [[3.0, 2.0]]
    """

    @checked_options(
        mode=one_of("concat", "max", "lstm"),
        features=or_none(int_at_least(1)),
        num_layers=or_none(int_at_least(1)),
        rngs=or_none(instance_of(nnx.Rngs, "an nnx.Rngs, such as nnx.Rngs(0)")),
    )
    def __init__(
        self,
        mode: Literal["concat", "max", "lstm"],
        *,
        features: int | None = None,
        num_layers: int | None = None,
        param_dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        self.mode = mode
        self.features = features
        self.num_layers = num_layers
        if mode != "lstm":
            return
        if features is None or num_layers is None or rngs is None:
            missing = {"features": features, "num_layers": num_layers, "rngs": rngs}
            name = next(name for name, value in missing.items() if value is None)
            raise bad_input("JumpingKnowledge", name, "given for mode='lstm'", None)
        width = max(num_layers * features // 2, 1)
        options = {"param_dtype": param_dtype, "rngs": rngs}
        self.forward = nnx.OptimizedLSTMCell(features, width, **CELL_FUNCTIONS, **options)
        self.backward = nnx.OptimizedLSTMCell(features, width, **CELL_FUNCTIONS, **options)
        self.attention = FusedLinear(2 * width, 1, **options)

    def __call__(
        self, layers: Sequence[Float[Array, "*batch nodes features"]]
    ) -> Float[Array, "*batch nodes out"]:
        """Combines the outputs of the layers.

        Args:
          layers: the output of each layer, all of one shape, except that for ``"concat"`` widths
            may differ.

        Raises:
          ValueError: if there are no layers, or their shapes do not fit.
        """
        self._check(layers)
        if self.mode == "concat":
            return jnp.concatenate(layers, axis=-1)
        stacked = jnp.stack(layers)
        if self.mode == "max":
            return jnp.max(stacked, axis=0)
        ahead, back = _states(self.forward, layers), _states(self.backward, layers[::-1])[::-1]
        states = jnp.concatenate([jnp.stack(ahead), jnp.stack(back)], axis=-1)
        logits = apply_linear(self.attention, states, None)
        weights = jax.nn.softmax(logits, axis=0).astype(stacked.dtype)
        return jnp.sum(weights * stacked, axis=0)

    def _check(self, layers: Sequence[Array]) -> None:
        name = "JumpingKnowledge"
        if not isinstance(layers, Sequence) or not layers:
            raise bad_input(name, "layers", "a list of at least one array", repr(layers))
        if self.mode == "lstm" and len(layers) != self.num_layers:
            expected = f"the outputs of {self.num_layers} layers"
            raise bad_input(name, "layers", expected, f"{len(layers)} arrays")
        first = layers[0].shape
        width = self.features if self.mode == "lstm" else first[-1]
        for place, layer in enumerate(layers):
            wanted = (*first[:-1], layer.shape[-1] if self.mode == "concat" else width)
            if layer.shape != wanted:
                raise bad_input(name, f"layers[{place}]", f"of shape {wanted}", layer.shape)


def _states(cell: nnx.OptimizedLSTMCell, inputs: Sequence[Array]) -> list[Array]:
    """The state of an LSTM after each of its inputs."""
    zeros = jnp.zeros((*inputs[0].shape[:-1], cell.hidden_features), inputs[0].dtype)
    memory, states = (zeros, zeros), []
    for x in inputs:
        memory, state = cell(memory, x)
        states.append(state)
    return states
