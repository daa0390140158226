"""Relations between nodes of several types, and relations stacked into one graph."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, ops
from jaxgnn.graph import HeteroGraph, RelationalGraph
from jaxgnn.graph.hetero import relational as _relational
from jaxgnn.testing import random_array

WRITES, CITES, READS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "is read by", "author"),
)


def _graph(seed: int, rows: int, columns: int, *, weighted: bool = False, padding: int = 0):
    """Random edges, some of them repeated; padding has ids out of range."""
    rng = np.random.default_rng(seed)
    senders, receivers = rng.integers(0, columns, 12), rng.integers(0, rows, 12)
    weights = rng.uniform(0.5, 2, 12 + padding).astype(np.float32) if weighted else None
    ends = [np.pad(ids, (0, padding), constant_values=99) for ids in (senders, receivers)]
    mask = np.arange(12 + padding) < 12 if padding else None
    return CSRGraph.from_edges(*ends, rows, weights, num_senders=columns, edge_mask=mask)


def _hetero() -> HeteroGraph:
    return HeteroGraph(
        {
            WRITES: _graph(0, 5, 3, padding=2),
            CITES: _graph(1, 5, 5, weighted=True),
            READS: _graph(2, 3, 5),
        },
        num_nodes={"venue": 2},
    )


def _dense(graph: CSRGraph) -> np.ndarray:
    return graph.to_scipy().toarray()


def test_types_and_numbers_of_nodes_are_those_of_the_graphs():
    graph = _hetero()
    assert graph.edge_types == tuple(graph) == (WRITES, CITES, READS)
    assert graph.num_nodes == {"author": 3, "paper": 5, "venue": 2}
    assert graph.metadata == (("author", "paper", "venue"), graph.edge_types)
    assert graph["author", "writes", "paper"].shape == (5, 3)
    assert CITES in graph and ("a", "b", "c") not in graph
    assert graph.node_slices()["venue"] == slice(8, 10)
    assert "'cites', 'paper'): 12 edges" in repr(graph)
    with pytest.raises(KeyError, match=r"'draws'.* is none of .*'writes'"):
        graph["author", "draws", "paper"]


@pytest.mark.parametrize(
    "graphs, message",
    [
        (
            {WRITES: _graph(0, 5, 3), CITES: _graph(1, 6, 6)},
            r"HeteroGraph: graphs\[\('paper', 'cites', 'paper'\)\] must be of 5 nodes of type "
            r"'paper', as in \('author', 'writes', 'paper'\), got 6 \(shape \(6, 6\)\)",
        ),
        ({CITES: _graph(1, 6, 5)}, "must be of 6 nodes of type 'paper', as in .*'cites'.*, got 5"),
        ({("venue", "in", "town"): _graph(1, 6, 5)}, "of 2 nodes of type 'venue', as in num_nodes"),
        ({}, "graphs must be a dictionary of at least one relation"),
        ([], "graphs must be a dictionary of at least one relation"),
        (
            {"writes": _graph(0, 5, 3)},
            "by relations .sender type, name, receiver type., .* 'writes",
        ),
        ({("a", "b", 3): _graph(0, 5, 3)}, "by relations .sender type, name, receiver type"),
        ({CITES: np.eye(3)}, r"graphs\[.*'cites'.*\] must be a CSRGraph, got ndarray"),
    ],
)
def test_relations_that_disagree_are_both_named(graphs, message):
    with pytest.raises(ValueError, match=message):
        HeteroGraph(graphs, num_nodes={"venue": 2})


def test_a_number_of_nodes_that_is_none_is_named():
    with pytest.raises(
        ValueError, match=r"HeteroGraph: num_nodes\['venue'\] must be an integer in"
    ):
        HeteroGraph({CITES: _graph(1, 5, 5)}, num_nodes={"venue": -1})


def test_it_is_a_pytree_that_jit_takes_and_returns():
    graph = _hetero()
    x = random_array((5, 4), "float32", seed=0)

    @jax.jit
    def run(graph, x):
        return graph.map(lambda g: g.normalized("mean")), ops.spmm(graph[READS], x)

    made, y = run(graph, x)
    assert made.metadata == graph.metadata and made.num_nodes == graph.num_nodes
    np.testing.assert_allclose(y, _dense(graph[READS]) @ x, rtol=1e-5, atol=1e-5)
    expected = graph.map(lambda g: g.normalized("mean"))
    for edge_type in graph:
        np.testing.assert_allclose(_dense(made[edge_type]), _dense(expected[edge_type]), rtol=1e-6)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(graph)]
    assert any("'writes'" in name and "indptr" in name for name in names)


def test_reversed_relations_send_back():
    graph = HeteroGraph({WRITES: _graph(0, 5, 3, padding=2), CITES: _graph(1, 5, 5)})
    both = graph.with_reverse()
    assert tuple(both) == (WRITES, CITES, ("paper", "rev_writes", "author"))
    back = both["paper", "rev_writes", "author"]
    np.testing.assert_array_equal(_dense(back), _dense(graph[WRITES]).T)
    with pytest.raises(ValueError, match=r"prefix must be such that .*'rev_writes'.* new relation"):
        both.with_reverse()


def _under_jit(function, *arguments):
    return jax.jit(function)(*arguments)


def _directly(function, *arguments):
    return function(*arguments)


@pytest.mark.parametrize("call", [_directly, _under_jit])
def test_joined_relations_have_all_receivers_and_the_senders_of_each_relation(call):
    graph = _hetero()
    joined = call(lambda graph: graph.joined(), graph)
    expected = np.zeros((10, 3 + 5 + 5))
    expected[3:8, :3], expected[3:8, 3:8] = _dense(graph[WRITES]), _dense(graph[CITES])
    expected[:3, 8:] = _dense(graph[READS])
    np.testing.assert_allclose(_dense(joined), expected, rtol=1e-6)


def test_what_is_prepared_goes_through_jit_and_nothing_is_sorted_there():
    graph = _hetero().prepared()
    program = jax.jit(lambda graph: graph.joined().indptr).lower(graph)
    assert "sort" not in program.as_text()
    assert "sort" in jax.jit(lambda graph: graph.joined().indptr).lower(_hetero()).as_text()
    assert graph.joined() is graph.joined()


@pytest.mark.parametrize("call", [_directly, _under_jit])
def test_as_one_graph_each_relation_has_the_nodes_of_its_types(call):
    graph = _hetero()
    made = call(lambda graph: graph.to_homogeneous(), graph)
    assert made.shape == (10, 10) and made.num_relations == 3
    stacked = _dense(made.graph).reshape(10, 3, 10)
    at = graph.node_slices()
    for place, (edge_type, of_relation) in enumerate(graph.items()):
        expected = np.zeros((10, 10))
        expected[at[edge_type[2]], at[edge_type[0]]] = _dense(of_relation)
        np.testing.assert_allclose(stacked[:, place], expected, rtol=1e-6)


@pytest.mark.parametrize("call", [_directly, _under_jit])
def test_stacked_relations_have_a_row_for_each_node_and_relation(call):
    graphs = [_graph(0, 5, 4), _graph(1, 5, 4, weighted=True, padding=3), _graph(2, 5, 4)]
    made = call(lambda graphs: RelationalGraph.from_graphs(graphs), graphs)
    assert made.shape == (5, 4)
    expected = np.stack([_dense(graph) for graph in graphs], axis=1).reshape(15, 4)
    np.testing.assert_allclose(_dense(made.graph), expected, rtol=1e-6)


@pytest.mark.parametrize("call", [_directly, _under_jit])
def test_edges_of_one_graph_are_sorted_by_relation(call):
    graph = _graph(1, 5, 4, weighted=True, padding=3)
    types = np.random.default_rng(0).integers(0, 3, 15)
    types[12:] = 7  # of padding, which is not read
    made = call(lambda graph, types: RelationalGraph.from_edge_types(graph, types, 3), graph, types)
    expected = np.zeros((5, 3, 4))
    ends = np.asarray(graph.receivers())[:12], types[:12], np.asarray(graph.senders)[:12]
    np.add.at(expected, ends, np.asarray(graph.weights)[:12])
    np.testing.assert_allclose(_dense(made.graph), expected.reshape(15, 4), rtol=1e-6)


def test_edge_types_that_the_caller_changes_are_read_again():
    graph, types = _graph(1, 5, 4), np.zeros(12, np.int32)
    first = RelationalGraph.from_edge_types(graph, types, 2).graph
    types[:] = 1
    second = RelationalGraph.from_edge_types(graph, types, 2).graph
    np.testing.assert_array_equal(_dense(second)[1::2], _dense(first)[::2])
    assert not _dense(second)[::2].any()


def test_concrete_relations_are_stacked_once_and_forgotten_with_their_arrays():
    before = len(_relational._UNIONS)
    graphs = [_graph(0, 5, 5), _graph(1, 5, 5)]
    first = RelationalGraph.from_graphs(graphs).graph
    again = RelationalGraph.from_graphs(jax.tree.map(lambda leaf: leaf, graphs)).graph
    assert again is first and len(_relational._UNIONS) == before + 1
    del graphs
    assert len(_relational._UNIONS) == before


def test_relations_that_do_not_fit_are_named():
    graph = _graph(0, 5, 4)
    stack, of_types = RelationalGraph.from_graphs, RelationalGraph.from_edge_types
    types = jnp.zeros(12, jnp.int32)
    cases = [
        (lambda: stack([]), "graphs must be a list of at least one graph"),
        (
            lambda: stack([graph, _graph(0, 5, 3)]),
            r"graphs\[1\] must be of shape \(5, 4\), as grap",
        ),
        (lambda: stack([graph.normalized("mean")]), r"graphs\[0\] must be not normalised yet"),
        (lambda: stack([graph, 3]), r"graphs\[1\] must be a jaxgnn.graph.CSRGraph, got int"),
        (lambda: of_types(graph, types[:3], 2), r"edge_types must be of shape \(12,\), one for"),
        (lambda: of_types(graph, types + 2, 2), r"edge_types must be in \[0, 2\), got 2 in slot 0"),
        (lambda: of_types(graph, types.astype(float), 2), "edge_types must be of an integer dtype"),
        (lambda: of_types(graph, types, 0), "num_relations must be an int of at least 1, got 0"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=rf"RelationalGraph\.from_\w+: {message}"):
            call()
    normalized = _hetero().map(lambda g: g.normalized("mean"))
    for method in (normalized.joined, normalized.to_homogeneous):
        with pytest.raises(ValueError, match=r"HeteroGraph.\w+: self\[.*\] must be not normalised"):
            method()
