"""Pairs without an edge for each step of a training, a function of seed, epoch and step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling import _random
from jaxgnn.sampling._negative_edges import NegativeSampler, pairs_of, senders_of
from jaxgnn.sampling._source import on_host


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
        key = _random.hop_key(_random.batch_key(self.seed, epoch, step), 0, _random.NEGATIVES)
        words = _random.draw(key, slots[:, None], np.arange(self.per_pair))
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
