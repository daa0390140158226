"""Graphs of the tests of loaders."""

import numpy as np

from jaxgnn import CSRGraph

NODES = 60


def random_graph(nodes=NODES, edges=300, seed=0, weighted=False, padding=0):
    """A directed graph with repeated edges, loops and isolated nodes; the last ten have no edge."""
    rng = np.random.default_rng(seed)
    senders, receivers = rng.integers(0, nodes - 10, (2, edges + padding))
    weights = rng.random(edges + padding).astype(np.float32) + 0.5 if weighted else None
    mask = np.arange(edges + padding) < edges if padding else None
    return CSRGraph.from_edges(senders, receivers, nodes, weights, edge_mask=mask)


def edges_of(graph):
    """Senders, receivers and weights of the real edges, as numpy arrays."""
    count = int(graph.indptr[-1])
    receivers = np.repeat(np.arange(graph.num_rows), np.diff(graph.indptr))
    weights = None if graph.weights is None else np.asarray(graph.weights)[:count]
    return np.asarray(graph.indices)[:count], receivers, weights


def assert_induced(batch, graph):
    """A batch has distinct nodes in each part, and all edges of the graph between them."""
    mask = np.asarray(batch.node_mask)
    n_id = np.asarray(batch.n_id)
    count = int(mask.sum())
    assert mask[:count].all() and (n_id[count:] == -1).all()
    senders, receivers, weights = edges_of(batch.graph)
    e_id = np.asarray(batch.e_id)
    assert (e_id[len(senders) :] == -1).all() and (receivers < count).all()
    whole_senders, whole_receivers, whole_weights = edges_of(graph)
    kept = e_id[: len(senders)]
    np.testing.assert_array_equal(whole_senders[kept], n_id[senders])
    np.testing.assert_array_equal(whole_receivers[kept], n_id[receivers])
    if whole_weights is not None:
        np.testing.assert_array_equal(whole_weights[kept], weights)
    parts = np.zeros(count, int) if batch.graph_ids is None else batch.graph_ids[:count]
    for part in np.unique(parts):
        own = n_id[:count][parts == part]
        assert len(set(own.tolist())) == len(own)
        expected = np.flatnonzero(np.isin(whole_senders, own) & np.isin(whole_receivers, own))
        np.testing.assert_array_equal(np.sort(kept[parts[receivers] == part]), expected)
