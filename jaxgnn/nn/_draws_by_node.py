"""Random masks of nodes that do not depend on how a graph is spread over devices.

``jax.random`` numbers the entries of an array, and hashes these numbers with the key. So each
device can draw for its own nodes what ``jax.random.bernoulli`` would draw for them in an array of
all nodes, from their numbers in the whole graph.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, Halo, LocalGraph

_HALF = np.uint32(16)
_LOW = np.uint32(0xFFFF)
# Of the hash Threefry-2x32, which mixes for 20 rounds: the rotations of four rounds, in turns, and
# a constant of its key schedule.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


class _Counters(NamedTuple):
    """Unsigned integers of 64 bits, as two words of 32."""

    high: UInt32[Array, "*shape"] | np.ndarray
    low: UInt32[Array, "*shape"] | np.ndarray

    @classmethod
    def product(cls, numbers: UInt32[Array, "*shape"], factor: int) -> _Counters:
        """Each number times ``factor``, which is at most 2^16."""
        small = (numbers & _LOW) * np.uint32(factor)
        large = (numbers >> _HALF) * np.uint32(factor) + (small >> _HALF)
        return cls(large >> _HALF, (large << _HALF) | (small & _LOW))

    @classmethod
    def of_host(cls, numbers: np.ndarray) -> _Counters:
        """Numbers of numpy, uint64."""
        low = (numbers & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        return cls((numbers >> np.uint64(32)).astype(np.uint32), low)

    def plus(self, others: _Counters) -> _Counters:
        """Sums of the counters and others, which are broadcast against each other."""
        low = self.low + others.low
        carried = (low < others.low).astype(jnp.uint32)
        return _Counters(self.high + others.high + carried, low)


def bernoulli_of_rows(
    where: str,
    key: jax.Array,
    probability: float,
    graph: CSRGraph | None,
    shape: tuple[int, ...],
    axis: int,
) -> Bool[Array, "*shape"]:
    """Draws a mask of nodes, the same however many devices the graph is spread over.

    Args:
      where: name of the layer in error messages.
      key: a random key, the same on all devices; of threefry if the graph is spread over some.
      probability: of True.
      graph: the graph of the nodes; None if it is not known, and on one device.
      shape: shape of the mask.
      axis: the axis of the nodes, not negative.

    Raises:
      ValueError: as ``bernoulli_of_nodes``.
    """
    if isinstance(graph, LocalGraph):
        return bernoulli_of_nodes(where, key, probability, graph.halo, shape, axis)
    return jax.random.bernoulli(key, probability, shape)


def bernoulli_of_nodes(
    where: str, key: jax.Array, probability: float, halo: Halo, shape: tuple[int, ...], axis: int
) -> Bool[Array, "*shape"]:
    """Draws for the own nodes of a device what one device would draw for the whole graph.

    Args:
      where: name of the layer in error messages.
      key: a threefry key, the same on all devices.
      probability: of True.
      halo: whose ``ids`` are the numbers of the own nodes.
      shape: shape of the mask.
      axis: the axis of the nodes, not negative.

    Raises:
      ValueError: if the key is of another generator, or the axes behind that of the nodes have more
        than 2^16 entries.
    """
    generator = str(jax.random.key_impl(key))
    if generator != "threefry2x32":
        expected = "keys of threefry2x32, whose draws do not depend on the number of devices"
        raise bad_input(where, "rngs", expected, generator)
    width = math.prod(shape[axis + 1 :])
    if width > 1 << 16:
        raise bad_input(where, "x", "of at most 2^16 features a node", width)
    batch = math.prod(shape[:axis])
    counters = _counters(halo.ids, halo.num_nodes, batch, width)
    bits = _threefry(jax.random.key_data(key), counters)
    # A float of [1, 2) whose fraction is random, as jax.random.uniform makes it.
    fraction = bits >> np.uint32(9) | np.uint32(0x3F800000)
    uniform = jax.lax.bitcast_convert_type(fraction, jnp.float32) - 1
    return (uniform < np.float32(probability)).reshape(shape)


def _counters(ids: Int[Array, " rows"], num_nodes: int, batch: int, width: int) -> _Counters:
    """The numbers of the entries [batch, rows, width] in an array of all nodes."""
    starts = np.arange(batch, dtype=np.uint64)[:, None, None] * np.uint64(num_nodes * width)
    within = np.arange(width, dtype=np.uint64)
    rows = _Counters.product(ids.astype(jnp.uint32)[:, None], width)
    return rows.plus(_Counters.of_host(starts + within))


def _threefry(key: UInt32[Array, "2"], counters: _Counters) -> UInt32[Array, "*shape"]:
    """Both words of the hash of each counter, combined as ``jax.random.bits`` does.

    From "Parallel Random Numbers: As Easy as 1, 2, 3" (https://doi.org/10.1145/2063384.2063405).
    It is element-wise, so that XLA makes no array of the counters.
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
