"""NeighborLoader: batches of seeds with sampled neighbours, made ahead by threads."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import to_device
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling import checks, options
from jaxgnn.sampling.batches import EdgeValues, SampledBatch, parts_of, parts_on_device
from jaxgnn.sampling.capacity import Capacity, bound_of, measured
from jaxgnn.sampling.checks import Method
from jaxgnn.sampling.drawing import Drawing, HostGraph, RawSample, on_host
from jaxgnn.sampling.features import FeatureStore
from jaxgnn.sampling.loader import Loader, StagedRows, Step
from jaxgnn.sampling.prefetch import Prefetched
from jaxgnn.sampling.relations import (
    Relation,
    Temporal,
    TypedHops,
    check_options,
    checked_seed_times,
    timed_graph,
)
from jaxgnn.sampling.sources import (
    DeviceSource,
    Source,
    candidates_of,
    hops_of_one_type,
    padded,
    sizes_of,
)


@dataclass(frozen=True, eq=False)
class Asked:
    """Seeds of a step.

    Attributes:
      items: places of the visited items among all, [items].
      seeds: nodes to draw the neighbourhoods of, int64 [seeds].
      excluded: positions of edges that are not drawn, ascending, or None.
    """

    items: np.ndarray
    seeds: np.ndarray
    excluded: np.ndarray | None = None

    def of_first_seed(self) -> Asked:
        """Returns the first seed alone."""
        return Asked(self.items[:1], self.seeds[:1], self.excluded)


class Sample(NamedTuple):
    """Neighbourhoods of the seeds of a step.

    Attributes:
      asked: the seeds.
      drawn: ``TypedHops`` of the host, or a ``RawSample`` in slots of the device.
    """

    asked: Any
    drawn: Any


class NeighborLoader(Loader[SampledBatch]):
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

    # A batch has a slot for each of its seeds.
    _measure = staticmethod(measured)

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
        where = self._where
        fanouts = options.checked_fanouts(where, fanouts)
        options.check_place(where, on, weights)
        checks.options(where, fanouts, replace, method, batch_dependency)
        checks.counters(where, seed, 0, 0)
        drawing = Drawing(fanouts, seed, replace, method, batch_dependency)
        checks.flags(where, edge_ids=edge_ids)
        check_options(where, drawing, edge_times, seed_times, temporal)
        host = HostGraph.of(where, graph, direction)
        super().__init__(
            self._take_seeds(seeds, graph),
            batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            num_threads=num_threads,
            capacity=capacity,
            processes=processes,
        )
        self._with_edge_ids = options.checked_edge_ids(where, edge_ids, host.num_edges)
        self.features = options.checked_features(where, features, host.num_nodes)
        labelled = (host.num_nodes, "node") if seed_times is None else (self._num_items, "seed")
        self._labels = options.checked_labels(where, labels, *labelled)
        drawn_by = options.checked_weights(where, weights, graph, host)
        relation = Relation("", "", host, None, fanouts, drawn_by)
        self._seed_times = None
        if seed_times is not None:
            self._seed_times, relation = self._timed(graph, relation, edge_times, seed_times, on)
        self._graph, self._drawing = relation.graph, drawing
        self._source = Source(
            {("", "", ""): relation},
            {"": host.num_nodes},
            "",
            drawing,
            temporal == "last",
            self._threads_of_batch,
        )
        self._values = EdgeValues.of(graph, host.degrees(), direction)
        self._on_device = None
        if on == "device":
            self._on_device = DeviceSource.of(drawing, graph, host, direction, self._device)
            self._values = to_device(where, self._values, self._device)
            self._parts = parts_on_device
        else:
            self._values = jax.tree.map(on_host, self._values)
            # A GPU sorts edges in less time than copying their order to it would take.
            self._parts = partial(parts_of, with_plans=jax.default_backend() == "cpu")
        stored = self.features
        self._rows = None if stored is None else StagedRows(where, stored, self._device)
        self._bound = _bound(
            host,
            drawing,
            self._seed_slots(),
            copies=1 if seed_times is None else self._batch_size,
            with_candidates=self._has_candidates(),
        )
        if capacity is not None:
            self._check_capacity(capacity)
        self._capacity()  # Errors of the graph and of the capacity are those of the constructor.

    def read_counts(self, num_batches: int = 32, epoch: int = 0) -> np.ndarray:
        """Counts how often the first batches of an epoch contain each node, int64 [nodes].

        ``features.CachedFeatures.hottest`` keeps the nodes of the largest counts on the device.
        """
        steps = range(min(num_batches, len(self)))
        nodes = Prefetched(
            lambda step: self._nodes_of(epoch, step), steps, threads=self._workers, depth=8
        )
        counts = np.zeros(self._graph.num_nodes, np.int64)
        for ids in nodes:
            counts[ids] += 1
        return counts

    # -- policy of the loader -----------------------------------------------------------------

    def draw(self, step: Step) -> Sample:
        """Draws the neighbourhoods of the seeds of a step, on the host."""
        return self._drawn(self._asked(step), step)

    def draw_within(self, step: Step, capacity: Capacity) -> tuple[Any, Capacity | None]:
        """Draws a sample, in slots of the capacity if the device draws."""
        if self._on_device is None:
            return super().draw_within(step, capacity)
        asked = self._asked(step)
        raw = self._on_device.draw(
            asked.seeds, step.epoch, step.step, capacity, excluded=asked.excluded
        )
        if raw is None:
            return None, self.sizes(self._drawn(asked, step))
        return Sample(asked, raw), None

    def sizes(self, sample: Sample) -> Capacity:
        """Counts the nodes and edges of a sample of the host, up to and with each hop."""
        hops = hops_of_one_type(sample.drawn)
        sizes = sizes_of(hops)
        if not self._has_candidates():
            return sizes
        return dataclasses.replace(
            sizes, candidates=candidates_of(hops, self._graph, sample.asked.excluded)
        )

    def fields(self, sample: Sample, capacity: Capacity) -> SampledBatch:
        """Pads a sample, and reads features and labels."""
        labels, asked = self._labels, sample.asked
        y = None
        if labels is not None:
            rows = asked.items if self._seed_times is not None else asked.seeds
            y = options.read_labels(self._where, labels, rows, capacity.nodes[0])
        return SampledBatch(**self._parts_of(sample, capacity), y=y)

    def bound(self) -> Capacity:
        """Returns the sizes that no batch exceeds."""
        return self._bound

    # -- methods that loaders of other items than nodes replace -------------------------------

    def _take_seeds(self, seeds: Any, graph: CSRGraph) -> int:
        """Checks and keeps the items that an epoch visits, and returns their number."""
        self._seeds = options.checked_seeds(self._where, seeds, graph.num_rows)
        return len(self._seeds)

    def _seed_slots(self) -> int:
        """Returns the largest number of seeds of a batch."""
        return self._batch_size

    def _least_seed_slots(self) -> int:
        """Returns the least number of slots for seeds that a capacity must have."""
        return self._batch_size

    def _asked(self, step: Step) -> Asked:
        """Returns the seeds of a step."""
        return Asked(step.items, self._seeds[step.items])

    # -- parts of a batch --------------------------------------------------------------------

    def _drawn(self, asked: Asked, step: Step) -> Sample:
        """Draws the neighbourhoods of some seeds, on the host."""
        times = self._seed_times
        sample = self._source.draw(
            asked.seeds,
            step.epoch,
            step.step,
            seed_times=None if times is None else times[asked.items],
            excluded=asked.excluded,
        )
        return Sample(asked, sample)

    def _parts_of(self, sample: Sample, capacity: Capacity) -> dict[str, Any]:
        """Returns the fields of a batch that do not depend on what is asked about its seeds."""
        drawn, rows = sample.drawn, self._rows
        raw = drawn if isinstance(drawn, RawSample) else padded(drawn, capacity, self._graph)
        self._values.check_files(self._where)
        parts = self._parts(raw, self._values)
        if not self._with_edge_ids:
            parts["e_id"] = None
        parts["seed_mask"] = np.arange(raw.seed_ids.shape[0]) < len(sample.asked.seeds)
        parts["x"] = None if rows is None else rows.gather(raw.n_id)
        return parts

    def _nodes_of(self, epoch: int, step: int) -> np.ndarray:
        """Returns the nodes of a batch."""
        sample, _ = self._fitting(epoch, step)
        if isinstance(sample.drawn, TypedHops):
            return hops_of_one_type(sample.drawn).n_id
        n_id = np.asarray(sample.drawn.n_id)
        return n_id[n_id >= 0]

    def _has_candidates(self) -> bool:
        """Returns whether a capacity has slots for the edges that LABOR chooses from."""
        return self._on_device is not None and self._drawing.method == "labor"

    def _timed(
        self, graph: CSRGraph, relation: Relation, edge_times: Any, seed_times: Any, on: str
    ) -> tuple[np.ndarray, Relation]:
        """Checks times; returns those of the seeds, and edges in the order of their times."""
        where, weights = self._where, relation.weights
        if on != "host":
            raise bad_input(where, "on", '"host" with seed_times', repr(on))
        if weights is not None:
            raise bad_input(where, "weights", "None with seed_times", f"{len(weights)} values")
        times = checked_seed_times(where, seed_times, self._num_items)
        if graph.is_normalized:
            expected = "not normalised with seed_times; normalise the blocks"
            raise bad_input(where, "graph", expected, repr(graph.normalization))
        host, of_edges = timed_graph(where, "edge_times", edge_times, graph, relation.graph, times)
        return times, dataclasses.replace(relation, graph=host, times=of_edges)

    def _check_capacity(self, capacity: Any) -> None:
        """Raises ValueError unless a user's capacity holds some batch."""
        if not isinstance(capacity, Capacity):
            raise bad_input(self._where, "capacity", "a Capacity or None", type(capacity).__name__)
        shapes = (dataclasses.astuple(c) for c in (capacity, self._bound))
        lengths, expected = ([*map(len, numbers)] for numbers in shapes)
        if lengths != expected:
            expected = "numbers of nodes, edges and candidates, {}, {} and {}".format(*expected)
            raise bad_input(self._where, "capacity", expected, capacity)
        first = self._step(0, 0, 0)
        asked = self._asked(first).of_first_seed()
        least = self.sizes(self._drawn(asked, first))
        least = dataclasses.replace(least, nodes=(self._least_seed_slots(), *least.nodes[1:]))
        ascending = all(a <= b for a, b in itertools.pairwise(capacity.nodes))
        if not capacity.holds(least) or not ascending:
            expected = f"ascending, and at least that of one seed, {least}"
            raise bad_input(self._where, "capacity", expected, capacity)


def _bound(
    graph: HostGraph, drawing: Drawing, batch_size: int, *, copies: int, with_candidates: bool
) -> Capacity:
    """Returns the sizes that no batch exceeds, with so many copies of the graph to draw from."""
    max_degree = int(graph.degrees().max(initial=0))
    num_edges = graph.num_edges
    if drawing.replace:
        max_degree = max(max_degree, *drawing.fanouts)
        num_edges = max(num_edges, graph.num_nodes * max_degree)
    return bound_of(
        batch_size,
        drawing.fanouts,
        copies * graph.num_nodes,
        copies * num_edges,
        max_degree,
        with_candidates=with_candidates,
    )
