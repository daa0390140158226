"""Graph networks in plain JAX as published models write them, without this library's ops.

Weather, particle simulators, molecules: whole blocks with edge updates, norms, filters and
directions. ``jaxgnn.fuse`` is tested and timed on them beside the single layers of
``experiments._plain_networks``, whose form they have. The sources that each block follows:

* ``graphcast``: the processor of GraphCast (https://arxiv.org/abs/2212.12794), SiLU and LayerNorm;
* ``gns``: learnt simulators of particles (https://arxiv.org/abs/2002.09405), ReLU and LayerNorm;
* ``graph network``: a full GraphNetwork of jraph with attention on edges, sums at both ends;
* ``painn``: equivariant messages of vectors (https://arxiv.org/abs/2102.03150);
* ``cfconv``: continuous filters of SchNet (https://arxiv.org/abs/1706.08566);
* ``nequip``: a tensor product of l <= 1 with radial weights (https://arxiv.org/abs/2101.03164);
* ``molecules``: a jraph network of a padded batch of graphs with global features;
* ``potential``: a jraph network on a neighbour list whose padding has the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jraph

from experiments._plain_networks import Edges, PlainNetwork

Layer = tuple[Any, Any]


@dataclass(frozen=True)
class Shape:
    """Size of a network.

    Attributes:
      width: features of nodes and edges.
      steps: number of blocks.
      dtype: dtype of features and parameters.
    """

    width: int
    steps: int = 2
    dtype: str = "float32"


class _Parameters:
    """Parameters in the order in which a network asks for them.

    Without values it notes what is asked for, and ``draw`` makes the values.
    """

    def __init__(self, shape: Shape, values: tuple[Any, ...] | None = None):
        self.shape = shape
        self._values: Iterator[Any] | None = None if values is None else iter(values)
        self._asked: list[tuple[tuple[int, ...], float]] = []

    def array(self, *shape: int, scale: float = 1.0) -> Any:
        """Returns the next array, of normal numbers times ``scale``."""
        if self._values is not None:
            return next(self._values)
        self._asked.append((shape, scale))
        return jnp.zeros(shape, self.shape.dtype)

    def draw(self, key: jax.Array) -> list[jax.Array]:
        """Draws all arrays that were asked for."""
        keys = jax.random.split(key, len(self._asked))
        return [
            (scale * jax.random.normal(k, shape)).astype(self.shape.dtype)
            for k, (shape, scale) in zip(keys, self._asked, strict=True)
        ]

    def linear(self, x: Any, out: int) -> Any:
        """Applies a linear layer with bias."""
        size = x.shape[-1]
        kernel = self.array(size, out, scale=size**-0.5)
        return x @ kernel + self.array(out, scale=0.1)

    def mlp(self, x: Any, activation: Callable[[Any], Any], *widths: int) -> Any:
        """Applies linear layers with an activation between them."""
        for width in widths[:-1]:
            x = activation(self.linear(x, width))
        return self.linear(x, widths[-1])

    def layer_norm(self, x: Any) -> Any:
        """Normalises the last axis, with scale and offset."""
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        normal = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
        return normal * (1 + self.array(x.shape[-1], scale=0.1)) + self.array(
            x.shape[-1], scale=0.1
        )


def _interaction(p: _Parameters, edges: Edges, h: Any, e: Any, activation: Any) -> tuple[Any, Any]:
    """Updates edges by their ends and nodes by the sum of updated edges, both with residuals."""
    width = h.shape[-1]
    ends = jnp.concatenate([e, h[edges.senders], h[edges.receivers]], axis=-1)
    e_new = p.layer_norm(p.mlp(ends, activation, width, width))
    received = jax.ops.segment_sum(e_new, edges.receivers, edges.nodes)
    both = jnp.concatenate([h, received], axis=-1)
    return h + p.layer_norm(p.mlp(both, activation, width, width)), e + e_new


def _graphcast(p: _Parameters, edges: Edges, h: Any, e: Any) -> Any:
    for _ in range(p.shape.steps):
        h, e = _interaction(p, edges, h, e, jax.nn.silu)
    return h


def _gns(p: _Parameters, edges: Edges, h: Any, e: Any) -> Any:
    for _ in range(p.shape.steps):
        h, e = _interaction(p, edges, h, e, jax.nn.relu)
    return p.mlp(h, jax.nn.relu, h.shape[-1], 3)


def _weighted(e: Any, weights: Any) -> Any:
    return e * weights


def _attended(p: _Parameters, edges: Edges, h: Any, e: Any) -> Any:
    width = h.shape[-1]

    def edge(e: Any, sent: Any, received: Any, of_graph: Any) -> Any:
        return p.mlp(jnp.concatenate([e, sent, received], -1), jax.nn.relu, width, width)

    def node(h: Any, sent: Any, received: Any, of_graph: Any) -> Any:
        return p.mlp(jnp.concatenate([h, sent, received], -1), jax.nn.relu, width, width)

    network = jraph.GraphNetwork(
        edge,
        node,
        attention_logit_fn=lambda e, sent, received, of_graph: p.linear(e, 1),
        attention_reduce_fn=_weighted,
    )
    return network(edges.tuple(h)._replace(edges=e)).nodes


def _painn(p: _Parameters, edges: Edges, h: Any, e: Any) -> Any:
    width = h.shape[-1]
    basis, direction = e[:, :-3], e[:, -3:]
    v = jnp.zeros((h.shape[0], 3, width), h.dtype)
    for _ in range(p.shape.steps):
        filters = 0.1 * p.linear(basis, 3 * width)
        sent = p.mlp(h, jax.nn.silu, width, 3 * width)
        ds, dv, of_direction = jnp.split(sent[edges.senders] * filters, 3, axis=-1)
        vectors = v[edges.senders] * dv[:, None] + direction[:, :, None] * of_direction[:, None]
        h, v = h + edges.sum(ds), v + edges.sum(vectors)
        mixed = jnp.einsum("nki,ij->nkj", v, p.array(width, width, scale=width**-0.5))
        gate = p.mlp(jnp.concatenate([h, (mixed**2).sum(1)], -1), jax.nn.silu, width, 2 * width)
        h, v = h + gate[:, :width], v + mixed * gate[:, None, width:]
    return h


def _cfconv(p: _Parameters, edges: Edges, h: Any, e: Any) -> Any:
    filters = p.mlp(e, jax.nn.softplus, h.shape[-1], h.shape[-1])
    return edges.sum(p.linear(h, h.shape[-1])[edges.senders] * filters)


def _nequip(p: _Parameters, edges: Edges, h: Any, e: Any) -> Any:
    width = h.shape[-1]
    basis, direction = e[:, :-3], e[:, -3:]
    scalars, vectors = h, jnp.zeros((h.shape[0], width, 3), h.dtype)
    for _ in range(p.shape.steps):
        radial = p.mlp(basis, jax.nn.silu, width, 5 * width).reshape(-1, 5, width)
        s, v = scalars[edges.senders], vectors[edges.senders]
        along = jnp.einsum("ecd,ed->ec", v, direction)
        across = jnp.cross(v, direction[:, None])
        s_new = edges.sum(radial[:, 0] * s + radial[:, 1] * along)
        v_new = edges.sum(
            (radial[:, 2] * s)[:, :, None] * direction[:, None]
            + radial[:, 3, :, None] * v
            + radial[:, 4, :, None] * across
        )
        scalars = scalars + jax.nn.silu(p.linear(s_new, width))
        vectors = jnp.einsum("ncd,ck->nkd", v_new, p.array(width, width, scale=width**-0.5))
    return scalars


def _molecules(p: _Parameters, edges: Edges, h: Any, e: Any) -> Any:
    width, graphs = h.shape[-1], max(1, edges.nodes // 20)
    counts = jnp.full(graphs, edges.nodes // graphs).at[-1].add(edges.nodes % graphs)
    sizes = jnp.full(graphs, edges.senders.size // graphs).at[-1].add(edges.senders.size % graphs)

    def update(*parts: Any) -> Any:
        return p.mlp(jnp.concatenate(parts, -1), jax.nn.relu, width, width)

    of_graphs = jnp.zeros((graphs, width), h.dtype)
    for _ in range(p.shape.steps):
        batch = jraph.GraphsTuple(h, e, edges.receivers, edges.senders, of_graphs, counts, sizes)
        made = jraph.GraphNetwork(update, update, update)(batch)
        h, e, of_graphs = h + made.nodes, e + made.edges, made.globals
    return of_graphs


def _potential(p: _Parameters, edges: Edges, h: Any, e: Any) -> Any:
    width = h.shape[-1]
    is_real = (edges.senders < edges.nodes)[:, None]
    for _ in range(p.shape.steps):
        sent = h.at[edges.senders].get(mode="fill", fill_value=0)
        ends = jnp.concatenate([e, sent, h[edges.receivers]], axis=-1)
        e = jnp.where(is_real, p.mlp(ends, jax.nn.swish, width, width), 0)
        received, given = edges.sum(e), jax.ops.segment_sum(e, edges.senders, edges.nodes)
        h = p.mlp(jnp.concatenate([h, received, given], -1), jax.nn.swish, width, width)
    return p.linear(h, 1).sum()


_FORWARD: dict[str, Callable[[_Parameters, Edges, Any, Any], Any]] = {
    "graphcast": _graphcast,
    "gns": _gns,
    "graph network": _attended,
    "painn": _painn,
    "cfconv": _cfconv,
    "nequip": _nequip,
    "molecules": _molecules,
    "potential": _potential,
}

NAMES: tuple[str, ...] = tuple(_FORWARD)
"""All networks."""


def real_network(name: str, edges: Edges, shape: Shape) -> PlainNetwork:
    """Builds a network with random features and parameters.

    Args:
      name: one of ``NAMES``.
      edges: its edge list, a constant of the function.
      shape: its width, blocks and dtype.

    Returns:
      The function of features of nodes [nodes, width], features of edges [edges, width] and
      parameters, and these arrays.
    """
    keys = jax.random.split(jax.random.key(1), 3)
    h = jax.random.normal(keys[0], (edges.nodes, shape.width)).astype(shape.dtype)
    e = jax.random.normal(keys[1], (edges.senders.size, shape.width)).astype(shape.dtype)
    noted = _Parameters(shape)
    jax.eval_shape(lambda h, e: _FORWARD[name](noted, edges, h, e), h, e)

    def run(h: Any, e: Any, *parameters: Any) -> Any:
        return _FORWARD[name](_Parameters(shape, parameters), edges, h, e)

    return PlainNetwork(run, (h, e, *noted.draw(keys[2])))
