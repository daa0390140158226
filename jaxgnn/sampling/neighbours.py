"""NeighborLoader: batches of seeds with sampled neighbours, made ahead by threads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import to_device
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling import checks, options
from jaxgnn.sampling.batches import EdgeValues, SampledBatch, parts_of, parts_on_device
from jaxgnn.sampling.capacity import Capacity, SharedCapacity, bound_of
from jaxgnn.sampling.checks import Method
from jaxgnn.sampling.drawing import Drawing, HostGraph, RawSample, on_host
from jaxgnn.sampling.features import FeatureStore
from jaxgnn.sampling.loader import BatchLoader, SeedOrder, StagedRows, default_device
from jaxgnn.sampling.prefetch import Prefetched
from jaxgnn.sampling.relations import Temporal, check_options
from jaxgnn.sampling.sources import DeviceSource, HostSource, Source, timed_source

# Batches that are made at the same time; each has an equal part of the threads.
_CONCURRENT_BATCHES = 4


class NeighborLoader(BatchLoader[SampledBatch]):
    """Draws batches of seeds with sampled neighbours, for training on graphs of any size.

    For each batch, hop after hop, some neighbours are drawn of all nodes found so far. All batches
    have one shape, so that a jitted step compiles once. Batches are made ahead by threads, and are
    on the default device.

    A batch is a function of ``seed``, its epoch and its step: ``loader.batch(epoch, step)``. It
    does not depend on the number of threads or on restarts.

    Args:
      graph: a concrete square graph: row i receives from ``indices[indptr[i]:indptr[i + 1]]``. Its
        arrays may be memory-mapped. Blocks have its weights. If it is normalised, so are they:
        their sums are unbiased estimates of those over all neighbours.
      seeds: nodes to draw batches of: ids, a mask [nodes], or None for all.
      fanouts: neighbours that are drawn of each node, from the seeds outwards, -1 for all; one for
        each layer.
      batch_size: number of seeds of a batch.
      features: features of all nodes, [nodes, ...]: an array of NumPy or JAX, a path of .npy files,
        or a store of ``sampling.features``; None for none.
      labels: labels of all nodes, [nodes, ...]; None for none.
      replace: whether the same neighbour may be drawn again.
      weights: for each edge slot of the graph the weight of its draws; None for equal ones. A
        neighbour of weight zero is never drawn.
      direction: whether neighbours are the senders of the edges that enter a node, ``"in"``, as
        layers need it, or the receivers of those that leave it, ``"out"``.
      method: ``"neighbour"`` draws for each node independently. With ``"labor"``
        (https://arxiv.org/abs/2210.13339) nodes draw the same neighbours where they can, so that
        batches have fewer nodes.
      batch_dependency: for ``"labor"``, number of steps over which the draws change gradually, so
        that successive batches have nodes in common.
      shuffle: whether each epoch has another order of the seeds.
      drop_last: whether to leave out the last batch of an epoch if it has fewer seeds.
      seed: of all random numbers, from 0 to 2^64 - 1.
      on: what draws: threads of the host, or the device, for a graph that fits there. Both draw the
        same batches. The device draws without ``weights``, at most 64 neighbours of a node or all.
      num_threads: number of threads; None for one for each core.
      capacity: numbers of slots of a batch; None measures eight batches. With several processes, a
        batch that does not fit into a given one is an error.
      edge_ids: whether batches have ``e_id``.
      edge_times: for each edge slot of the graph its time: integers, floats or ``datetime64``,
        ascending or equal within each row. None to draw from all edges. Sort a list of edges by
        receiver, then by time, before ``from_edges``, which keeps that order:
        ``order = np.lexsort((times, receivers))``; then ``edge_times`` are ``times[order]``.
      seed_times: with ``edge_times``, the time of each seed, of the same kind. Only edges strictly
        before the time of a seed are drawn for it, in all hops, so each seed has nodes of its own
        (``batch.batch``), even where two seeds are one node. ``labels`` then have an entry for each
        seed, [seeds, ...], and edges of a row are in the order of their times.
      temporal: which edges before the time of a seed: ``"uniform"``, or the ``"last"``, the most
        recent ones; of equal times those that come last in the graph.
      processes: ``(index, count)`` of this process: each draws its own part of the seeds of each
        step. None for those of JAX.

    Attributes:
      capacity: numbers of slots of a batch. If a batch does not fit, they grow, with a warning. Of
        several processes, one batch that does not fit gives all of them more slots in this step.
      features: the store of the features, or None.

    Raises:
      ValueError: if an argument has another form than described above; the message names it.

    Example:
      >>> graph = CSRGraph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
      >>> x = np.eye(4, dtype=np.float32)
      >>> loader = NeighborLoader(graph, [2, 0], fanouts=(2, 2), batch_size=2, features=x)
      >>> for batch in loader:
      ...     print(sorted(batch.n_id.tolist()), batch.blocks[-1].shape, batch.x.shape)
      [0, 1, 2, 3] (2, 4) (4, 4)

      Before a time, from a list of edges in any order:

      >>> senders, receivers, times = np.array([[1, 2, 0, 3], [0, 0, 3, 0], [9, 4, 7, 5]])
      >>> order = np.lexsort((times, receivers))
      >>> graph = CSRGraph.from_edges(senders[order], receivers[order], num_nodes=4)
      >>> options = {"edge_times": times[order], "seed_times": [8]}
      >>> batch = NeighborLoader(graph, [0], (-1, -1), 1, **options).batch(epoch=0, step=0)
      >>> batch.n_id[: batch.num_nodes[0]].tolist()
      [0, 2, 3]
    """

    def __init__(
        self,
        graph: CSRGraph,
        seeds: npt.ArrayLike | None = None,
        fanouts: Sequence[int] = (15, 10, 5),
        batch_size: int = 1024,
        features: FeatureStore | Any = None,
        labels: npt.ArrayLike | None = None,
        *,
        replace: bool = False,
        weights: npt.ArrayLike | None = None,
        direction: Literal["in", "out"] = "in",
        method: Method = "neighbour",
        batch_dependency: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        on: Literal["host", "device"] = "host",
        num_threads: int | None = None,
        capacity: Capacity | None = None,
        edge_ids: bool = True,
        edge_times: npt.ArrayLike | None = None,
        seed_times: npt.ArrayLike | None = None,
        temporal: Temporal = "uniform",
        processes: tuple[int, int] | None = None,
    ):
        super().__init__()
        where = self._where
        fanouts = options.checked_fanouts(where, fanouts)
        options.check_place(where, on, weights)
        checks.options(where, fanouts, replace, method, batch_dependency)
        checks.counters(where, seed, 0, 0)
        drawing = Drawing(fanouts, seed, replace, method, batch_dependency)
        checks.flags(where, shuffle=shuffle, drop_last=drop_last, edge_ids=edge_ids)
        check_options(where, drawing, edge_times, seed_times, temporal)
        options.require_positive(where, "batch_size", batch_size)
        num_threads = options.checked_threads(where, num_threads)
        host = HostGraph.of(where, graph, direction)
        self._count = self._take_seeds(seeds, graph)
        self._process, num_processes = options.checked_processes(where, processes)
        self._shared = SharedCapacity(where, self._process, num_processes, capacity is not None)
        self._batch_size = min(batch_size, -(-self._count // num_processes))
        self._order = SeedOrder(
            self._count,
            self._batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            num_processes=num_processes,
        )
        self._order.require_a_step(where, self._things)
        self._with_edge_ids = options.checked_edge_ids(where, edge_ids, host.num_edges)
        self.features = options.checked_features(where, features, host.num_nodes)
        labelled = (host.num_nodes, "node") if seed_times is None else (self._count, "seed")
        self._labels = options.checked_labels(where, labels, *labelled)
        self._workers = min(num_threads, _CONCURRENT_BATCHES)
        source = HostSource(
            host,
            options.checked_weights(where, weights, graph, host),
            drawing,
            max(num_threads // self._workers, 1),
        )
        self._device = default_device()
        timed = None
        if seed_times is not None:
            times = edge_times, seed_times, temporal
            timed = timed_source(where, source, graph, self._seeds, times, on)
            self._seeds = np.arange(self._count)  # by number, as times and labels are
        self._source: Source = source if timed is None else timed
        self._values = EdgeValues.of(graph, host.degrees(), direction)
        if on == "device":
            self._source = DeviceSource.of(source, graph, direction, self._device)
            self._values = to_device(where, self._values, self._device)
            self._parts = parts_on_device
        else:
            self._values = jax.tree.map(on_host, self._values)
            # A GPU sorts edges in less time than copying their order to it would take.
            self._parts = partial(parts_of, with_plans=jax.default_backend() == "cpu")
        self._rows = (
            None if self.features is None else StagedRows(where, self.features, self._device)
        )
        self._num_nodes, self._drawn_graph = host.num_nodes, host
        self._bound = _bound(
            source,
            self._seed_slots(),
            copies=1 if timed is None else self._batch_size,
            with_candidates=on == "device",
        )
        self.capacity = self._measured() if capacity is None else self._checked(capacity)

    def batch(self, epoch: int, step: int) -> SampledBatch:
        """Makes one batch, on the default device.

        Raises:
          ValueError: if there is no such epoch or step.

        Warns:
          UserWarning: if the batch does not fit into the capacity, which grows.
        """
        self._check_place(epoch, step)
        seeds, labels = self._seeds_of(epoch, step, self._process), self._labels
        parts = self._fields(self._draw(seeds, epoch, step), len(seeds))
        slots = len(parts["seed_mask"])
        of_seeds = (
            None if labels is None else options.read_labels(self._where, labels, seeds, slots)
        )
        parts["y"] = of_seeds
        return SampledBatch(**to_device(self._where, parts, self._device))

    def read_counts(self, num_batches: int = 32, epoch: int = 0) -> np.ndarray:
        """Counts how often the first batches of an epoch contain each node, int64 [nodes].

        ``features.CachedFeatures.hottest`` keeps the nodes of the largest counts on the device.
        """
        steps = range(min(num_batches, len(self)))
        made = Prefetched(
            lambda step: self._nodes_of(epoch, step), steps, threads=self._workers, depth=8
        )
        counts = np.zeros(self._num_nodes, np.int64)
        for ids in made:
            counts[ids] += 1
        return counts

    # -- what loaders of other things than nodes replace --------------------------------------

    def _take_seeds(self, seeds: Any, graph: CSRGraph) -> int:
        """Keeps what an epoch visits, after checks, and returns its number."""
        self._seeds = options.checked_seeds(self._where, seeds, graph.num_rows)
        return len(self._seeds)

    def _seed_slots(self) -> int:
        """Most seeds of a batch."""
        return self._batch_size

    def _least_seed_slots(self) -> int:
        """Fewest slots for seeds of a capacity, which cannot grow where seeds are asked for."""
        return self._batch_size

    # -- parts of a batch --------------------------------------------------------------------

    def _fields(self, raw: RawSample, num_seeds: int) -> dict[str, Any]:
        """The fields of a batch that do not depend on what is asked about its seeds."""
        self._values.check_files(self._where)
        parts, rows = self._parts(raw, self._values), self._rows
        if not self._with_edge_ids:
            parts["e_id"] = None
        parts["seed_mask"] = np.arange(raw.seed_ids.shape[0]) < num_seeds
        parts["x"] = None if rows is None else rows.gather(raw.n_id)
        return parts

    def _nodes_of(self, epoch: int, step: int) -> np.ndarray:
        n_id = self._sample_of(epoch, step).n_id
        return n_id[n_id >= 0]

    def _sample_of(self, epoch: int, step: int) -> RawSample:
        return self._draw(self._seeds_of(epoch, step, self._process), epoch, step)

    def _checked(self, capacity: Capacity) -> Capacity:
        """A user's capacity, after a check that it holds some batch."""
        if not isinstance(capacity, Capacity):
            raise bad_input(self._where, "capacity", "a Capacity or None", type(capacity).__name__)
        lengths, expected = ([*map(len, c)] for c in (astuple(capacity), astuple(self._bound)))
        if lengths != expected:
            expected = "numbers of nodes, edges and candidates, {}, {} and {}".format(*expected)
            raise bad_input(self._where, "capacity", expected, capacity)
        least = self._sizes_of(0, 0, 0, 1)
        least = replace(least, nodes=(self._least_seed_slots(), *least.nodes[1:]))
        ascending = all(a <= b for a, b in itertools.pairwise(capacity.nodes))
        if not capacity.holds(least) or not ascending:
            expected = f"ascending, and at least that of one seed, {least}"
            raise bad_input(self._where, "capacity", expected, capacity)
        return capacity


def _bound(source: HostSource, batch_size: int, *, copies: int, with_candidates: bool) -> Capacity:
    """The sizes that no batch exceeds, with so many copies of the graph to draw from."""
    host, drawing = source.graph, source.drawing
    max_degree = int(host.degrees().max(initial=0))
    num_edges = host.num_edges
    if drawing.replace:
        max_degree = max(max_degree, *drawing.fanouts)
        num_edges = max(num_edges, host.num_nodes * max_degree)
    return bound_of(
        batch_size,
        drawing.fanouts,
        copies * host.num_nodes,
        copies * num_edges,
        max_degree,
        with_candidates=with_candidates and drawing.method == "labor",
    )
