"""LinkNeighborLoader: batches of pairs of nodes, with sampled neighbours of their ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, cast

import jax
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Int32

from jaxgnn._arrays.arrays import host_array
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling import checks, random
from jaxgnn.sampling.batches import SampledBatch
from jaxgnn.sampling.capacity import Capacity, rounded
from jaxgnn.sampling.checks import Method
from jaxgnn.sampling.drawing import on_host
from jaxgnn.sampling.features import FeatureStore
from jaxgnn.sampling.loader import Step
from jaxgnn.sampling.memory import filled
from jaxgnn.sampling.negatives import NegativeSampler, pairs_of, senders_of
from jaxgnn.sampling.neighbours import Asked, NeighborLoader, Sample
from jaxgnn.sampling.options import checked_labels, read_labels
from jaxgnn.sampling.prefetch import Prefetched
from jaxgnn.sampling.reference import distinct


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LinkBatch(SampledBatch):
    """Pairs of nodes with a sample of the neighbourhoods of their ends, in fixed shapes; a pytree.

    It is a ``SampledBatch`` whose seeds are the distinct ends of the pairs, in their order, so that
    the rows of the last result begin with the ends. An edge that joins a given pair of the batch is
    in none of its blocks. The first ``batch_size`` slots of pairs, as the loader has them, are the
    given ones, and those after them the negatives: first those of the first pair. The last batch of
    an epoch may have padding in both.

    Attributes:
      pairs: first and second node of each pair, as rows of the last result, int32 [2, pairs]; zeros
        for padding. ``decoder(h, batch.pairs)`` scores them.
      pair_labels: [pairs, ...]; by default float32 ones for given pairs, and zeros for negatives.
      pair_mask: False for padding, and for a negative whose first node has edges to all nodes, bool
        [pairs].
    """

    pairs: Int32[Array, "2 pairs"]
    pair_labels: Any
    pair_mask: Bool[Array, " pairs"]

    def __repr__(self) -> str:
        """Shows shapes instead of arrays."""
        return f"LinkBatch({self.pairs.shape[-1]} pairs, {super().__repr__()})"


class LoaderOptions(TypedDict, total=False):
    """Options of ``LinkNeighborLoader`` that mean the same as those of ``NeighborLoader``."""

    replace: bool
    weights: npt.ArrayLike | None
    direction: Literal["in", "out"]
    method: Method
    batch_dependency: int
    shuffle: bool
    drop_last: bool
    on: Literal["host", "device"]
    num_threads: int | None
    capacity: Capacity | None
    edge_ids: bool
    processes: tuple[int, int] | None


class LinkNeighborLoader(NeighborLoader):
    """Draws batches of pairs of nodes with sampled neighbours of their ends, to predict edges.

    A network that reads the edge that it predicts learns to repeat it. So the edges that join the
    given pairs of a batch, with all of their repeats, carry no messages in it: neighbours are drawn
    from the other edges, and a node draws as many as it would in a graph without these edges.
    Negatives are drawn again in each step, without rejection, from all pairs that no edge joins.

    A batch is a function of ``seed``, its epoch and its step, as those of ``NeighborLoader`` are.

    Args:
      graph: the edges that carry messages, as for ``NeighborLoader``.
      edges: pairs to predict, ``(senders, receivers)`` or [2, edges]. They may be edges of the
        graph or not.
      fanouts: neighbours that are drawn of each node, from the ends of the pairs outwards, -1 for
        all; one for each layer.
      batch_size: number of given pairs of a batch; it has ``negatives`` times as many others.
      features: features of all nodes, as for ``NeighborLoader``.
      labels: labels of the given pairs, [edges, ...], or None for ones. Those of negatives are
        zeros, so that classes begin with 1.
      negatives: number of pairs without an edge for each given pair.
      keep_senders: whether a negative has the first node of its given pair, so that only the second
        is drawn.
      negative_sampler: draws the negatives, for example with ``weights="degree"``, or without the
        edges of another graph. By default all pairs are equally likely that are neither edges of
        the graph, nor in ``edges``, nor a node with itself.
      undirected: whether ``(u, v)`` and ``(v, u)`` are one pair: an edge in either direction makes
        it a pair that is no negative, and the edges of a given pair are left out in both. Messages
        go along the directions that the graph has; ``jaxgnn.graph.to_undirected`` adds the missing
        ones. A ``negative_sampler`` decides about negatives by itself.
      seed: of all random numbers, from 0 to 2^64 - 1.
      options: ``replace``, ``weights``, ``direction``, ``method``, ``batch_dependency``,
        ``shuffle``, ``drop_last``, ``on``, ``num_threads``, ``capacity``, ``edge_ids`` and
        ``processes`` as for ``NeighborLoader``. The slots for the ends of pairs are measured, as
        those for other nodes are. With ``on="device"`` the host draws the negatives, and finds the
        edges that are left out.

    Raises:
      ValueError: if an argument has another form than described above; the message names it.

    Example:
      >>> ring = np.arange(8)
      >>> graph = CSRGraph.from_edges([*ring, *(ring + 1) % 8], [*(ring + 1) % 8, *ring], 8)
      >>> loader = LinkNeighborLoader(graph, (ring, (ring + 1) % 8), fanouts=(2,), batch_size=4)
      >>> batch = loader.batch(epoch=0, step=0)
      >>> batch.pairs.shape, batch.pair_labels.tolist()
      ((2, 8), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    """

    _things = "edges"
    # The number of distinct ends is random, as that of other nodes is.
    _measure = staticmethod(rounded)

    def __init__(
        self,
        graph: CSRGraph,
        edges: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
        fanouts: Sequence[int] = (15, 10, 5),
        batch_size: int = 1024,
        features: FeatureStore | Any = None,
        labels: npt.ArrayLike | None = None,
        *,
        negatives: int = 1,
        keep_senders: bool = False,
        negative_sampler: NegativeSampler | None = None,
        undirected: bool = True,
        seed: int = 0,
        **options: Unpack[LoaderOptions],
    ):
        is_integer = isinstance(negatives, int | np.integer) and not isinstance(negatives, bool)
        if not is_integer or negatives < 0:
            raise bad_input(self._where, "negatives", "an int of at least 0", repr(negatives))
        checks.flags(self._where, keep_senders=keep_senders, undirected=undirected)
        for name in sorted({"edge_times", "seed_times", "temporal"} & options.keys()):
            raise bad_input(self._where, name, "left out, since pairs have no times", "it")
        self._per_pair, self._keep_senders = int(negatives), keep_senders
        self._sampler, self._undirected = negative_sampler, undirected
        self._pair_labels: Any = labels
        self._is_transposed = options.get("direction") == "out"
        self._seed = seed
        pairs: Any = edges
        super().__init__(graph, pairs, fanouts, batch_size, features, seed=seed, **options)

    def __iter__(self) -> Iterator[LinkBatch]:
        """Iterates over the next epoch, from 0 on: each loop over the loader is another epoch."""
        return cast(Any, super().__iter__())

    def epoch(self, epoch: int, start: int = 0) -> Prefetched[LinkBatch]:
        """Iterates over the batches of an epoch, from a step on."""
        return cast(Any, super().epoch(epoch, start))

    def batch(self, epoch: int, step: int) -> LinkBatch:
        """Makes one batch, on the default device.

        Raises:
          ValueError: if there is no such epoch or step.

        Warns:
          UserWarning: if the batch does not fit into the capacity, which grows.
        """
        return cast(Any, super().batch(epoch, step))

    def fields(self, sample: Sample, capacity: Capacity) -> LinkBatch:
        """Pads a sample, and reads features and the labels of pairs."""
        return LinkBatch(**self._parts_of(sample, capacity), **self._pair_fields(sample.asked))

    # -- items that are pairs -----------------------------------------------------------------

    def _take_seeds(self, seeds: Any, graph: CSRGraph) -> int:
        self._edges = _checked_edges(self._where, seeds, graph.num_rows)
        count = self._edges.shape[1]
        self._pair_labels = checked_labels(self._where, self._pair_labels, count, "edge")
        self._negatives = None
        if self._per_pair:
            sampler = checked_sampler(
                self._where, self._sampler, graph, self._edges, undirected=self._undirected
            )
            self._negatives = Negatives.of(
                sampler, self._per_pair, keep_senders=self._keep_senders, seed=self._seed
            )
        return count

    def _seed_slots(self) -> int:
        """Returns an upper bound on the number of distinct ends in a batch."""
        new_ends = 1 if self._keep_senders else 2
        return min(self._batch_size * (2 + new_ends * self._per_pair), self._graph.num_nodes)

    def _least_seed_slots(self) -> int:
        return 1

    # -- parts of a batch ---------------------------------------------------------------------

    def _asked(self, step: Step) -> _AskedPairs:
        """Returns the pairs of a step, and their ends."""
        places = step.items
        count, size = len(places), self._batch_size
        pairs = self._edges[:, places].T
        mask = np.ones(count, bool)
        slots = np.arange(count)
        if self._negatives is not None:
            of_all = step.process * size + slots
            drawn = self._negatives.draw(step.epoch, step.step, of_all, pairs[:, 0])
            first, second = (ends.reshape(-1) for ends in drawn)
            exists = second >= 0
            # A pair that does not exist has one end, which is in the batch anyhow.
            others = np.stack([first, np.where(exists, second, first)], axis=1)
            pairs, mask = np.concatenate([pairs, others]), np.concatenate([mask, exists])
            slots = np.concatenate([slots, size + np.arange(len(others))])
        ends, positions = distinct(pairs.reshape(-1))
        joined = self._given_edges(places)
        return _AskedPairs(places, ends, joined, positions.reshape(-1, 2), mask, slots)

    def _given_edges(self, places: np.ndarray) -> np.ndarray:
        """Returns positions, in the graph that is drawn from, of the edges that join some pairs."""
        senders, receivers = self._edges[:, places]
        if self._undirected:
            senders, receivers = np.append(senders, receivers), np.append(receivers, senders)
        elif self._is_transposed:
            senders, receivers = receivers, senders
        return self._graph.edges_between(receivers, senders)

    def _pair_fields(self, asked: _AskedPairs) -> dict[str, Any]:
        """Returns pairs and labels in their slots."""
        size, count = self._batch_size, len(asked.items)
        num_slots = size * (1 + self._per_pair)
        pairs, mask = np.zeros((2, num_slots), np.int32), np.zeros(num_slots, bool)
        pairs[:, asked.slots], mask[asked.slots] = asked.pairs.T, asked.mask
        labels = self._pair_labels
        if labels is None:
            of_pairs = filled(np.ones(count, np.float32), num_slots, 0)
        else:
            of_pairs = read_labels(self._where, labels, asked.items, num_slots)
        return {"pairs": pairs, "pair_mask": mask, "pair_labels": of_pairs}


@dataclass(frozen=True, eq=False)
class _AskedPairs(Asked):
    """Pairs of a step, whose seeds are the distinct nodes of all pairs.

    Attributes:
      pairs: both nodes of each pair as places in ``seeds``, negatives after given pairs,
        [pairs, 2].
      mask: False for negatives that do not exist, [pairs].
      slots: slot of each pair in the batch, [pairs].
    """

    pairs: Any = None
    mask: Any = None
    slots: Any = None


def _checked_edges(where: str, edges: Any, num_nodes: int) -> np.ndarray:
    """Pairs as int64 [2, edges]."""
    expected = "two lists of one length, (senders, receivers)"
    if not getattr(edges, "shape", True) or not hasattr(edges, "__len__") or len(edges) != 2:
        got = getattr(edges, "shape", type(edges).__name__)
        raise bad_input(where, "edges", expected, got)
    lists = [host_array(where, "edges", ends) for ends in edges]
    shapes = [ends.shape for ends in lists]
    if len(shapes[0]) != 1 or shapes[0] != shapes[1]:
        raise bad_input(where, "edges", expected, "shapes {} and {}".format(*shapes))
    if not shapes[0][0]:
        raise bad_input(where, "edges", "at least one pair", "none")
    for name, ends in zip(("senders", "receivers"), lists, strict=True):
        if ends.dtype.kind not in "iu":
            raise bad_input(where, "edges", f"{name} that are integers", ends.dtype)
        wrong = np.flatnonzero((ends < 0) | (ends >= num_nodes))
        if len(wrong):
            expected = f"node ids from 0 to {num_nodes - 1}"
            raise bad_input(where, "edges", expected, f"{name}[{wrong[0]}] = {ends[wrong[0]]}")
    return np.stack(lists).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Negatives:
    """Draws some pairs without an edge for each pair of a step.

    Attributes:
      sampler: draws by random bits, with arrays of NumPy.
      per_pair: number of pairs to draw for each pair.
      keep_senders: whether only receivers are drawn, for the senders of the pairs.
      seed: of the random numbers.
    """

    sampler: NegativeSampler
    per_pair: int
    keep_senders: bool
    seed: int

    @classmethod
    def of(
        cls, sampler: NegativeSampler, per_pair: int, *, keep_senders: bool, seed: int
    ) -> Negatives:
        """Copies the arrays of a sampler to the host."""
        return cls(jax.tree.map(on_host, sampler), per_pair, keep_senders, seed)

    def draw(
        self, epoch: int, step: int, slots: np.ndarray, senders: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws pairs on the host.

        Args:
          epoch: number of the epoch.
          step: number of the step.
          slots: place in the step, among all processes, of each pair, [pairs].
          senders: the first node of each pair, [pairs].

        Returns:
          Senders and receivers, int32 [pairs, per_pair]; a receiver is -1 if its sender has edges
          to all nodes.
        """
        key = random.hop_key(random.batch_key(self.seed, epoch, step), 0, random.NEGATIVES)
        words = random.draw(key, slots[:, None], np.arange(self.per_pair))
        high, low = (words >> np.uint64(32)).astype(np.uint32), words.astype(np.uint32)
        if self.keep_senders:
            first = np.broadcast_to(senders[:, None].astype(np.int32), words.shape)
        else:
            first = senders_of(self.sampler, high)
        return pairs_of(self.sampler, first, low)


def checked_sampler(
    where: str, sampler: Any, graph: CSRGraph, pairs: np.ndarray, *, undirected: bool
) -> NegativeSampler:
    """A user's sampler after a check; by default that of all edges of a graph and of pairs."""
    if sampler is None:
        return _sampler_of(graph, pairs, undirected=undirected)
    if not isinstance(sampler, NegativeSampler):
        expected = "a NegativeSampler, or None"
        raise bad_input(where, "negative_sampler", expected, type(sampler).__name__)
    shape = sampler.allowed.shape[0], sampler.num_receivers
    if shape != (graph.num_rows, graph.num_rows):
        expected = f"of a graph of {graph.num_rows} nodes"
        raise bad_input(where, "negative_sampler", expected, "{} and {} nodes".format(*shape))
    return sampler


def _sampler_of(graph: CSRGraph, pairs: np.ndarray, *, undirected: bool) -> NegativeSampler:
    indptr, indices = on_host(graph.indptr), on_host(graph.indices)
    rows = np.repeat(np.arange(graph.num_rows), np.diff(indptr))
    joined = [np.stack([indices[: rows.shape[0]], rows]), pairs]
    if undirected:  # the graph may have one direction alone
        joined += [ends[::-1] for ends in joined]
    senders, receivers = np.concatenate(joined, axis=1)
    return NegativeSampler.of(CSRGraph.from_edges(senders, receivers, graph.num_rows))
