"""Learnt simulators: an encoder, a stack of interaction networks, a decoder."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.models._layer_scan import LayerScan
from jaxgnn.models.saveable import saveable
from jaxgnn.nn import InteractionNetwork, check_widths
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import Ends, GraphLayer
from jaxgnn.nn.shared.normed_mlp import NormedMLP, RowNormKind, norm_or_none
from jaxgnn.nn.shared.options import activation as known_activation
from jaxgnn.nn.shared.options import checked_options, flag, int_at_least, one_of
from jaxgnn.ops.core.eager import run_compiled


@saveable
class EncodeProcessDecode(GraphLayer):
    """Encoder, several interaction networks, and decoder of the nodes.

    Two MLPs encode nodes and edges, each of ``num_steps`` interaction networks updates both, and a
    third MLP without a norm decodes the nodes::

        h = norm(mlp(x)),  e = norm(mlp(edge_features))
        e_ij = e_ij + u_ij,  u_ij = norm(mlp([h_i ; h_j ; e_ij]))
        h_i = h_i + norm(mlp([h_i ; Σ_j u_ij]))
        y = mlp(h)

    Learnt simulators predict accelerations with it (https://arxiv.org/abs/2002.09405), and weather
    models the state six hours later (https://arxiv.org/abs/2212.12794). The steps are
    ``nn.InteractionNetwork``. ``models.rollout`` repeats a prediction. A graph with weights or
    scales is refused.

    Args:
      in_features: width of the features of nodes.
      edge_dim: width of the features of edges.
      hidden_features: width of nodes, edges and MLPs inside.
      out_features: width of the output.
      num_steps: number of interaction networks, how far information travels along edges.
      num_layers: number of hidden layers of every MLP.
      share_weights: whether all steps have the same parameters.
      scan_layers: whether to run the steps by ``lax.scan``: one compilation for any number of
        steps, and a copy of what the backward pass stores of each.
      recompute: whether the backward pass computes the inside of each step again, instead of
        storing it.
      norm: norm of all updates: ``"layer"``, ``"rms"`` or None.
      residual: whether a step adds its updates to nodes and edges.
      summed: ``"update"`` to sum the updates of edges, ``"edges"`` to sum the edges after them.
      reduce: ``"sum"`` or ``"mean"`` over the edges of a node.
      activation: activation between the layers of the MLPs.

    Example:
      >>> graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 0], 3)
      >>> model = EncodeProcessDecode(5, 3, 16, 2, num_steps=4, rngs=nnx.Rngs(0))
      >>> model(graph, jnp.ones((3, 5)), jnp.ones((3, 3))).shape
      (3, 2)
    """

    @checked_options(
        activation=known_activation,
        edge_dim=int_at_least(1),
        norm=norm_or_none,
        recompute=flag,
        reduce=one_of("sum", "mean"),
        share_weights=flag,
        summed=one_of("update", "edges"),
    )
    def __init__(
        self,
        in_features: int,
        edge_dim: int,
        hidden_features: int,
        out_features: int,
        *,
        num_steps: int = 10,
        num_layers: int = 2,
        share_weights: bool = False,
        scan_layers: bool = False,
        recompute: bool = False,
        norm: RowNormKind | None = "layer",
        residual: bool = True,
        summed: Literal["update", "edges"] = "update",
        reduce: Literal["sum", "mean"] = "sum",
        activation: ops.Activation | None = "relu",
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        check_widths(self._name, in_features, hidden_features, out_features)
        self.in_features, self.edge_dim = in_features, edge_dim
        hidden = [hidden_features] * num_layers
        options = self._dtypes | {"activation": activation, "rngs": rngs}
        options |= {"implementation": self.implementation}

        def mlp(width: int, out: int, norm: RowNormKind | None) -> NormedMLP:
            return NormedMLP([width, *hidden, out], norm=norm, **options)

        self.node_encoder = mlp(in_features, hidden_features, norm)
        self.edge_encoder = mlp(edge_dim, hidden_features, norm)
        step_options = {"residual": residual, "summed": summed, "reduce": reduce, "norm": norm}
        steps = [
            _Step(
                InteractionNetwork(
                    hidden_features, hidden_features, mlp_features=hidden, **step_options, **options
                ),
                recompute,
            )
            for _ in range(1 if share_weights else num_steps)
        ]
        self.processor = _Processor(steps, num_steps, scan_layers)
        self.decoder = mlp(hidden_features, out_features, None)

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch nodes in"],
        edge_features: Float[Array, "*#batch edges dim"],
    ) -> Float[Array, "*batch nodes out"]:
        """Returns the prediction for each node.

        Args:
          graph: square graph; rows are receivers, columns are senders.
          x: features of the nodes; leading axes share the graph.
        """
        self._check_graph(graph)
        self._check_square(graph, "since all nodes have one encoder")
        h = self._ends(graph, x, Ends(self.in_features, self.in_features)).dst
        edges = self._edge_features(graph, edge_features, self.edge_dim, h)
        assert edges is not None
        state = self.node_encoder(h), self.edge_encoder(edges)
        if state[1].ndim < h.ndim:
            shape = (*h.shape[:-2], *state[1].shape)
            state = state[0], jnp.broadcast_to(state[1], shape)
        h, _ = self.processor(graph, state)
        return self.decoder(h)


class _Step(nnx.Module):
    """An interaction network from nodes and edges to nodes and edges."""

    def __init__(self, network: InteractionNetwork, recompute: bool):
        self.network = network
        self.recompute = recompute

    def __call__(self, graph: Any, state: tuple[Array, Array], *, rngs: None = None) -> Any:
        if not self.recompute:
            return self.network(graph, *state)
        graphdef, arrays = nnx.split(self.network)
        return run_compiled(_recomputed, graphdef, (graph, state, arrays))


def _recomputed(graphdef: Any, arguments: tuple[Any, Any, Any]) -> Any:
    graph, state, arrays = arguments

    @jax.checkpoint
    def step(state: Any, arrays: Any) -> Any:
        return nnx.merge(graphdef, arrays)(graph, *state)

    return step(state, arrays)


class _Processor(nnx.Module):
    """Runs steps one after another; a single step is repeated."""

    def __init__(self, steps: list[_Step], num_steps: int, scan: bool):
        self.num_steps = num_steps
        self.repeats = scan and len(steps) == 1
        is_stacked = scan and not self.repeats
        self.steps = LayerScan(steps) if is_stacked else nnx.List(steps)

    def __call__(self, graph: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        if isinstance(self.steps, LayerScan):
            return self.steps(graph, state)
        if self.repeats:
            graphdef, arrays = nnx.split(self.steps[0])
            repeated = _Repeated(graphdef, self.num_steps)
            return run_compiled(_repeat, repeated, (graph, state, arrays))
        for place in range(self.num_steps):
            state = self.steps[place % len(self.steps)](graph, state)
        return state


class _Repeated(NamedTuple):
    """Static description of a step that is repeated."""

    graphdef: Any
    num_steps: int


def _repeat(repeated: _Repeated, arguments: tuple[Any, Any, Any]) -> Any:
    graph, state, arrays = arguments

    def step(state: Any, _: None) -> tuple[Any, None]:
        return nnx.merge(repeated.graphdef, arrays)(graph, state), None

    return jax.lax.scan(step, state, length=repeated.num_steps)[0]
