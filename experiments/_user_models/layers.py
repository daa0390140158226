"""Layers of jraph with linear maps of Haiku."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import jraph

from experiments._user_models._model import Points, Size, UserModel


def _graph(points: Points, nodes: Any, edges: Any = None) -> jraph.GraphsTuple:
    counts = jnp.array([points.nodes]), jnp.array([points.senders.size])
    return jraph.GraphsTuple(nodes, edges, points.receivers, points.senders, None, *counts)


def _model(size: Size, forward: Any, *inputs: Any) -> UserModel:
    module = hk.without_apply_rng(hk.transform(forward))
    return UserModel.of_module(module, *inputs, dtype=size.dtype)


def gcn(size: Size) -> UserModel:
    """Graph convolutions (https://arxiv.org/abs/1609.02907) with a ReLU between them."""
    points = Points.of(size)

    def forward(nodes: Any) -> Any:
        graph = _graph(points, nodes)
        for step in range(size.steps):
            linear = hk.Linear(size.width, name=f"linear_{step}")
            graph = jraph.GraphConvolution(linear, add_self_edges=True)(graph)
            graph = graph._replace(nodes=jax.nn.relu(graph.nodes))
        return graph.nodes

    return _model(size, forward, points.random(points.nodes, size.width))


def gat(size: Size) -> UserModel:
    """A layer of graph attention (https://arxiv.org/abs/1710.10903)."""
    points = Points.of(size)

    def forward(nodes: Any) -> Any:
        def logits(sent: Any, received: Any, _: Any) -> Any:
            ends = jnp.concatenate([sent, received], axis=-1)
            return jax.nn.leaky_relu(hk.Linear(1, name="logits")(ends), 0.2)

        layer = jraph.GAT(hk.Linear(size.width, name="queries"), logits)
        return layer(_graph(points, nodes)).nodes

    return _model(size, forward, points.random(points.nodes, size.width))


def graph_network(size: Size) -> UserModel:
    """A GraphNetwork of jraph with attention on edges and sums at both ends."""
    points, width = Points.of(size), size.width

    def mlp(*parts: Any) -> Any:
        return hk.nets.MLP([width, width])(jnp.concatenate(parts, axis=-1))

    def weighted(edges: Any, weights: Any) -> Any:
        return edges * weights

    def forward(nodes: Any, edges: Any) -> Any:
        network = jraph.GraphNetwork(
            lambda edges, sent, received, _: mlp(edges, sent, received),
            lambda nodes, sent, received, _: mlp(nodes, sent, received),
            attention_logit_fn=lambda edges, sent, received, _: hk.Linear(1)(edges),
            attention_reduce_fn=weighted,
        )
        return network(_graph(points, nodes, edges)).nodes

    edges = points.random(points.senders.size, width, seed=1)
    return _model(size, forward, points.random(points.nodes, width), edges)
