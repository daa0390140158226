"""Large random graphs of skewed degrees, made on the device in a second."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgnn._errors import bad_input

# A node of rank q N has a degree in proportion to q^-SKEW, on average, and as many edges lead from
# it. In a citation or a product network a few nodes have thousands of times the mean degree.
_SKEW = 0.4
_CHUNK = 1 << 24
# Ranks times one of these, modulo the number of nodes, are the ids: nodes of many edges are then
# far from each other in memory.
_STRIDES = (1009, 37, 7, 1)


class DeviceGraph(NamedTuple):
    """Offsets and senders of a graph, int32 on the device."""

    indptr: jax.Array
    indices: jax.Array

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the graph."""
        return self.indptr.shape[0] - 1

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.indptr.nbytes + self.indices.nbytes


SIZES = {"products": (2_449_029, 50.5), "papers": (111_059_956, 14.5), "small": (3_000, 8.0)}
"""Nodes and mean degree: of ogbn-products, of ogbn-papers100M, and for tests."""


def random_graph(name: str) -> DeviceGraph:
    """Makes a graph of one of ``SIZES``, whose number of edges is about nodes times degree."""
    if name not in SIZES:
        raise bad_input("random_graph", "name", f"one of {', '.join(SIZES)}", name)
    num_nodes, degree = SIZES[name]
    stride = next(p for p in _STRIDES if p * num_nodes < 2**32 and (num_nodes % p or p == 1))
    indptr = _offsets(num_nodes, degree, stride)
    return DeviceGraph(indptr, _senders(num_nodes, int(indptr[-1]), stride))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _offsets(num_nodes: int, mean_degree: float, stride: int) -> jax.Array:
    rank = jnp.arange(num_nodes, dtype=jnp.uint32)
    part = (rank.astype(jnp.float32) + np.float32(0.5)) / np.float32(num_nodes)
    mean = np.float32(mean_degree * (1 - _SKEW)) * part ** np.float32(-_SKEW)
    drawn = -jnp.log(_unit(_hash(rank)))  # exponential, with a mean of one
    degrees = jnp.floor(mean * drawn + _unit(_hash(~rank))).astype(jnp.int32)
    ids = (rank * np.uint32(stride) % np.uint32(num_nodes)).astype(jnp.int32)
    degree_of = jnp.zeros((num_nodes,), jnp.int32).at[ids].set(degrees)
    return jnp.concatenate([jnp.zeros((1,), jnp.int32), jnp.cumsum(degree_of)])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _senders(num_nodes: int, num_edges: int, stride: int) -> jax.Array:
    chunk = min(_CHUNK, num_edges)
    place = jnp.arange(chunk, dtype=jnp.uint32)

    def fill(i, senders):
        begin = jnp.minimum(i * chunk, num_edges - chunk)
        bits = _hash(place + begin.astype(jnp.uint32))
        # Float32 has 24 bits, so the ranks of large graphs get their last bits apart.
        rank = _unit(bits) ** np.float32(1 / (1 - _SKEW)) * np.float32(num_nodes)
        rank = jnp.minimum(rank.astype(jnp.uint32) + (_hash(bits) & 15), np.uint32(num_nodes - 1))
        ids = (rank * np.uint32(stride) % np.uint32(num_nodes)).astype(jnp.int32)
        return lax.dynamic_update_slice(senders, ids, (begin,))

    empty = jnp.zeros((num_edges,), jnp.int32)
    return lax.fori_loop(0, -(-num_edges // chunk), fill, empty)


def _unit(bits: jax.Array) -> jax.Array:
    """Numbers above 0 and up to 1."""
    return (bits.astype(jnp.float32) + np.float32(1)) * np.float32(2.0**-32)


def _hash(words: jax.Array) -> jax.Array:
    """Mixes the bits of uint32 (the finalizer of MurmurHash3)."""
    words = words + np.uint32(0x9E3779B9)  # zero is not mixed
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return words ^ (words >> np.uint32(16))
