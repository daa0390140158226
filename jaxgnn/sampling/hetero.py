"""HeteroNeighborLoader: batches of seeds with neighbours along relations between types of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from jaxgnn._errors import bad_input
from jaxgnn.graph import EdgeType, HeteroGraph
from jaxgnn.sampling import checks, options
from jaxgnn.sampling.batches import HeteroBatch, typed_parts_of
from jaxgnn.sampling.capacity import HeteroCapacity, typed_bound_of
from jaxgnn.sampling.checks import Method
from jaxgnn.sampling.drawing import Drawing, on_host
from jaxgnn.sampling.loader import Loader, StagedRows, Step
from jaxgnn.sampling.memory import check_files, filled
from jaxgnn.sampling.options import (
    fanouts_of,
    features_of,
    labels_of,
    relations_of,
    seeds_of,
)
from jaxgnn.sampling.relations import Temporal, TypedHops, check_options, checked_seed_times
from jaxgnn.sampling.sources import Source


class HeteroSample(NamedTuple):
    """Neighbourhoods of the seeds of a step.

    Attributes:
      items: places of the seeds among all, [seeds].
      drawn: nodes by type, and edges by relation.
    """

    items: np.ndarray
    drawn: TypedHops


class HeteroNeighborLoader(Loader[HeteroBatch]):
    """Draws batches of seeds with sampled neighbours, on graphs with several types of nodes.

    The seeds are nodes of one type. In each hop, each relation draws some senders of all receivers
    found so far. All batches have one shape, so that a jitted step compiles once. Batches are made
    ahead by threads, and are on the default device. Their blocks are ``HeteroGraph``, which
    ``nn.HeteroConv`` and ``nn.HGTConv`` take; see ``HeteroBatch``.

    Neighbours are senders, and types that receive from no relation have none:
    ``graph.with_reverse()`` adds the missing directions.

    A batch is a function of ``seed``, its epoch and its step: ``loader.batch(epoch, step)``. It
    does not depend on the number of threads or on restarts. In the counters of random numbers, hop
    h of the relation at position r in ``graph.edge_types`` is hop ``r * 2^16 + h``. With one type
    of nodes and one relation the sample is that of ``NeighborLoader``.

    Args:
      graph: the relations, concrete and not normalised; blocks have their weights. Their arrays may
        be memory-mapped.
      seeds: ``(node type, nodes)``: ids, a mask [nodes], or None for all nodes of the type.
      fanouts: neighbours that each relation draws of each node, from the seeds outwards; -1 for
        all, 0 for none. One number for each layer, ``(15, 10)``, for all relations, or a dictionary
        of these with all relations.
      batch_size: number of seeds of a batch.
      features: for each type of nodes its features, [nodes, ...]: an array of NumPy or JAX, a path
        of .npy files, or a store of ``sampling.features``. Types without features may be left out.
      labels: labels of all nodes of the type of the seeds, [nodes, ...]; None for none.
      replace: whether the same neighbour may be drawn again.
      weights: for relations the weight of the draws of each edge slot. Others draw equally.
      method: ``"neighbour"``, or ``"labor"`` as for ``NeighborLoader``; each relation has its own
        random numbers.
      batch_dependency: as for ``NeighborLoader``.
      shuffle: whether each epoch has another order of the seeds.
      drop_last: whether to leave out the last batch of an epoch if it has fewer seeds.
      seed: of all random numbers, from 0 to 2^64 - 1.
      num_threads: number of threads; None for one for each core.
      capacity: numbers of slots of a batch; None measures eight batches. With several processes, a
        batch that does not fit into a given one is an error.
      edge_ids: whether batches have ``e_id``.
      edge_times: for each relation the time of each edge slot: integers, floats or ``datetime64``,
        ascending or equal within each row; None for a relation whose edges exist at all times,
        which always draws uniformly. None to draw from all edges of the graph. The edges of a
        relation are sorted as for ``NeighborLoader``, ``order = np.lexsort((times, receivers))``,
        and those of the reverse relation by its own receivers; ``with_reverse`` does not do this.
      seed_times: with ``edge_times``, the time of each seed, of the same kind. Only edges strictly
        before the time of a seed are drawn for it, in all hops, so each seed has nodes of its own
        (``batch.batch``), even where two seeds are one node. ``labels`` then have an entry for each
        seed, [seeds, ...], and edges of a row are in the order of their times.
      temporal: which edges before the time of a seed: ``"uniform"``, or the ``"last"``, the most
        recent ones; of equal times those that come last in the graph.
      joined: whether blocks have their relations joined (``HeteroGraph.prepared``), as
        ``nn.HGTConv`` reads them. It sorts their edges in each step otherwise.
      processes: ``(index, count)`` of this process: each draws its own part of the seeds of each
        step. None for those of JAX.

    Attributes:
      capacity: numbers of slots of a batch. If a batch does not fit, they grow, with a warning. Of
        several processes, one batch that does not fit gives all of them more slots in this step.
      features: the stores of the features, by type.

    Raises:
      ValueError: if an argument has another form than described above; the message names it.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> writes = CSRGraph.from_edges([0, 1, 1], [0, 0, 1], 2, num_senders=2)
      >>> graph = HeteroGraph({("author", "writes", "paper"): writes}).with_reverse()
      >>> x = {"author": np.ones((2, 3)), "paper": np.ones((2, 4))}
      >>> loader = HeteroNeighborLoader(graph, ("paper", [1, 0]), (2, 2), 2, x, shuffle=False)
      >>> batch = loader.batch(epoch=0, step=0)
      >>> batch.n_id["paper"].tolist(), batch.n_id["author"].tolist(), batch.x["paper"].shape
      ([1, 0], [0, 1], (2, 4))
    """

    _measure = HeteroCapacity.measured

    def __init__(
        self,
        graph: HeteroGraph,
        seeds: tuple[str, npt.ArrayLike | None],
        fanouts: Sequence[int] | Mapping[EdgeType, Sequence[int]] = (15, 10),
        batch_size: int = 1024,
        features: Mapping[str, Any] | None = None,
        labels: npt.ArrayLike | None = None,
        *,
        replace: bool = False,
        weights: Mapping[EdgeType, npt.ArrayLike] | None = None,
        method: Method = "neighbour",
        batch_dependency: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        num_threads: int | None = None,
        capacity: HeteroCapacity | None = None,
        edge_ids: bool = True,
        edge_times: Mapping[EdgeType, npt.ArrayLike | None] | None = None,
        seed_times: npt.ArrayLike | None = None,
        temporal: Temporal = "uniform",
        joined: bool = False,
        processes: tuple[int, int] | None = None,
    ):
        where = self._where
        if not isinstance(graph, HeteroGraph):
            raise bad_input(where, "graph", "a HeteroGraph", type(graph).__name__)
        of_relations = fanouts_of(where, fanouts, graph)
        numbers = [number for of_hops in of_relations.values() for number in of_hops]
        checks.options(where, numbers, replace, method, batch_dependency, may_be_zero=True)
        checks.counters(where, seed, 0, 0)
        checks.flags(where, edge_ids=edge_ids, joined=joined)
        self._seed_type, self._seeds = seeds_of(where, seeds, graph)
        drawing = Drawing((), seed, replace, method, batch_dependency)
        check_options(where, drawing, edge_times, seed_times, temporal)
        self._seed_times = None
        if seed_times is not None:
            self._seed_times = checked_seed_times(where, seed_times, len(self._seeds))
            if weights is not None:
                raise bad_input(where, "weights", "None with seed_times", repr(list(weights)))
        super().__init__(
            len(self._seeds),
            batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            num_threads=num_threads,
            capacity=capacity,
            processes=processes,
        )
        relations = relations_of(where, graph, of_relations, weights, edge_times, self._seed_times)
        num_nodes = {self._seed_type: graph.num_nodes[self._seed_type], **graph.num_nodes}
        self._source = Source(
            relations,
            num_nodes,
            self._seed_type,
            drawing,
            temporal == "last",
            self._threads_of_batch,
        )
        most_edges = max(relation.graph.num_edges for relation in relations.values())
        self._with_edge_ids = options.checked_edge_ids(where, edge_ids, most_edges)
        self.features = features_of(where, features, graph)
        labelled = num_nodes[self._seed_type], self._seeds, self._seed_times
        self._labels = labels_of(where, labels, *labelled)
        self._edge_weights = {e: on_host(relation.weights) for e, relation in graph.items()}
        self._rows = {
            t: StagedRows(where, store, self._device) for t, store in self.features.items()
        }
        # A GPU sorts edges in less time than copying their order to it would take.
        self._with_plans = jax.default_backend() == "cpu"
        self._joined = joined
        self._bound = typed_bound_of(
            relations,
            num_nodes,
            self._seed_type,
            self._batch_size,
            copies=1 if seed_times is None else self._batch_size,
            replace=replace,
        )
        if capacity is not None:
            self._slots = self._ordered(capacity)
        self._capacity()  # Errors of the graph and of the capacity are those of the constructor.

    # -- policy of the loader -----------------------------------------------------------------

    def draw(self, step: Step) -> HeteroSample:
        """Draws the neighbourhoods of the seeds of a step."""
        return HeteroSample(step.items, self._drawn(step.items, step))

    def sizes(self, sample: HeteroSample) -> HeteroCapacity:
        """Counts the nodes and edges of a sample, by type and relation."""
        return HeteroCapacity.of(sample.drawn, list(self._source.relations))

    def fields(self, sample: HeteroSample, capacity: HeteroCapacity) -> HeteroBatch:
        """Pads a sample, and reads weights, features and labels."""
        weights = {f"graph[{e!r}].weights": w for e, w in self._edge_weights.items()}
        check_files(self._where, **weights)
        source, drawn, size = self._source, sample.drawn, self._batch_size
        parts = typed_parts_of(
            drawn,
            source.relations,
            self._edge_weights,
            source.num_nodes,
            capacity,
            with_plans=self._with_plans,
        )
        if self._joined:
            parts["blocks"] = tuple(block.prepared() for block in parts["blocks"])
        if not self._with_edge_ids:
            parts["e_id"] = None
        if drawn.owners is not None:
            slots = {t: n[-1] for t, n in capacity.nodes.items()}
            owners = drawn.owners.items()
            parts["batch"] = {t: filled(o, slots[t], size, np.int32) for t, o in owners}
        labels, items = self._labels, sample.items
        parts |= {
            "seed_ids": filled(drawn.seed_ids, size, 0, np.int32),
            "seed_mask": np.arange(size) < len(items),
            "x": {t: rows.gather(parts["n_id"][t]) for t, rows in self._rows.items()},
            "y": None if labels is None else options.read_labels(self._where, labels, items, size),
        }
        return HeteroBatch(seed_type=self._seed_type, **parts)

    def bound(self) -> HeteroCapacity:
        """Returns the sizes that no batch exceeds."""
        return self._bound

    def _drawn(self, items: np.ndarray, step: Step) -> TypedHops:
        """Draws the neighbourhoods of some seeds."""
        times = self._seed_times
        return self._source.draw(
            self._seeds[items],
            step.epoch,
            step.step,
            seed_times=None if times is None else times[items],
        )

    def _ordered(self, capacity: HeteroCapacity) -> HeteroCapacity:
        """Returns a user's capacity in the order of types, after a check that it holds a batch."""
        where, bound = self._where, self._bound
        if not isinstance(capacity, HeteroCapacity):
            expected = "a HeteroCapacity or None"
            raise bad_input(where, "capacity", expected, type(capacity).__name__)
        ordered = capacity.like(bound)
        if ordered is None:
            expected = "with the types of nodes, relations and hops of the loader"
            raise bad_input(where, "capacity", expected, capacity)
        first = HeteroSample(self._seeds[:1], self._drawn(np.arange(1), self._step(0, 0, 0)))
        least = self.sizes(first).with_rows(self._batch_size)
        ascending = all(list(n) == sorted(n) for n in ordered.nodes.values())
        if not ordered.holds(least) or not ascending:
            expected = f"ascending, and at least that of one seed, {least}"
            raise bad_input(where, "capacity", expected, capacity)
        return ordered
