"""Positions of nodes: eigenvectors of the Laplacian and return probabilities of random walks."""

import jax
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from jaxgnn import CSRGraph, datasets
from jaxgnn.graph import GraphBatch, laplacian_positions, random_walk_positions
from jaxgnn.graph.points import positions as _positions


def _dense(graph):
    matrix = np.zeros(graph.shape)
    weights = np.ones(graph.num_edges) if graph.weights is None else np.asarray(graph.weights)
    np.add.at(matrix, (np.asarray(graph.receivers()), np.asarray(graph.senders)), weights)
    return matrix


def _random(nodes, edges, seed, *, weighted=False):
    rng = np.random.default_rng(seed)
    ring = np.arange(nodes)
    senders = np.concatenate([ring, rng.integers(0, nodes, edges)])
    receivers = np.concatenate([np.roll(ring, 1), rng.integers(0, nodes, edges)])
    weights = rng.uniform(0.1, 2, nodes + edges).astype(np.float32) if weighted else None
    return CSRGraph.from_edges(senders, receivers, nodes, weights)


@pytest.mark.parametrize("weighted", [False, True])
def test_columns_are_eigenvectors_of_the_laplacian_from_the_second_on(weighted):
    graph = _random(30, 60, 0, weighted=weighted)
    adjacency = (_dense(graph) + _dense(graph).T) / 2
    degrees = adjacency.sum(axis=1)
    laplacian = np.eye(30) - adjacency / np.sqrt(degrees[:, None] * degrees)
    values = np.linalg.eigvalsh(laplacian)
    positions = laplacian_positions(graph, 5)
    assert positions.dtype == np.float32
    np.testing.assert_allclose(laplacian @ positions, positions * values[1:6], atol=1e-5)
    np.testing.assert_allclose((positions**2).mean(axis=0), 1, rtol=1e-5)
    largest = np.abs(positions).argmax(axis=0)
    assert (positions[largest, range(5)] > 0).all()


def test_iterations_on_a_large_graph_find_the_same_space_as_a_dense_decomposition():
    dataset = datasets.cora()
    graph = CSRGraph.from_edges(dataset.senders, dataset.receivers, dataset.num_nodes)
    positions = laplacian_positions(graph, 3).astype(np.float64)
    adjacency = graph.to_scipy().astype(np.float64)
    adjacency = (adjacency + adjacency.T) / 2
    scale = adjacency.sum(axis=1) ** -0.5
    similar = scale[:, None] * (adjacency @ (scale[:, None] * positions))
    rates = (positions * similar).mean(axis=0)
    np.testing.assert_allclose(similar, positions * rates, atol=1e-4)
    assert (np.diff(rates) < 0).all() and rates[0] < 1
    constant = adjacency.sum(axis=1) ** 0.5
    np.testing.assert_allclose(constant @ positions / np.linalg.norm(constant), 0, atol=1e-3)
    np.testing.assert_array_equal(laplacian_positions(graph, 3), positions.astype(np.float32))


def _path(nodes):
    return np.arange(nodes - 1), np.arange(1, nodes), nodes


def _ring(nodes):
    return np.arange(nodes), np.roll(np.arange(nodes), 1), nodes


def _stars(nodes, centres):
    """A star whose leaves are centres of stars: most eigenvalues are repeated many times."""
    leaves = np.arange(1, nodes)
    return leaves, np.where(leaves <= centres, 0, 1 + leaves % centres), nodes


def _spider(legs, length):
    """Paths from one centre: one search finds fewer copies of an eigenvalue than there are legs."""
    outer = np.arange(1, 1 + legs * length)
    return outer, np.maximum(outer - legs, 0), 1 + legs * length


def _two_rings(nodes):
    """Two components of different sizes, and two nodes without edges."""
    one, other = _ring(nodes)[:2], _ring(nodes + 50)[:2]
    senders, receivers = (np.concatenate([a, b + nodes]) for a, b in zip(one, other, strict=True))
    return senders, receivers, 2 * nodes + 52


LARGE = {
    "path": (_path(700), 6),
    "ring": (_ring(701), 6),
    "stars": (_stars(700, 30), 35),
    "star": (_stars(650, 700), 4),
    "spider": (_spider(100, 6), 12),
    "disconnected": (_two_rings(620), 5),
}


