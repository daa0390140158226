"""Neighbour sampling under ``jit``: the batches of ``reference.py``, with static shapes.

Each hop draws edges of all nodes found so far, closes the gaps between rows, and numbers the new
nodes. All arrays have slots for a capacity; a batch that needs more says so (``overflow``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

from jaxgnn._errors import bad_input, is_choice
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling import checks, random
from jaxgnn.sampling.checks import Method
from jaxgnn.sampling.device_rows import (
    MAX_FANOUT,
    Drawn,
    Relabelling,
    Rows,
    Words,
    dense_ranks,
    draw_all,
    draw_labor,
    draw_uniform,
    hop_key,
    new_marks,
)
from jaxgnn.sampling.reference import EdgesLeft

_WHERE = "sampling.sample_on_device"


class DeviceSample(NamedTuple):
    """Sample of a batch of seeds in the slots of a capacity; a pytree.

    Attributes:
      n_id: nodes: the distinct seeds in the order given, then the new nodes of each hop, ascending
        within the hop; -1 for padding. A local id is a place in it.
      seed_ids: local id of each seed; 0 for padding.
      seed_mask: False for padding seeds.
      indptr: for each hop the first edge of each row, [nodes[h] + 1]. Row i is the node
        ``n_id[i]``; rows of padding are empty.
      senders: for each hop the local id of the sender of each edge, [edges[h]]; 0 for padding.
      e_id: for each hop the position of each edge in the graph, [edges[h]]; -1 for padding.
      num_nodes: number of nodes before the first hop and after each, [hops + 1].
      num_edges: number of edges of each hop, [hops].
      num_candidates: number of edges that "labor" chose from in each hop, [hops]; else zeros.
      overflow: whether some number exceeds its capacity. Numbers are right up to and with the first
        that does, and edges are missing from then on. All local ids stay in range.
    """

    n_id: Int32[Array, " nodes"]
    seed_ids: Int32[Array, " seeds"]
    seed_mask: Bool[Array, " seeds"]
    indptr: tuple[Int32[Array, " rows+1"], ...]
    senders: tuple[Int32[Array, " edges"], ...]
    e_id: tuple[Int32[Array, " edges"], ...]
    num_nodes: Int32[Array, " hops+1"]
    num_edges: Int32[Array, " hops"]
    num_candidates: Int32[Array, " hops"]
    overflow: Bool[Array, ""]

    def blocks(self) -> tuple[CSRGraph, ...]:
        """A bipartite graph for each layer, in the order in which layers are applied.

        The columns of the first are the nodes of ``n_id``. The rows of each are the first of its
        columns, and the columns of the next. So a layer is called as
        ``h = layer(block, (h[: block.num_rows], h))``.
        """
        columns = [offsets.shape[0] - 1 for offsets in self.indptr[1:]] + [self.n_id.shape[0]]
        hops = zip(self.indptr, self.senders, columns, strict=True)
        blocks = [
            CSRGraph(offsets, senders, num_cols=num_cols, in_range=True)
            for offsets, senders, num_cols in hops
        ]
        return tuple(reversed(blocks))


def sample_on_device(
    indptr: Int32[Array, " nodes+1"],
    indices: Int32[Array, " edges"],
    seeds: Int[Array, " seeds"],
    fanouts: Sequence[int],
    *,
    nodes: Sequence[int],
    edges: Sequence[int],
    candidates: Sequence[int] | None = None,
    seed: int,
    epoch: int | Array,
    step: int | Array,
    replace: bool = False,
    weights: Any = None,
    method: Method = "neighbour",
    batch_dependency: int = 1,
    excluded: Int32[Array, " excluded"] | None = None,
    relabelling: Relabelling = "sort",
) -> DeviceSample:
    """Draws neighbours of seeds, neighbours of these, and so on, on the device of the graph.

    The batches equal those of the host bit for bit. The function compiles once for each capacity,
    not for each batch. It may be called inside of a jitted step, and under ``vmap`` over ``seeds``
    and ``step``, which samples several batches at the same time.

    Args:
      indptr: row offsets of a valid graph of fewer than 2^31 edges.
      indices: sender of each edge.
      seeds: node ids; repeated ones count once, and negative ones are padding.
      fanouts: neighbours that each hop draws of a row: 1 to 64, or -1 for all.
      nodes: slots for the seeds, which must be as many as ``seeds`` has, and for all nodes up to
        and with each hop, [hops + 1].
      edges: slots for the edges of each hop, [hops].
      candidates: for ``method="labor"``, slots for all edges of the rows of each hop, [hops]. They
        are sorted three times by 32 bits, so they determine the time.
      seed: seed of the random numbers, of 64 bits.
      epoch: number of the epoch.
      step: number of the step in the epoch.
      replace: whether a row may draw an edge again.
      weights: must be None. The host's sampler draws by weights.
      method: random numbers for each row ("neighbour"), or for each sender ("labor").
      batch_dependency: for "labor", number of steps in which the numbers of senders change.
      excluded: positions of edges that are not drawn, distinct and ascending, or None. The sample
        is that of the graph without these edges. Padding comes last, as 2^31 - 1.
      relabelling: "sort", or "marks", which takes a byte for each node of the graph and each batch.

    Returns:
      The sample.

    Raises:
      ValueError: if an argument is not as above.

    Example:
      >>> indptr, indices = jnp.array([0, 2, 3, 3]), jnp.array([1, 2, 2])
      >>> sample = sample_on_device(
      ...     indptr,
      ...     indices,
      ...     jnp.array([0]),
      ...     fanouts=(5,),
      ...     nodes=(1, 4),
      ...     edges=(5,),
      ...     seed=0,
      ...     epoch=0,
      ...     step=0,
      ... )
      >>> sample.n_id.tolist(), sample.senders[0].tolist(), bool(sample.overflow)
      ([0, 1, 2, -1], [1, 2, 0, 0, 0], False)
    """
    checks.options(_WHERE, fanouts, replace, method, batch_dependency)
    if not is_choice(relabelling, get_args(Relabelling)):
        expected = " or ".join(map(repr, get_args(Relabelling)))
        raise bad_input(_WHERE, "relabelling", expected, repr(relabelling))
    candidates = () if candidates is None else candidates
    for name, slots in {"nodes": nodes, "edges": edges, "candidates": candidates}.items():
        checks.numbers(_WHERE, name, slots)
    fanouts, nodes, edges = tuple(fanouts), tuple(nodes), tuple(edges)
    _check_arrays(indptr, indices, seeds, weights)
    _check_excluded(excluded)
    _check_capacity(seeds, fanouts, nodes, edges, method, candidates)
    concrete = (value if isinstance(value, int | np.integer) else 0 for value in (epoch, step))
    checks.counters(_WHERE, seed, *concrete)
    seed, counters = int(seed), [_counter(*pair) for pair in (("epoch", epoch), ("step", step))]
    plan = _Plan(
        fanouts,
        nodes,
        edges,
        tuple(candidates) if method == "labor" else (0,) * len(fanouts),
        replace,
        method,
        int(batch_dependency),
        relabelling,
    )
    words = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)
    return _sample_hops(plan, indptr, indices, seeds, words, *counters, excluded)


@dataclass(frozen=True)
class _Plan:
    """Options of ``sample_on_device`` that determine its program."""

    fanouts: tuple[int, ...]
    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    candidates: tuple[int, ...]
    replace: bool
    method: Method
    batch_dependency: int
    relabelling: Relabelling


@partial(jax.jit, static_argnums=0)
def _sample_hops(
    plan: _Plan,
    indptr: Array,
    indices: Array,
    seeds: Array,
    seed: Words,
    epoch: Array,
    step: Array,
    excluded: Array | None,
) -> DeviceSample:
    num_nodes = indptr.shape[0] - 1
    left = None if excluded is None else EdgesLeft(excluded)
    if indices.shape[0] == 0:
        indices = jnp.zeros((1,), jnp.int32)  # nothing reads it, but gathers need an entry
    numbered, seed_ids, seed_mask = _distinct_seeds(
        seeds, num_nodes, new_marks(plan.relabelling, num_nodes)
    )
    nodes_of, hops, local_ids = [numbered.count], [], []
    for hop in range(len(plan.fanouts)):
        with jax.named_scope(f"draw_{hop}"):
            rows = _rows(indptr, numbered.n_id, left)
            drawn = _draw(plan, hop, rows, indices, (seed, epoch, step))
        with jax.named_scope(f"relabel_{hop}"):
            slots = plan.nodes[hop + 1]
            numbered, senders = _extended(numbered, drawn.e_id, indices, num_nodes, slots)
        nodes_of.append(numbered.count)
        hops.append(drawn)
        local_ids.append(senders)
    counts = [nodes_of, [hop.indptr[-1] for hop in hops], [hop.candidates for hop in hops]]
    num_nodes, num_edges, num_candidates = map(jnp.stack, counts)
    pairs = ((num_nodes, plan.nodes), (num_edges, plan.edges), (num_candidates, plan.candidates))
    exceeded = [jnp.any(number > np.array(slots, np.int32)) for number, slots in pairs]
    # A batch without room must not lead out of its arrays either.
    ends = [jnp.minimum(hop.indptr, slots) for hop, slots in zip(hops, plan.edges, strict=True)]
    return DeviceSample(
        n_id=numbered.n_id,
        seed_ids=seed_ids,
        seed_mask=seed_mask,
        indptr=tuple(ends),
        senders=tuple(local_ids),
        e_id=tuple(hop.e_id for hop in hops),
        num_nodes=num_nodes,
        num_edges=num_edges,
        num_candidates=num_candidates,
        overflow=jnp.stack(exceeded).any(),
    )


def _draw(
    plan: _Plan, hop: int, rows: Rows, indices: Array, of_batch: tuple[Words, Array, Array]
) -> Drawn:
    """Draws the edges of one hop; ``of_batch`` are the seed, the epoch and the step."""
    fanout, slots = plan.fanouts[hop], plan.edges[hop]
    if fanout < 0:
        return draw_all(rows, slots)
    if plan.method == "neighbour":
        key = hop_key(*of_batch, hop, random.NEIGHBOURS)
        return draw_uniform(key, rows, fanout, slots, replace=plan.replace)
    keys = _labor_keys(*of_batch, hop, plan.batch_dependency)
    return draw_labor(*keys, rows, indices, fanout, slots, plan.candidates[hop])


class _Found(NamedTuple):
    """Nodes found so far: their ids with -1 for padding, their number, and their marks."""

    n_id: Array
    count: Array
    marks: Array | None


def _rows(indptr: Array, n_id: Array, left: EdgesLeft | None) -> Rows:
    node = jnp.maximum(n_id, 0)
    first, end = (indptr.at[at].get(mode="clip") for at in (node, node + 1))
    if left is not None:
        first, end = left.ranks(first), left.ranks(end)
    return Rows(node, first, jnp.where(n_id >= 0, end - first, 0), left)


def _labor_keys(
    seed: Words, epoch: Array, step: Array, hop: int, batch_dependency: int
) -> tuple[Words, Words | None, tuple[Array, Array]]:
    """Keys of the numbers of senders in this period and the next, and the factors of both."""
    steps = np.uint32(batch_dependency)
    period, part = step // steps, step % steps
    key = hop_key(seed, epoch, period, hop, random.LABOR)
    turns = [random.turn(i, batch_dependency) for i in range(batch_dependency)]
    cosines, sines = (
        jnp.asarray(factors, jnp.uint32)[part] for factors in zip(*turns, strict=True)
    )
    if batch_dependency == 1:
        return key, None, (cosines, sines)
    next_key = hop_key(seed, epoch, period + np.uint32(1), hop, random.LABOR)
    return key, next_key, (cosines, sines)


def _distinct_seeds(
    seeds: Array, num_nodes: int, marks: Array | None
) -> tuple[_Found, Array, Array]:
    """Distinct seeds in order of their first place, the number of each among them, and a mask."""
    slots = seeds.shape[0]
    is_seed = (seeds >= 0) & (seeds < num_nodes)
    ids = jnp.where(is_seed, seeds, num_nodes).astype(jnp.int32)
    ranks = dense_ranks(ids, num_nodes, marks)
    place, rank = jnp.arange(slots, dtype=jnp.int32), jnp.where(is_seed, ranks.rank, slots)
    first = jnp.full((slots,), slots, jnp.int32).at[rank].min(place, mode="drop")
    first = first.at[rank].get(mode="clip")
    is_first = is_seed & (first == place)
    number = jnp.cumsum(is_first, dtype=jnp.int32) - 1
    n_id = jnp.full((slots,), -1, jnp.int32)
    n_id = n_id.at[jnp.where(is_first, number, slots)].set(ids, mode="drop")
    seed_ids = jnp.where(is_seed, number.at[first].get(mode="clip"), 0)
    return _Found(n_id, ranks.count, ranks.marks), seed_ids, is_seed


def _extended(
    numbered: _Found, e_id: Array, indices: Array, num_nodes: int, slots: int
) -> tuple[_Found, Array]:
    """Adds the senders of edges to the nodes found, and returns their local ids too.

    All ids are ranked. By rank, a node that was found before keeps its local id, and the others get
    the next ones in ascending order.
    """
    is_edge, num_rows = e_id >= 0, numbered.n_id.shape[0]
    senders = indices.at[jnp.maximum(e_id, 0)].get(mode="clip")
    senders = jnp.where(is_edge, senders, num_nodes)
    ids = jnp.concatenate([jnp.where(numbered.n_id < 0, num_nodes, numbered.n_id), senders])
    ranks = dense_ranks(ids, num_nodes, numbered.marks)
    rank = jnp.where(ids < num_nodes, ranks.rank, slots)
    empty = jnp.full((slots,), -1, jnp.int32)
    id_of = empty.at[rank].set(ids, mode="drop")
    local_of = empty.at[rank[:num_rows]].set(jnp.arange(num_rows, dtype=jnp.int32), mode="drop")
    is_new = (local_of < 0) & (id_of >= 0)
    new_local = jnp.minimum(numbered.count, num_rows) + jnp.cumsum(is_new, dtype=jnp.int32) - 1
    local_of = jnp.where(is_new, new_local, local_of)
    n_id = empty.at[:num_rows].set(numbered.n_id)
    n_id = n_id.at[jnp.where(is_new, local_of, slots)].set(id_of, mode="drop")
    local = jnp.where(is_edge, local_of.at[rank[num_rows:]].get(mode="clip"), 0)
    local = jnp.clip(local, 0, slots - 1)
    return _Found(n_id, ranks.count, ranks.marks), local


def _counter(name: str, value: Any) -> Array:
    """A counter of random numbers, which may be traced, as uint32."""
    shape, dtype = (getattr(value, name, None) for name in ("shape", "dtype"))
    is_array = shape == () and dtype is not None and jnp.issubdtype(dtype, jnp.integer)
    if not is_array and (not isinstance(value, int) or isinstance(value, bool)):
        raise bad_input(_WHERE, name, "one integer", value)
    return jnp.asarray(value, jnp.uint32)


def _check_arrays(indptr: Any, indices: Any, seeds: Any, weights: Any) -> None:
    for name, array in (("indptr", indptr), ("indices", indices), ("seeds", seeds)):
        if not hasattr(array, "ndim"):
            raise bad_input(_WHERE, name, "an array", type(array).__name__)
    for name, array in (("indptr", indptr), ("indices", indices)):
        if array.ndim != 1 or array.dtype != jnp.int32:
            expected = "a list of int32, as for fewer than 2^31 edges; use the host for more"
            raise bad_input(_WHERE, name, expected, f"{array.dtype} of shape {array.shape}")
    if indptr.shape[0] == 0:
        raise bad_input(_WHERE, "indptr", "one longer than the number of nodes", "an empty array")
    if weights is not None:
        expected = "None; the sampler of the host draws by weights"
        raise bad_input(_WHERE, "weights", expected, type(weights).__name__)
    if seeds.ndim != 1 or not jnp.issubdtype(seeds.dtype, jnp.integer) or seeds.shape[0] == 0:
        got = f"{seeds.dtype} of shape {seeds.shape}"
        raise bad_input(_WHERE, "seeds", "a list of one or more integers", got)


def _check_excluded(excluded: Any) -> None:
    if excluded is None:
        return
    dtype, ndim = (getattr(excluded, name, None) for name in ("dtype", "ndim"))
    if dtype != jnp.int32 or ndim != 1:
        got = type(excluded).__name__ if dtype is None else excluded
        raise bad_input(_WHERE, "excluded", "a list of int32, or None", got)


def _check_capacity(
    seeds: Any,
    fanouts: tuple[int, ...],
    nodes: tuple[int, ...],
    edges: tuple[int, ...],
    method: Method,
    candidates: Sequence[int] | None,
) -> None:
    for fanout in fanouts:
        if fanout > MAX_FANOUT:
            expected = f"at most {MAX_FANOUT}, or -1, on the device; the host takes more"
            raise bad_input(_WHERE, "fanouts", expected, fanout)
    expected = f"{len(fanouts) + 1} numbers that never fall, from {seeds.shape[0]} on"
    if len(nodes) != len(fanouts) + 1 or nodes[0] != seeds.shape[0] or list(nodes) != sorted(nodes):
        raise bad_input(_WHERE, "nodes", expected, nodes)
    lists = {"edges": edges} | ({"candidates": candidates} if method == "labor" else {})
    for name, slots in lists.items():
        if slots is None or len(slots) != len(fanouts) or not all(0 < n < 2**31 for n in slots):
            raise bad_input(_WHERE, name, f"{len(fanouts)} positive numbers", slots)
