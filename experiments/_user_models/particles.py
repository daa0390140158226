"""Simulations of particles: learnt simulators in Haiku and jraph, and sums over dense lists."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from experiments._user_models._model import Points, Size, UserModel, shortest


def gns(size: Size) -> UserModel:
    """A learnt simulator (https://arxiv.org/abs/2002.09405): encoder, graph networks, decoder."""
    import haiku as hk

    points, width = Points.of(size), size.width

    def build_mlp(out: int, is_normal: bool = True) -> Any:
        layers: list[Any] = [hk.nets.MLP([width, width, out], activation=jax.nn.relu)]
        if is_normal:
            layers.append(hk.LayerNorm(axis=-1, create_scale=True, create_offset=True))
        return hk.Sequential(layers)

    def update_edges(edges: Any, sent: Any, received: Any, _: Any) -> Any:
        return build_mlp(width)(jnp.concatenate([sent, received, edges], axis=-1))

    def update_nodes(nodes: Any, _: Any, received: Any, __: Any) -> Any:
        return build_mlp(width)(jnp.concatenate([nodes, received], axis=-1))

    def forward(velocities: Any, displacements: Any) -> Any:
        graph: Any = jraph.GraphsTuple(
            nodes=build_mlp(width)(velocities),
            edges=build_mlp(width)(displacements),
            senders=points.senders,
            receivers=points.receivers,
            globals=None,
            n_node=jnp.array([points.nodes]),
            n_edge=jnp.array([points.senders.size]),
        )
        for _ in range(size.steps):
            new = jraph.GraphNetwork(update_edges, update_nodes)(graph)
            graph = graph._replace(
                nodes=graph.nodes + new.nodes,
                edges=graph.edges + new.edges,
            )
        return build_mlp(3, is_normal=False)(graph.nodes)

    inputs = points.random(points.nodes, 15), points.random(points.senders.size, 4, seed=1)
    module = hk.without_apply_rng(hk.transform(forward))
    return UserModel.of_module(module, *inputs, dtype=size.dtype)


def _dense_list(points: Points) -> jax.Array:
    """A neighbour list [nodes, degree]; a tenth of it is empty and has the id ``nodes``."""
    is_empty = np.random.default_rng(1).random(points.neighbours.shape) < 0.1
    return jnp.asarray(np.where(is_empty, points.nodes, points.neighbours), jnp.int32)


def lennard_jones(size: Size) -> UserModel:
    """The energy of pairs in a dense neighbour list, as simulations of molecules write it."""
    points = Points.of(size)
    neighbours = _dense_list(points)
    sigma = float(size.nodes) ** (-1 / 3)

    def energy(positions: Any) -> Any:
        displacement = shortest(positions[:, None] - positions[neighbours])
        squared = jnp.sum(displacement**2, axis=-1)
        mask = neighbours < points.nodes
        squared = jnp.where(mask, squared, 1.0)
        inverse = (sigma**2 / jnp.maximum(squared, (0.5 * sigma) ** 2)) ** 3
        pairs = jnp.where(mask, 4 * (inverse**2 - inverse), 0.0)
        return 0.5 * jnp.sum(jnp.sum(pairs, axis=1))

    return UserModel(energy, (jnp.asarray(points.positions),))


def dense_messages(size: Size) -> UserModel:
    """Sums of the neighbours' features, weighted by distance, in a dense list with a mask."""
    points, width = Points.of(size), size.width
    neighbours = _dense_list(points)
    mask = neighbours < points.nodes

    def forward(parameters: Any, nodes: Any, weights: Any) -> Any:
        for kernel, of_self in parameters:
            sent = (nodes @ kernel)[neighbours]
            messages = jnp.where(mask[:, :, None], sent * weights[:, :, None], 0)
            nodes = jax.nn.silu(nodes @ of_self + jnp.sum(messages, axis=1) / size.degree**0.5)
        return nodes

    keys = jax.random.split(jax.random.key(0), 2 * size.steps)
    drawn = [jax.random.normal(key, (width, width)) / width**0.5 for key in keys]
    parameters = list(zip(drawn[::2], drawn[1::2], strict=True))
    weights = jax.random.uniform(jax.random.key(1), neighbours.shape)
    arrays = parameters, points.random(points.nodes, width), weights
    return UserModel(forward, jax.tree.map(lambda a: a.astype(size.dtype), arrays))
