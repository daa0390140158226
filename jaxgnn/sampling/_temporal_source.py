"""A source of samples before the times of the seeds, of a graph with nodes of one type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from jaxgnn._errors import bad_input, is_choice
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling._capacity import Capacity
from jaxgnn.sampling._memory import filled
from jaxgnn.sampling._reference import Hops
from jaxgnn.sampling._source import (
    Drawing,
    HostGraph,
    HostSource,
    RawSample,
    on_host,
    padded,
    sizes_of,
)
from jaxgnn.sampling._temporal import (
    EdgeTimes,
    check_ascending,
    check_comparable,
    check_present,
    checked_times,
)
from jaxgnn.sampling._typed_hops import Relation, TypedHops, sample_typed_hops

Temporal = Literal["uniform", "last"]
"""Choice among the edges before a time."""


@dataclass(frozen=True, eq=False)
class TemporalSource:
    """Draws before the times of seeds, on the host; each seed has nodes of its own.

    The seeds of its methods are numbers of seeds, not nodes: one node may be a seed several times.

    Attributes:
      host: the graph, and options of the draws.
      relation: the edges in the order of their times.
      seeds: node of each seed, int64 [all seeds].
      seed_times: time of each seed, [all seeds].
      latest: whether the last edges are taken.
    """

    host: HostSource
    relation: Relation
    seeds: np.ndarray
    seed_times: np.ndarray
    latest: bool

    def sizes(self, seeds: np.ndarray, epoch: int, step: int) -> Capacity:
        """Sizes of a sample."""
        return sizes_of(self._hops(seeds, epoch, step)[0])

    def draw(
        self, seeds: np.ndarray, epoch: int, step: int, capacity: Capacity
    ) -> RawSample | Capacity:
        """A sample; its sizes instead if it does not fit into the capacity."""
        hops, owners = self._hops(seeds, epoch, step)
        sizes = sizes_of(hops)
        if not capacity.holds(sizes):
            return sizes
        num_seeds, *_, num_nodes = capacity.nodes
        raw = padded(hops, capacity, self.relation.graph)
        return raw._replace(owners=filled(owners, num_nodes, num_seeds, np.int32))

    def _hops(self, seeds: np.ndarray, epoch: int, step: int) -> tuple[Hops, np.ndarray]:
        """A sample without padding, and the place of the seed of each node."""
        found = sample_typed_hops(
            [self.relation],
            {self.relation.sender: self.relation.graph.num_nodes},
            self.relation.sender,
            self.seeds[seeds],
            drawing=self.host.drawing,
            epoch=epoch,
            step=step,
            seed_times=self.seed_times[seeds],
            latest=self.latest,
            num_threads=self.host.num_threads,
        )
        return _of_one_type(found)


def _of_one_type(found: TypedHops) -> tuple[Hops, np.ndarray]:
    assert found.owners is not None
    (n_id,), (num_nodes,), (owners,) = (
        each.values() for each in (found.n_id, found.num_nodes, found.owners)
    )
    return Hops(n_id, num_nodes, found.hops[0], found.seed_ids), owners


def timed_source(
    where: str,
    host: HostSource,
    graph: CSRGraph,
    seeds: np.ndarray,
    given: tuple[Any, Any, Temporal],
    on: str,
) -> TemporalSource:
    """Returns a source for the times of a loader.

    Args:
      where: the function that was called.
      host: the graph, and options of the draws that ``check_options`` has passed.
      graph: the user's graph.
      seeds: node of each seed, int64 [seeds].
      given: times of edges, times of seeds, and which edges are drawn.
      on: what draws.

    Raises:
      ValueError: if times are invalid, or an option is not for samples before a time.
    """
    edge_times, seed_times, temporal = given
    if on != "host":
        raise bad_input(where, "on", '"host" with seed_times', repr(on))
    if host.weights is not None:
        raise bad_input(where, "weights", "None with seed_times", f"{len(host.weights)} values")
    times = checked_times(where, "seed_times", seed_times, len(seeds))
    check_present(where, "seed_times", times)
    if graph.is_normalized:
        expected = "not normalised with seed_times; normalise the blocks"
        raise bad_input(where, "graph", expected, repr(graph.normalization))
    drawn = timed_graph(where, "edge_times", edge_times, graph, host.graph, times)
    relation = Relation("", "", *drawn, fanouts=host.drawing.fanouts)
    # A copy, since a file that times are mapped from may shrink.
    return TemporalSource(host, relation, seeds, np.array(times), temporal == "last")


def timed_graph(
    where: str,
    argument: str,
    edge_times: Any,
    graph: CSRGraph,
    drawn: HostGraph,
    seed_times: np.ndarray,
) -> tuple[HostGraph, EdgeTimes]:
    """Returns the graph that draws with its rows in the order of time, and its times.

    Args:
      where: the function that was called.
      argument: name of the argument.
      edge_times: times of the edge slots of the user's graph.
      graph: the user's graph.
      drawn: the same, as rows that draw.
      seed_times: checked times of the seeds.

    Raises:
      ValueError: if times are invalid, missing, or descend within a row of the user's graph.
    """
    times = checked_times(where, argument, edge_times, graph.num_edges)
    check_comparable(where, argument, times, seed_times)
    times = times[: drawn.num_edges]
    check_present(where, argument, times)
    check_ascending(where, argument, on_host(graph.indptr), times)
    return EdgeTimes.of(drawn, times)


def check_options(
    where: str, drawing: Drawing, edge_times: Any, seed_times: Any, temporal: Any
) -> None:
    """Raises ValueError unless times, if there are any, go with the other options of a loader."""
    if not is_choice(temporal, get_args(Temporal)):
        expected = " or ".join(repr(name) for name in get_args(Temporal))
        raise bad_input(where, "temporal", expected, repr(temporal))
    if (edge_times is None) != (seed_times is None):
        missing, given = ("edge_times", "seed_times")[:: 1 if edge_times is None else -1]
        raise bad_input(where, missing, f"given with {given}", "None")
    if seed_times is None:
        if temporal == "last":
            raise bad_input(where, "seed_times", "given with temporal='last'", "None")
        return
    if drawing.method != "neighbour":
        raise bad_input(where, "method", "'neighbour' with seed_times", repr(drawing.method))
    if temporal == "last" and drawing.replace:
        raise bad_input(where, "replace", "False with temporal='last'", drawing.replace)
