"""Checks of the arguments of loaders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import (
    checked_numbers,
    dtype_of_jax,
    host_array,
    require_count,
    require_kept_integers,
)
from jaxgnn._errors import bad_input, is_choice
from jaxgnn.graph import CSRGraph, EdgeType, HeteroGraph
from jaxgnn.sampling import checks
from jaxgnn.sampling.drawing import HostGraph, on_host
from jaxgnn.sampling.features import FeatureStore, as_store
from jaxgnn.sampling.memory import check_files, filled, is_mapped
from jaxgnn.sampling.relations import Relation, timed_graph


def checked_fanouts(where: str, fanouts: Any) -> tuple[int, ...]:
    """Fan-outs as a tuple; ``checks.options`` checks the numbers."""
    if not isinstance(fanouts, Sequence) or isinstance(fanouts, str) or not len(fanouts):
        raise bad_input(where, "fanouts", "a number for each layer", repr(fanouts))
    return tuple(fanouts)


def check_place(where: str, on: Any, weights: Any) -> None:
    """Raises ValueError unless ``on`` is a place that draws, by weights only on the host."""
    if not is_choice(on, ("host", "device")):
        raise bad_input(where, "on", '"host" or "device"', repr(on))
    if on == "device" and weights is not None:
        raise bad_input(where, "weights", 'None with on="device"; on="host" draws by them', "some")


def checked_seeds(where: str, seeds: Any, num_nodes: int) -> np.ndarray:
    """Ids of the seeds."""
    ids = np.arange(num_nodes) if seeds is None else np.asarray(seeds)
    if ids.dtype == bool:
        if ids.shape != (num_nodes,):
            expected = f"a mask of shape ({num_nodes},), or ids"
            raise bad_input(where, "seeds", expected, f"shape {ids.shape}")
        ids = np.flatnonzero(ids)
    if not ids.size:
        raise bad_input(where, "seeds", "at least one node", "none")
    return checks.seeds(where, ids, num_nodes)


def checked_weights(
    where: str, weights: Any, graph: CSRGraph, host: HostGraph
) -> np.ndarray | None:
    """Weights of the draws, for the edges of the graph that is drawn from."""
    if weights is None:
        return None
    values = on_host(weights)
    if values.shape != (graph.num_edges,):
        expected = f"of shape ({graph.num_edges},), one for each edge slot"
        raise bad_input(where, "weights", expected, f"shape {values.shape}")
    if graph.is_normalized:
        expected = "None for a normalised graph, whose neighbours count equally"
        raise bad_input(where, "weights", expected, f"{values.dtype} of shape {values.shape}")
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float32)
    values = values[: host.num_edges] if host.edge_ids is None else values[host.edge_ids]
    _check_draws(where, values, host.indptr)
    return values


def checked_features(where: str, features: Any, num_nodes: int) -> FeatureStore | None:
    """The store of features with a row for each node, or None."""
    return None if features is None else checked_store(where, features, num_nodes)


def checked_store(where: str, features: Any, num_nodes: int) -> FeatureStore:
    """The store of features with a row for each node, of which those in memory are checked."""
    store = as_store(where, features)
    if store.num_rows != num_nodes:
        expected = f"of {num_nodes} rows, one for each node"
        raise bad_input(where, "features", expected, f"{store.num_rows} rows")
    checked_numbers(where, "features", np.zeros(0, store.dtype))
    if isinstance(features, np.ndarray) and not is_mapped(features):
        require_kept_integers(where, "features", features)
    return store


def checked_labels(where: str, labels: Any, count: int, thing: str = "node") -> np.ndarray | None:
    """Labels with an entry for each node, or each of other things, or None.

    Those in memory are checked here, and mapped ones by ``read_labels``.
    """
    if labels is None:
        return None
    values = labels if isinstance(labels, np.ndarray) else host_array(where, "labels", labels)
    if values.ndim == 0 or values.shape[0] != count:
        expected = f"of shape ({count}, ...), one for each {thing}"
        raise bad_input(where, "labels", expected, f"shape {values.shape}")
    if not is_mapped(values):
        return checked_numbers(where, "labels", values)
    checked_numbers(where, "labels", values[:0])
    check_files(where, labels=values)
    return values


def read_labels(where: str, labels: np.ndarray, rows: Any, slots: int) -> np.ndarray:
    """Labels of some rows in their dtype of JAX, then zeros up to a number of slots.

    Raises:
      ValueError: if they are mapped from a file that has another size now, or has integers that JAX
        would cut.
    """
    check_files(where, labels=labels)
    values = checked_numbers(where, "labels", labels[rows])
    return filled(values, slots, 0, dtype_of_jax(values.dtype))


def checked_processes(where: str, processes: tuple[int, int] | None) -> tuple[int, int]:
    """Index and number of processes, by default those of JAX."""
    if processes is None:
        return jax.process_index(), jax.process_count()
    pair = tuple(processes) if isinstance(processes, tuple | list) else ()
    integers = all(checks.is_integer(number) for number in pair)
    if len(pair) != 2 or not integers or not 0 <= pair[0] < pair[1]:
        expected = "two integers (index, count) with 0 <= index < count, or None"
        raise bad_input(where, "processes", expected, repr(processes))
    return int(pair[0]), int(pair[1])


def checked_edge_ids(where: str, edge_ids: bool, num_edges: int) -> bool:
    """Whether batches have ids of edges, which must fit JAX's integers."""
    if edge_ids and num_edges > np.iinfo(np.int32).max and not jax.config.jax_enable_x64:
        expected = "False for a graph of more than 2^31 - 1 edges, or jax_enable_x64 set"
        raise bad_input(where, "edge_ids", expected, edge_ids)
    return edge_ids


