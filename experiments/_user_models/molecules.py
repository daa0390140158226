"""Properties of molecules: jraph networks in Flax Linen on a padded batch of small graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import jraph
import numpy as np

from experiments._user_models._model import Size, UserModel, parameters_of

_ATOMS = 20  # of a molecule


class _MLP(nn.Module):
    widths: Sequence[int]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in self.widths:
            x = nn.relu(nn.Dense(width)(x))
        return x


class _GraphNet(nn.Module):
    """Graph networks with skip connections and layer norms, and a readout by graph."""

    width: int
    steps: int

    @nn.compact
    def __call__(self, graph: Any) -> Any:
        width = self.width
        embed = jraph.GraphMapFeatures(nn.Dense(width), nn.Dense(width), nn.Dense(width))
        graph = embed(graph)
        for _ in range(self.steps):
            updates: Any = [jraph.concatenated_args(_MLP([width, width])) for _ in range(3)]
            new: Any = jraph.GraphNetwork(*updates)(graph)
            graph = graph._replace(
                nodes=nn.LayerNorm()(graph.nodes + new.nodes),
                edges=nn.LayerNorm()(graph.edges + new.edges),
                globals=nn.LayerNorm()(graph.globals + new.globals),
            )
        return nn.Dense(128)(graph.globals)


def _batch(size: Size) -> jraph.GraphsTuple:
    """Rings of atoms, both directions of each bond, padded by one graph to round numbers."""
    rng, molecules = np.random.default_rng(0), max(1, size.nodes // _ATOMS)
    graphs: list[Any] = []
    for _ in range(molecules):
        atoms = int(rng.integers(_ATOMS // 2, _ATOMS + 1))
        first = np.arange(atoms, dtype=np.int32)
        after = (first + 1) % atoms
        senders: Any = np.concatenate([first, after])
        receivers: Any = np.concatenate([after, first])
        features = rng.normal(size=(atoms, 9)), rng.normal(size=(2 * atoms, 3))
        nodes, edges = (f.astype(np.float32) for f in features)
        of_graph: Any = np.zeros((1, 1), np.float32)
        counts: Any = np.array([atoms]), np.array([2 * atoms])
        graphs.append(jraph.GraphsTuple(nodes, edges, senders, receivers, of_graph, *counts))
    full = jraph.batch_np(graphs)
    sizes = molecules * _ATOMS + 1, molecules * _ATOMS * 2 + 1, molecules + 1
    return jax.tree.map(jnp.asarray, jraph.pad_with_graphs(full, *sizes))


def molecules(size: Size) -> UserModel:
    """A network for molecules of Open Graph Benchmark (https://arxiv.org/abs/2005.00687)."""
    graph = _batch(size)
    mask: Any = jraph.get_graph_padding_mask(graph)
    module = _GraphNet(size.width, size.steps)
    parameters = parameters_of(module, graph)

    def run(parameters: Any, nodes: Any, edges: Any) -> Any:
        scores: Any = module.apply(parameters, graph._replace(nodes=nodes, edges=edges))
        return jnp.where(mask[:, None], scores, 0)

    arrays = parameters, graph.nodes, graph.edges
    return UserModel(run, jax.tree.map(lambda a: a.astype(size.dtype), arrays))
