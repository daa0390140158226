"""Processors of weather models: interaction networks on a mesh, in Haiku."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from experiments._user_models._model import Points, Size, UserModel


def _mlp(width: int, name: str) -> Any:
    """Two layers and a layer norm."""
    hidden = hk.nets.MLP([width, width], activation=jax.nn.swish, name=f"{name}_mlp")
    norm = hk.LayerNorm(axis=-1, create_scale=True, create_offset=True, name=f"{name}_layer_norm")
    return hk.Sequential([hidden, norm])


def graphcast(size: Size) -> UserModel:
    """The processor of GraphCast (https://arxiv.org/abs/2212.12794)."""
    points, width = Points.of(size), size.width
    senders, receivers = points.senders, points.receivers

    def forward(nodes: Any, edges: Any) -> Any:
        for step in range(size.steps):
            ends = jnp.concatenate([edges, nodes[senders], nodes[receivers]], axis=-1)
            new_edges = _mlp(width, f"edges_{step}")(ends)
            received = jax.ops.segment_sum(new_edges, receivers, points.nodes)
            both = jnp.concatenate([nodes, received], axis=-1)
            nodes = nodes + _mlp(width, f"nodes_{step}")(both)
            edges = edges + new_edges
        return nodes

    nodes = points.random(points.nodes, width)
    edges = points.random(points.senders.size, width, seed=1)
    module = hk.without_apply_rng(hk.transform(forward))
    return UserModel.of_module(module, nodes, edges, dtype=size.dtype)
