"""The neighbour sampler of pylibcugraph on a GPU, a peer in ``sample_on_device``."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import numpy as np

from experiments.benchmarks._random_graph import DeviceGraph
from jaxgnn.testing.timing import Candidate

Sources = Literal["all", "new"]
"""Nodes for which a hop draws: all nodes found so far, as ours, or only those of the last hop."""

_PRIOR_SOURCES: dict[Sources, str] = {"all": "carryover", "new": "exclude"}
_POOL_BYTES = 2**32  # the pool grows when it needs more
_SEED = 7


class CuGraph:
    """A graph of pylibcugraph, its memory pool, and calls that sample the graph.

    pylibcugraph draws among the edges that leave a node, so its graph has the receivers as sources.
    It stores a row of edges for each receiver, as ours. Ids of nodes and edges are int32, as ours.

    Args:
      graph: the graph that ours samples.
      fanouts: number of neighbours that each hop draws.

    Attributes:
      versions: version of pylibcugraph.

    Raises:
      ImportError: if pylibcugraph, cupy or rmm is missing.
    """

    def __init__(self, graph: DeviceGraph, fanouts: Sequence[int]):
        self._library = importlib.import_module("pylibcugraph")
        self._cupy = importlib.import_module("cupy")
        self._fanouts = np.array(fanouts, np.int32)
        self.versions = {"pylibcugraph": self._library.__version__}
        # Without a pool each of its temporary arrays is a call of cudaMalloc.
        rmm = importlib.import_module("rmm")
        rmm.reinitialize(pool_allocator=True, initial_pool_size=_POOL_BYTES)

        self._host = indptr, indices = np.asarray(graph.indptr), np.asarray(graph.indices)
        receivers = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), np.diff(indptr))
        self._handle = self._library.ResourceHandle()
        self._graph = self._library.SGGraph(
            self._handle,
            self._library.GraphProperties(is_symmetric=False, is_multigraph=True),
            self._cupy.asarray(receivers),
            self._cupy.asarray(indices),
            edge_id_array=self._cupy.asarray(np.arange(len(indices), dtype=np.int32)),
            vertices_array=self._cupy.asarray(np.arange(graph.num_nodes, dtype=np.int32)),
            store_transposed=False,
            renumber=False,
            do_expensive_check=False,
        )
        self.wait()
        self._cupy.get_default_memory_pool().free_all_blocks()

    def inputs(self, seeds: jax.Array, call: int) -> tuple[Any, Any, int]:
        """Arguments of ``sample``: seeds and offsets of batches, and the seed of random numbers.

        Args:
          seeds: seeds of several batches, [batches, seeds].
          call: number of the call.
        """
        batches, size = seeds.shape
        offsets = np.arange(batches + 1, dtype=np.int64) * size
        nodes = self._cupy.asarray(np.asarray(seeds, np.int32).reshape(-1))
        return nodes, _Offsets(self._cupy.asarray(offsets), offsets), _SEED + call

    def sample(self, sources: Sources, seeds: Any, offsets: Any, state: int) -> dict[str, Any]:
        """Samples batches, with local ids of nodes, ids of edges, and offsets of hops."""
        return self._library.homogeneous_uniform_neighbor_sample(
            self._handle,
            self._graph,
            seeds,
            offsets,
            self._fanouts,
            with_replacement=False,
            do_expensive_check=False,
            prior_sources_behavior=_PRIOR_SOURCES[sources],
            deduplicate_sources=True,
            return_hops=True,
            renumber=True,
            retain_seeds=True,
            random_state=state,
        )

    def wait(self, result: Any = None) -> None:
        """Blocks until the device has finished."""
        del result
        self._cupy.cuda.runtime.deviceSynchronize()

    def candidate(self, sources: Sources, seeds: Sequence[jax.Array]) -> tuple[Candidate, float]:
        """Calls to be timed, and the mean number of edges of a batch.

        Args:
          sources: nodes for which a hop draws.
          seeds: for each set of inputs the seeds of its batches, [batches, seeds].
        """
        inputs = [(sources, *self.inputs(each, i)) for i, each in enumerate(seeds)]
        edges = [len(self.sample(*each)["minors"]) / len(seeds[0]) for each in inputs]
        return Candidate(self.sample, inputs, jit=False, wait=self.wait), float(np.mean(edges))

    def check(self, seeds: jax.Array) -> None:
        """Checks samples of batches against the graph.

        Each node for which a hop draws must have as many distinct edges as its degree and the
        fan-out allow, and each edge must have the sender and the receiver that the sample says.

        Args:
          seeds: seeds of several batches, [batches, seeds].

        Raises:
          ValueError: naming the first hop that differs.
        """
        for sources in get_args(Sources):
            sample = self.sample(sources, *self.inputs(seeds, 0))
            host = {name: self._cupy.asnumpy(array) for name, array in sample.items()}
            hops = iter(itertools.pairwise(host["label_hop_offsets"]))
            maps = itertools.pairwise(host["renumber_map_offsets"])
            for batch, (begin, end) in zip(np.asarray(seeds), maps, strict=True):
                n_id = host["renumber_map"][begin:end]
                drawn, used = np.unique(batch), batch[:0]
                for hop, fanout in enumerate(self._fanouts):
                    edges = slice(*next(hops))
                    receivers, senders = (n_id[host[name][edges]] for name in ("majors", "minors"))
                    if not self._is_drawn(
                        drawn, fanout, host["edge_id"][edges], receivers, senders
                    ):
                        raise ValueError(
                            f"pylibcugraph: wrong edges in hop {hop} of {sources} nodes"
                        )
                    used = np.union1d(used, drawn)
                    drawn = np.union1d(used, senders)
                    if sources == "new":
                        drawn = np.setdiff1d(senders, used)

    def _is_drawn(self, rows, fanout, edges, receivers, senders) -> bool:
        indptr, indices = self._host
        degrees = indptr[rows + 1] - indptr[rows]
        counts = np.bincount(receivers, minlength=len(indptr) - 1)
        return (
            len(np.unique(edges)) == len(edges) == counts[rows].sum()
            and np.array_equal(counts[rows], np.minimum(degrees, fanout))
            and np.array_equal(indices[edges], senders)
            and bool(np.all((indptr[receivers] <= edges) & (edges < indptr[receivers + 1])))
        )


class _Offsets:
    """Offsets on the device, with their values on the host, where pylibcugraph reads the last."""

    def __init__(self, device: Any, host: np.ndarray):
        self.__cuda_array_interface__ = device.__cuda_array_interface__
        self._device = device  # owns the memory
        self._host = host

    def __len__(self) -> int:
        return len(self._host)

    def __getitem__(self, place: int) -> int:
        return int(self._host[place])
