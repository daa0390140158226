"""Pairs of nodes without an edge, drawn exactly, without rejection.

The receivers without an edge from a sender form a list. Their numbers are those of all receivers,
except for the gaps at the edges of the sender. A place in this list is drawn, and its receiver is
found by a binary search among the edges of the sender. All counts are integers, so that rounding
never leads to an edge.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import lax
from jaxtyping import Array, Int, Int32, PRNGKeyArray, UInt32

from jaxgnn._arrays.arrays import checked_numbers, host_array, require_count
from jaxgnn._errors import bad_input, is_choice
from jaxgnn.graph import CSRGraph, is_concrete
from jaxgnn.graph.csr.require_graph import require_graph
from jaxgnn.sampling import checks

PairWeights = Literal["uniform", "degree"]
"""Weights of nodes: all equal, or the 3/4 power of the number of edges."""


# Weights of nodes become integers whose sum is about this.
_TOTAL = 2**30


_POWER = 0.75


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NegativeSampler:
    """Draws pairs of a graph's nodes that no edge joins; a pytree, to be passed to a jitted step.

    ``NegativeSampler.of(graph)`` builds it on the host, once a graph, in linear time and 8 bytes
    an edge. A draw is a binary search among all senders, one among the edges of its sender, and one
    among all receivers where these are weighted.

    Attributes:
      offsets: first entry of each sender in ``excluded``.
      excluded: receivers that a sender is not paired with, ascending for each sender.
      allowed_before: for each of them, the total weight of the allowed receivers before it.
      allowed: total weight of the receivers that each sender may be paired with.
      ends: for weighted receivers, the sum of the weights up to and with each; None where all
        weigh one.
      chances: chance of a sender up to and with each, as a part of 2^32 - 1.
      num_receivers: number of receivers.
      search_steps: steps of a binary search among the receivers of a sender.
    """

    offsets: Int32[Array, " senders+1"]
    excluded: Int32[Array, " entries"]
    allowed_before: Int32[Array, " entries"]
    allowed: Int32[Array, " senders"]
    ends: Int32[Array, " receivers"] | None
    chances: UInt32[Array, " senders"]
    num_receivers: int = dataclasses.field(metadata={"static": True})
    search_steps: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(
        cls, graph: CSRGraph, *, weights: PairWeights = "uniform", self_loops: bool = False
    ) -> NegativeSampler:
        """Builds the sampler of a graph, on the host.

        Args:
          graph: the edges that are never drawn. Its edges have directions: a graph without
            directions must have both of each pair.
          weights: ``"uniform"`` draws all pairs without an edge with equal probability. With
            ``"degree"`` the probability of a pair is proportional to the number of edges that leave
            its sender and of those that enter its receiver, each to the power 3/4 as in word2vec
            (https://arxiv.org/abs/1310.4546); a node without such edges is never drawn.
          self_loops: whether a node without a self loop may be paired with itself.

        Raises:
          ValueError: if ``graph`` is no graph or is traced, ``weights`` has no such name, or there
            is no pair without an edge.
        """
        return _made("sampling.NegativeSampler", graph, weights, self_loops)

    def sample(
        self, key: PRNGKeyArray, num: int, sources: Int[Array, " sources"] | None = None
    ) -> Int32[Array, "2 *shape"]:
        """Draws pairs without an edge, each independent of the others; works under ``jit``.

        Args:
          key: a random key.
          num: number of pairs, or of pairs for each source.
          sources: senders to find receivers for, or None to draw the senders too.

        Returns:
          Senders and receivers, [2, num], or [2, sources, num]. The receiver is -1 for a source
          with edges to all receivers, and both are -1 for a source that is no node.

        Raises:
          ValueError: if ``num`` is no positive integer, ``key`` is no key, or ``sources`` are not a
            list of integers.
        """
        return _drawn("NegativeSampler.sample", self, key, num, sources)


def negative_edges(
    graph: CSRGraph,
    num: int,
    key: PRNGKeyArray,
    *,
    sources: Int[Array, " sources"] | None = None,
    weights: PairWeights = "uniform",
    self_loops: bool = False,
) -> Int32[Array, "2 *shape"]:
    """Draws pairs of nodes that no edge of a graph joins.

    This builds a ``NegativeSampler`` and draws from it once. To draw in each step of training, keep
    a sampler.

    Args:
      graph: as for ``NegativeSampler.of``.
      num: number of pairs, or of pairs for each source; the same pair may be drawn again.
      key: a random key.
      sources: senders to find receivers for, or None to draw the senders too.
      weights: as for ``NegativeSampler.of``.
      self_loops: as for ``NegativeSampler.of``.

    Returns:
      Senders and receivers, int32 [2, num], or [2, sources, num].

    Raises:
      ValueError: as for ``NegativeSampler.of``, or if ``num`` is no positive integer, ``key`` is no
        key, or a source is no node or is joined to all receivers that may be drawn.

    Example:
      >>> graph = CSRGraph.from_edges([0, 1, 1, 2], [1, 0, 2, 1], num_nodes=3)
      >>> pairs = negative_edges(graph, 4, jax.random.key(0))
      >>> sorted({tuple(pair) for pair in pairs.T.tolist()})
      [(0, 2), (2, 0)]
    """
    where = "sampling.negative_edges"
    sampler = _made(where, graph, weights, self_loops)
    if sources is not None:
        sources = _as_sources(where, sources)
        if is_concrete(sources):
            _check_sources(where, np.asarray(sampler.allowed), np.asarray(sources))
    return _drawn(where, sampler, key, num, sources)


def _drawn(
    where: str, sampler: NegativeSampler, key: PRNGKeyArray, num: int, sources: Any
) -> Int32[Array, "2 *shape"]:
    """Pairs without an edge, after checks."""
    num = require_count(where, "num", num, "an int of at least 1")
    if not _is_key(key):
        got = key if hasattr(key, "dtype") else type(key).__name__
        raise bad_input(where, "key", "a key of jax.random", got)
    if sources is not None:
        sources = _as_sources(where, sources)
    return _sample(sampler, key, sources, num)


def _is_key(key: Any) -> bool:
    """Whether a value is a typed key, or the words of one."""
    dtype, ndim = (getattr(key, name, None) for name in ("dtype", "ndim"))
    if dtype is None:
        return False
    is_typed = jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return ndim == 0 if is_typed else (dtype, ndim) == (np.uint32, 1)


@partial(jax.jit, static_argnums=3)
def _sample(
    sampler: NegativeSampler, key: PRNGKeyArray, sources: Array | None, num: int
) -> Int32[Array, "2 *shape"]:
    of_senders, of_receivers = jax.random.split(key)
    if sources is None:
        senders = senders_of(sampler, jax.random.bits(of_senders, (num,), jnp.uint32))
    else:
        senders = jnp.broadcast_to(sources[:, None], (sources.shape[0], num)).astype(jnp.int32)
    return jnp.stack(
        pairs_of(sampler, senders, jax.random.bits(of_receivers, senders.shape, jnp.uint32))
    )


def senders_of(sampler: NegativeSampler, bits: Any) -> Any:
    """The senders that random bits choose, int32; in NumPy for a sampler in NumPy.

    Args:
      sampler: the sampler.
      bits: random numbers, uint32.
    """
    xp: Any = _namespace(sampler)
    # The largest 32-bit number is above all chances, so it is replaced by the one before.
    bits = xp.minimum(bits, np.uint32(2**32 - 2))
    return xp.searchsorted(sampler.chances, bits, side="right").astype(np.int32)


def pairs_of(sampler: NegativeSampler, senders: Any, bits: Any) -> tuple[Any, Any]:
    """Senders, and the receivers that random bits choose; in NumPy for a sampler in NumPy.

    Args:
      sampler: the sampler.
      senders: node that each pair begins with, int32.
      bits: random numbers, uint32, one for each pair.

    Returns:
      Senders and receivers, int32. The receiver is -1 for a sender with edges to all receivers, and
      both are -1 for a sender that is no node.
    """
    xp: Any = _namespace(sampler)
    is_node = (senders >= 0) & (senders < sampler.allowed.shape[0])
    valid_senders = xp.where(is_node, senders, 0)
    allowed = sampler.allowed[valid_senders]
    receivers = _receivers(sampler, valid_senders, _below(allowed, bits))
    senders = xp.where(is_node, senders, -1)
    return senders, xp.where(is_node & (allowed > 0), receivers, -1)


def _namespace(sampler: NegativeSampler) -> Any:
    return np if isinstance(sampler.offsets, np.ndarray) else jnp


def _below(limits: Int32[Array, "*shape"], bits: UInt32[Array, "*shape"]) -> Array:
    """``bits · limits / 2^32``, rounded down: even numbers below limits of up to 2^31, int32.

    ``jax.random.randint`` takes the remainder of the bits, which for limits near 2^31 makes low
    numbers half again as likely. The 64-bit product is computed from parts of 16 bits.
    """
    limits, half = limits.astype(np.uint32), np.uint32(16)
    low = np.uint32(2**16 - 1)
    (a_high, a_low), (b_high, b_low) = ((x >> half, x & low) for x in (bits, limits))
    across, back = a_low * b_high, a_high * b_low
    carried = (a_low * b_low >> half) + (across & low) + (back & low)
    upper = a_high * b_high + (across >> half) + (back >> half) + (carried >> half)
    return upper.astype(np.int32)


def _receivers(sampler: NegativeSampler, senders: Array, drawn: Array) -> Array:
    """The receiver at each place ``drawn`` among the weights that a sender may draw."""
    xp: Any = _namespace(sampler)
    begin = sampler.offsets[senders]
    last_entry = sampler.allowed_before.shape[0] - 1

    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) // 2
        allowed_before = sampler.allowed_before[xp.minimum(middle, last_entry)]
        before = (allowed_before <= drawn) & (low < high)
        return xp.where(before, middle + 1, low), xp.where(before, high, middle)

    if sampler.search_steps:
        bounds = begin, sampler.offsets[senders + 1]
        repeat = lax.fori_loop if xp is jnp else _repeated
        end, _ = repeat(0, sampler.search_steps, halve, bounds)
        # For the last excluded receiver before the drawn one: the allowed weight before it, and the
        # weight of all receivers up to and including it.
        last = xp.maximum(end - 1, 0)
        receiver = sampler.excluded[last]
        up_to = receiver + 1 if sampler.ends is None else sampler.ends[receiver]
        drawn = drawn + xp.where(end > begin, up_to - sampler.allowed_before[last], 0)
    if sampler.ends is None:
        return drawn
    return xp.searchsorted(sampler.ends, drawn, side="right").astype(np.int32)


def _repeated(first: int, end: int, body: Any, state: Any) -> Any:
    """Calls ``body(i, state)`` for each i, as ``lax.fori_loop`` does, on NumPy arrays."""
    for i in range(first, end):
        state = body(i, state)
    return state


def _made(where: str, graph: CSRGraph, weights: PairWeights, self_loops: bool) -> NegativeSampler:
    """The sampler of a graph, after checks."""
    edges = _edges_of(where, graph)
    checks.flags(where, self_loops=self_loops)
    if not is_choice(weights, get_args(PairWeights)):
        names = ", ".join(get_args(PairWeights))
        raise bad_input(where, "weights", f"one of {names}", repr(weights))
    shape = graph.num_cols, graph.num_rows
    of_senders, of_receivers = (np.ones(size, np.int64) for size in shape)
    if weights == "degree":
        of_senders, of_receivers = (_degree_weights(edges.sum(axis)) for axis in (1, 0))
    if not self_loops and graph.num_rows == graph.num_cols:
        edges = edges + scipy.sparse.eye_array(graph.num_rows, dtype=edges.dtype, format="csr")
    edges.sort_indices()
    ends = np.cumsum(of_receivers)
    starts = ends - of_receivers
    lost = of_receivers[edges.indices]  # weights that a sender cannot draw
    lost_before = np.cumsum(lost) - lost
    lost_total = np.append(lost_before, lost.sum())[edges.indptr]
    lost_before -= np.repeat(lost_total[:-1], np.diff(edges.indptr))
    allowed = ends[-1] - np.diff(lost_total) if ends.size else np.zeros(0, np.int64)
    if weights == "degree" and not (of_senders.any() and of_receivers.any()):
        raise bad_input(where, "graph", "with an edge, by which weights='degree' draws", "none")
    chances = np.cumsum(allowed * of_senders.astype(np.float64))
    if not chances.size or not chances[-1]:
        expected = "with some pair of nodes that no edge joins"
        raise bad_input(where, "graph", expected, f"{edges.nnz} edges of shape {shape}")
    chances = np.floor(chances / chances[-1] * np.iinfo(np.uint32).max)
    return NegativeSampler(
        offsets=jnp.asarray(edges.indptr, jnp.int32),
        excluded=jnp.asarray(edges.indices, jnp.int32),
        allowed_before=jnp.asarray(starts[edges.indices] - lost_before, jnp.int32),
        allowed=jnp.asarray(allowed, jnp.int32),
        ends=None if weights == "uniform" else jnp.asarray(ends, jnp.int32),
        chances=jnp.asarray(chances.astype(np.uint32)),
        num_receivers=graph.num_rows,
        search_steps=int(np.diff(edges.indptr).max()).bit_length(),
    )


def _edges_of(where: str, graph: Any) -> scipy.sparse.csr_array:
    """The adjacency of senders and receivers, ones as [senders, receivers] int32."""
    require_graph(where, "graph", graph)
    if not is_concrete(graph.indptr, graph.indices):
        raise bad_input(where, "graph", "concrete; call it outside jit", "a tracer")
    indptr = np.asarray(graph.indptr)
    indices = np.asarray(graph.indices)[: indptr[-1]]
    if indices.size + graph.num_rows > np.iinfo(np.int32).max:
        expected = "of at most 2^31 - 1 edges and nodes"
        raise bad_input(where, "graph", expected, f"{indices.size} edges")
    ones = np.ones(indices.size, np.int32)
    by_receiver = scipy.sparse.csr_array((ones, indices, indptr.astype(np.int32)), graph.shape)
    by_sender = by_receiver.T.tocsr()
    by_sender.sum_duplicates()
    by_sender.data[:] = 1
    return by_sender


def _degree_weights(degrees: np.ndarray) -> np.ndarray:
    """Powers of degrees as int64, whose sum is about ``_TOTAL``; zero for those without edges."""
    powers = degrees.astype(np.float64) ** _POWER
    scale = (_TOTAL - powers.size) / max(powers.sum(), 1)
    return np.where(degrees > 0, np.maximum(np.rint(powers * scale), 1), 0).astype(np.int64)


def _as_sources(where: str, sources: Any) -> Any:
    sources = sources if isinstance(sources, jax.Array) else host_array(where, "sources", sources)
    if sources.ndim != 1 or not jnp.issubdtype(sources.dtype, jnp.integer):
        got = f"{sources.dtype} of shape {sources.shape}"
        raise bad_input(where, "sources", "integers of shape [sources]", got)
    return checked_numbers(where, "sources", sources)


def _check_sources(where: str, allowed: np.ndarray, sources: np.ndarray) -> None:
    fits, expected = (sources >= 0) & (sources < allowed.size), f"in [0, {allowed.size})"
    if fits.all():
        fits, expected = allowed[sources] > 0, "a node that is not joined to all receivers"
    if not fits.all():
        at = int(np.argmin(fits))
        raise bad_input(where, f"sources[{at}]", expected, int(sources[at]))