@pytest.mark.parametrize("factor", [True, False], ids=["factorized", "iterated"])
@pytest.mark.parametrize("name", LARGE)
def test_a_large_graph_gets_the_lowest_frequencies_with_all_their_copies(name, factor, monkeypatch):
    if not factor:
        monkeypatch.setattr(_positions, "_FACTOR", 0)
    (senders, receivers, nodes), count = LARGE[name]
    graph = CSRGraph.from_edges(senders, receivers, nodes)
    adjacency = graph.to_scipy().astype(np.float64)
    positions = laplacian_positions(graph, count).astype(np.float64)
    _, components = connected_components(adjacency, directed=False)
    for label in np.unique(components):
        part = np.flatnonzero(components == label)
        block = adjacency[part][:, part].toarray()
        block = (block + block.T) / 2
        if len(part) == 1:
            assert not positions[part].any()
            continue
        scale = block.sum(axis=1) ** -0.5
        similar = scale[:, None] * block * scale
        expected = np.linalg.eigvalsh(similar)[::-1][1 : count + 1]
        found = positions[part] / len(part) ** 0.5
        np.testing.assert_allclose(found.T @ found, np.eye(count), atol=1e-5)
        np.testing.assert_allclose(similar @ found, found * expected, atol=1e-6)


def test_a_long_path_is_factorized_and_has_its_known_cosines():
    # Nodes of a path carry cos(π k i / (n - 1)), times the root of their degree.
    senders, receivers, nodes = _path(2500)
    graph = CSRGraph.from_edges(senders, receivers, nodes)
    positions = laplacian_positions(graph, 8)
    degrees = np.full(nodes, 2.0)
    degrees[[0, -1]] = 1
    angles = np.pi * np.outer(np.arange(nodes), np.arange(1, 9)) / (nodes - 1)
    expected = np.cos(angles) * np.sqrt(degrees)[:, None]
    expected /= np.sqrt((expected**2).mean(axis=0))
    np.testing.assert_allclose(positions * np.sign(positions[0]), expected, atol=1e-5)


def test_walks_return_with_the_diagonals_of_powers():
    graph = _random(300, 500, 1, weighted=True)
    adjacency = _dense(graph)
    step = adjacency / adjacency.sum(axis=1, keepdims=True)
    expected, power = [], np.eye(300)
    for _ in range(4):
        power = power @ step
        expected.append(np.diag(power))
    positions = random_walk_positions(graph, 4)
    assert positions.dtype == np.float32
    np.testing.assert_allclose(positions, np.transpose(expected), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("function", [laplacian_positions, random_walk_positions])
def test_nodes_of_a_padded_batch_get_what_they_get_in_their_graph(function):
    graphs = [_random(7, 9, 2), CSRGraph.from_edges([], [], 2), _random(4, 3, 3)]
    batch = GraphBatch.from_graphs(graphs, pad_to=(20, 40, 6))
    alone = np.concatenate([function(graph, 5) for graph in graphs])
    together = function(batch.graph, 5)
    np.testing.assert_allclose(together[:13], alone, atol=1e-5)
    assert not together[13:].any()
    assert not function(graphs[1], 5).any()


def test_a_component_of_few_nodes_has_zeros_for_the_missing_eigenvectors():
    positions = laplacian_positions(CSRGraph.from_edges([0, 1], [1, 0], 2), 3)
    np.testing.assert_allclose(np.abs(positions[:, 0]), 1, rtol=1e-6)
    assert not positions[:, 1:].any()
    loop = CSRGraph.from_edges([0], [0], 1)
    assert not laplacian_positions(loop, 2).any()
    assert (random_walk_positions(loop, 2) == 1).all()


GRAPH = CSRGraph.from_edges([0, 1], [1, 0], 2)
BAD = {
    "count": (lambda f: f(GRAPH, 0), "must be an int of at least 1, got 0"),
    "type": (lambda f: f(GRAPH, 2.0), "must be an int of at least 1, got 2.0"),
    "weights": (
        lambda f: f(GRAPH.with_weights(np.array([1, -1], np.float32)), 1),
        r"graph.weights\[1\] must be finite and not negative, got -1.0",
    ),
    "normalised": (lambda f: f(GRAPH.normalized("mean"), 1), "graph must be not normalised"),
    "square": (lambda f: f(CSRGraph.from_edges([0], [0], 2, num_senders=1), 1), "must be square"),
    "traced": (lambda f: jax.jit(lambda g: f(g, 1))(GRAPH), "graph must be concrete"),
    "no graph": (lambda f: f(None, 1), "graph must be a CSRGraph"),
}


@pytest.mark.parametrize("function", [laplacian_positions, random_walk_positions])
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name, function):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=f"^{function.__name__}: .*{message}"):
        call(function)
