"""Random masks of nodes and edges that do not depend on how a graph is spread over devices.

``jax.random`` hashes the position of each entry of an array with the key. So each device can draw
for its own nodes and edges the same values as ``jax.random.bernoulli`` draws for them in an array
of all, from their positions in the whole graph.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt32

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, Halo, LocalGraph
from jaxgnn.graph.local.edge_numbers import Words
from jaxgnn.graph.local.local_graph import LocalMatrix

# Constants of the hash Threefry-2x32, which mixes for 20 rounds: the rotations of four rounds, in
# turns, and a constant of its key schedule.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def bernoulli_of_rows(
    where: str,
    key: jax.Array,
    probability: float,
    graph: CSRGraph | None,
    shape: tuple[int, ...],
    axis: int,
) -> Bool[Array, "*shape"]:
    """Draws a mask of nodes, the same for any number of devices of the graph.

    ``shape`` is that of the mask, and ``axis``, not negative, the axis of the nodes. The key is the
    same on all devices, and threefry if the graph is spread. A graph of None is unknown, on one
    device.
    """
    if isinstance(graph, LocalGraph):
        if graph.row_ids is not None:
            expected = "square, whose nodes are known by their number"
            raise bad_input(where, "graph", expected, f"shape {graph.shape}")
        return bernoulli_of_nodes(where, key, probability, graph.halo, shape, axis)
    return jax.random.bernoulli(key, probability, shape)


def bernoulli_of_edges(
    where: str,
    key: jax.Array,
    probability: float,
    graph: CSRGraph,
    shape: tuple[int, ...],
    axis: int,
) -> Bool[Array, "*shape"]:
    """Draws a mask of edge slots, or of entries of a sparse matrix, as ``bernoulli_of_rows``."""
    if not isinstance(graph, LocalGraph | LocalMatrix):
        return jax.random.bernoulli(key, probability, shape)
    drawn = _Entries(graph.edge_numbers(), graph.numbers.total, shape, axis)
    return _bernoulli(where, key, probability, drawn)


def bits_of_edges(where: str, key: jax.Array, graph: CSRGraph) -> UInt32[Array, " edges"]:
    """Draws 32 random bits for each edge slot, the same for any number of devices of the graph."""
    if not isinstance(graph, LocalGraph):
        return jax.random.bits(key, (graph.num_edges,), jnp.uint32)
    _require_threefry(where, key)
    return _threefry(jax.random.key_data(key), graph.edge_numbers())


def bernoulli_of_nodes(
    where: str, key: jax.Array, probability: float, halo: Halo, shape: tuple[int, ...], axis: int
) -> Bool[Array, "*shape"]:
    """Draws for a device's own nodes, ``halo.ids``, the values that one device draws for all nodes.

    Raises:
      ValueError: if the key is not threefry, or the axes after that of the nodes have more than
        2^16 entries.
    """
    ids = halo.ids.astype(jnp.uint32)
    drawn = _Entries(Words(jnp.zeros_like(ids), ids), halo.num_nodes, shape, axis)
    return _bernoulli(where, key, probability, drawn)


class _Entries(NamedTuple):
    """Indices of an axis of length ``total`` that a device holds."""

    numbers: Words
    total: int
    shape: tuple[int, ...]
    axis: int

    @property
    def width(self) -> int:
        """Number of entries at each place."""
        return math.prod(self.shape[self.axis + 1 :])

    def counters(self) -> Words:
        """Returns the flat indices of the entries [batch, places, width] in the whole array."""
        batch, width = math.prod(self.shape[: self.axis]), self.width
        starts = np.arange(batch, dtype=np.uint64) * np.uint64(self.total * width)
        within = np.arange(width, dtype=np.uint64)
        places = Words(*(word[:, None] for word in self.numbers)).times(width)
        return places.plus(Words.of_host(starts[:, None, None] + within))


def _bernoulli(
    where: str, key: jax.Array, probability: float, drawn: _Entries
) -> Bool[Array, "*shape"]:
    """Draws as ``jax.random.bernoulli`` does for these entries of an array of all places."""
    _require_threefry(where, key)
    if drawn.width > 1 << 16:
        raise bad_input(where, "x", "of at most 2^16 features a node", drawn.width)
    bits = _threefry(jax.random.key_data(key), drawn.counters())
    # A float in [1, 2) with a random fraction, as jax.random.uniform computes it.
    fraction = bits >> np.uint32(9) | np.uint32(0x3F800000)
    uniform = jax.lax.bitcast_convert_type(fraction, jnp.float32) - 1
    return (uniform < np.float32(probability)).reshape(drawn.shape)


def _require_threefry(where: str, key: jax.Array) -> None:
    """Raises ValueError if the key is of another generator."""
    generator = str(jax.random.key_impl(key))
    if generator != "threefry2x32":
        expected = "keys of threefry2x32, whose draws do not depend on the number of devices"
        raise bad_input(where, "rngs", expected, generator)


def _threefry(key: UInt32[Array, "2"], counters: Words) -> UInt32[Array, "*shape"]:
    """Both words of the hash of each counter, combined as ``jax.random.bits`` does.

    From "Parallel Random Numbers: As Easy as 1, 2, 3" (https://doi.org/10.1145/2063384.2063405).
    It is element-wise, so that XLA allocates no array of the counters.
    """
    schedule = key[0], key[1], key[0] ^ key[1] ^ _PARITY
    first = jnp.asarray(counters.high) + schedule[0]
    second = jnp.asarray(counters.low) + schedule[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            turned = second << np.uint32(rotation) | second >> np.uint32(32 - rotation)
            second = first ^ turned
        first = first + schedule[(group + 1) % 3]
        second = second + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return first ^ second
