"""Checks of the arguments of loaders of graphs with several types of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import checked_numbers
from jaxgnn._errors import bad_input
from jaxgnn.graph import EdgeType, HeteroGraph
from jaxgnn.sampling import _loader_checks as checks
from jaxgnn.sampling._source import HostGraph
from jaxgnn.sampling._temporal_source import timed_graph
from jaxgnn.sampling._typed_hops import Relation
from jaxgnn.sampling.features import FeatureStore


def relations_of(
    where: str,
    graph: HeteroGraph,
    fanouts: Mapping[EdgeType, tuple[int, ...]],
    weights: Mapping[EdgeType, npt.ArrayLike] | None,
    edge_times: Mapping[EdgeType, npt.ArrayLike | None] | None,
    seed_times: np.ndarray | None,
) -> dict[EdgeType, Relation]:
    """The relations with their options, after checks."""
    of_draws = _by_relation(where, "weights", weights, graph)
    of_times = _by_relation(where, "edge_times", edge_times, graph, needs_all=True)
    made = {}
    for edge_type, relation in graph.items():
        argument = f"graph[{edge_type!r}]"
        if relation.is_normalized:
            raise bad_input(where, argument, "not normalised; normalise the blocks", repr(relation))
        host = HostGraph.of(where, relation, "in", argument=argument, is_relation=True)
        drawn = checks.checked_weights(where, of_draws.get(edge_type), relation, host)
        times, values = None, of_times.get(edge_type)
        if seed_times is not None and values is not None:
            name = f"edge_times[{edge_type!r}]"
            host, times = timed_graph(where, name, values, relation, host, seed_times)
        sender, _, receiver = edge_type
        made[edge_type] = Relation(sender, receiver, host, times, fanouts[edge_type], drawn)
    return made


def _by_relation(
    where: str, argument: str, given: Any, graph: HeteroGraph, *, needs_all: bool = False
) -> Mapping[EdgeType, Any]:
    """A dictionary by relations, empty for None, after a check that the graph has them."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise bad_input(where, argument, "a dictionary by relations", type(given).__name__)
    for edge_type in given:
        if edge_type not in graph:
            expected = f"by relations of the graph, {list(graph.edge_types)}"
            raise bad_input(where, argument, expected, repr(edge_type))
    missing = [e for e in graph.edge_types if e not in given]
    if needs_all and missing:
        raise bad_input(where, argument, "given for all relations", f"none for {missing[0]!r}")
    return given


def fanouts_of(where: str, fanouts: Any, graph: HeteroGraph) -> dict[EdgeType, tuple[int, ...]]:
    """Fan-outs of each relation; ``_checks.options`` checks the numbers."""
    if not isinstance(fanouts, Mapping):
        return dict.fromkeys(graph.edge_types, checks.checked_fanouts(where, fanouts))
    given = _by_relation(where, "fanouts", fanouts, graph, needs_all=True)
    made = {e: checks.checked_fanouts(where, given[e]) for e in graph.edge_types}
    lengths = {len(numbers) for numbers in made.values()}
    if len(lengths) > 1:
        expected = "equally many numbers for each relation, 0 for no neighbours"
        raise bad_input(where, "fanouts", expected, made)
    return made


def seeds_of(where: str, seeds: Any, graph: HeteroGraph) -> tuple[str, np.ndarray]:
    """The type of the seeds, and their ids."""
    if not isinstance(seeds, tuple) or len(seeds) != 2 or seeds[0] not in graph.node_types:
        expected = f"a pair of a node type, one of {list(graph.node_types)}, and nodes"
        raise bad_input(where, "seeds", expected, repr(seeds))
    node_type, nodes = seeds
    return node_type, checks.checked_seeds(where, nodes, graph.num_nodes[node_type])


def features_of(where: str, features: Any, graph: HeteroGraph) -> dict[str, FeatureStore]:
    """The stores of the features by type of nodes."""
    given = {} if features is None else features
    if not isinstance(given, Mapping):
        expected = "a dictionary of the features of types of nodes"
        raise bad_input(where, "features", expected, type(given).__name__)
    for node_type in given:
        if node_type not in graph.node_types:
            expected = f"of the types {list(graph.node_types)}"
            raise bad_input(where, "features", expected, repr(node_type))
    made = {}
    for node_type in graph.node_types:
        store = checks.checked_features(where, given.get(node_type), graph.num_nodes[node_type])
        if store is not None:
            made[node_type] = store
    return made


def labels_of(
    where: str, labels: Any, num_nodes: int, seeds: np.ndarray, seed_times: Any
) -> np.ndarray | None:
    """Labels of the seeds, given for them if they have times, else for all nodes of their type."""
    if seed_times is not None:
        return checks.checked_labels(where, labels, len(seeds), "seed")
    values = checks.checked_labels(where, labels, num_nodes)
    return None if values is None else checked_numbers(where, "labels", values[seeds])