def checked_threads(where: str, num_threads: int | None) -> int:
    """Number of threads, by default one for each core that this process may use."""
    if num_threads is None:
        allowed = getattr(os, "sched_getaffinity", None)  # Linux alone has it
        return len(allowed(0)) if allowed else os.cpu_count() or 1
    require_positive(where, "num_threads", num_threads)
    return num_threads


def require_positive(where: str, argument: str, value: Any) -> None:
    """Raises ValueError unless a value is a positive int."""
    require_count(where, argument, value, "an int of at least 1")


def _check_draws(where: str, weights: np.ndarray, indptr: np.ndarray) -> None:
    """Raises ValueError, which names the first edge or row, unless weights can be drawn by."""
    wrong = ~(weights >= 0) | np.isinf(weights)
    if wrong.any():
        at = int(wrong.argmax())
        raise checks.bad_weight(where, weights[at], at)
    positive = np.concatenate([np.zeros(1, np.int64), np.cumsum(weights > 0)])[indptr]
    zero = (np.diff(positive) == 0) & (np.diff(indptr) > 0)
    if zero.any():
        raise checks.zero_weights(where, int(zero.argmax()))


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
    relations = {}
    for edge_type, relation in graph.items():
        argument = f"graph[{edge_type!r}]"
        if relation.is_normalized:
            raise bad_input(where, argument, "not normalised; normalise the blocks", repr(relation))
        host = HostGraph.of(where, relation, "in", argument=argument, is_relation=True)
        drawn = checked_weights(where, of_draws.get(edge_type), relation, host)
        times, values = None, of_times.get(edge_type)
        if seed_times is not None and values is not None:
            name = f"edge_times[{edge_type!r}]"
            host, times = timed_graph(where, name, values, relation, host, seed_times)
        sender, _, receiver = edge_type
        relations[edge_type] = Relation(sender, receiver, host, times, fanouts[edge_type], drawn)
    return relations


def _by_relation(
    where: str, argument: str, values: Any, graph: HeteroGraph, *, needs_all: bool = False
) -> Mapping[EdgeType, Any]:
    """A dictionary by relations, empty for None, after a check that the graph has them."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise bad_input(where, argument, "a dictionary by relations", type(values).__name__)
    for edge_type in values:
        if edge_type not in graph:
            expected = f"by relations of the graph, {list(graph.edge_types)}"
            raise bad_input(where, argument, expected, repr(edge_type))
    missing = [e for e in graph.edge_types if e not in values]
    if needs_all and missing:
        raise bad_input(where, argument, "given for all relations", f"none for {missing[0]!r}")
    return values


def fanouts_of(where: str, fanouts: Any, graph: HeteroGraph) -> dict[EdgeType, tuple[int, ...]]:
    """Fan-outs of each relation; ``checks.options`` checks the numbers."""
    if not isinstance(fanouts, Mapping):
        return dict.fromkeys(graph.edge_types, checked_fanouts(where, fanouts))
    of_relations = _by_relation(where, "fanouts", fanouts, graph, needs_all=True)
    checked = {e: checked_fanouts(where, of_relations[e]) for e in graph.edge_types}
    lengths = {len(numbers) for numbers in checked.values()}
    if len(lengths) > 1:
        expected = "equally many numbers for each relation, 0 for no neighbours"
        raise bad_input(where, "fanouts", expected, checked)
    return checked


def seeds_of(where: str, seeds: Any, graph: HeteroGraph) -> tuple[str, np.ndarray]:
    """The type of the seeds, and their ids."""
    if not isinstance(seeds, tuple) or len(seeds) != 2 or seeds[0] not in graph.node_types:
        expected = f"a pair of a node type, one of {list(graph.node_types)}, and nodes"
        raise bad_input(where, "seeds", expected, repr(seeds))
    node_type, nodes = seeds
    return node_type, checked_seeds(where, nodes, graph.num_nodes[node_type])


def features_of(where: str, features: Any, graph: HeteroGraph) -> dict[str, FeatureStore]:
    """The stores of the features by type of nodes."""
    by_type = {} if features is None else features
    if not isinstance(by_type, Mapping):
        expected = "a dictionary of the features of types of nodes"
        raise bad_input(where, "features", expected, type(by_type).__name__)
    for node_type in by_type:
        if node_type not in graph.node_types:
            expected = f"of the types {list(graph.node_types)}"
            raise bad_input(where, "features", expected, repr(node_type))
    stores = {}
    for node_type in graph.node_types:
        store = checked_features(where, by_type.get(node_type), graph.num_nodes[node_type])
        if store is not None:
            stores[node_type] = store
    return stores


def labels_of(
    where: str, labels: Any, num_nodes: int, seeds: np.ndarray, seed_times: Any
) -> np.ndarray | None:
    """Labels of the seeds, given for them if they have times, else for all nodes of their type."""
    if seed_times is not None:
        return checked_labels(where, labels, len(seeds), "seed")
    values = checked_labels(where, labels, num_nodes)
    return None if values is None else checked_numbers(where, "labels", values[seeds])
