"""Transforms of graphs against dense matrices: what is kept, what is merged, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxgnn import CSRGraph, graph, ops
from tests._eager_costs import counted_compilations
from tests.graph._oracles import check_message, dense, edge_lists, random_edges

PROPERTY = settings(max_examples=25, deadline=None, derandomize=True)
SQUARE = edge_lists(nodes=(9, 9), sizes=(0, 5, 40))
EDGES = random_edges(2, 9, 9, 40)

# Each transform, with what it does to the dense matrix of weights; None where that is said below.
TRANSFORMS = {
    "to_undirected": (graph.to_undirected, lambda m: m + m.T),
    "coalesce": (graph.coalesce, lambda m: m),
    "subgraph": (
        lambda g: graph.subgraph(g, [4, 0, 7]).graph,
        lambda m: m[[4, 0, 7]][:, [4, 0, 7]],
    ),
    "remove_self_loops": (graph.remove_self_loops, lambda m: m * (1 - np.eye(len(m)))),
    "add_self_loops": (
        lambda g: graph.add_self_loops(g, 2.5),
        lambda m: np.where(np.eye(len(m)) * (m == 0), 2.5, m),
    ),
    "permute": (lambda g: graph.permute(g, [8, 1, 3, 2, 0, 7, 6, 4, 5]), None),
    "largest_component": (lambda g: graph.largest_component(g).graph, None),
}


@pytest.mark.parametrize("name", [name for name, case in TRANSFORMS.items() if case[1]])
@PROPERTY
@given(edges=SQUARE)
def test_a_transform_is_its_formula_of_the_dense_matrix(name, edges):
    transform, formula = TRANSFORMS[name]
    made = transform(edges.graph())
    np.testing.assert_allclose(dense(made.validate()), formula(edges.dense()), rtol=1e-6)
    assert made.plan is not None
    assert made.weights.dtype == np.float32
    assert transform(edges.graph(weighted=False)).weights is None


@PROPERTY
@given(edges=SQUARE)
def test_permuted_rows_of_a_product_are_the_product_of_permuted_features(edges):
    order = np.random.default_rng(edges.senders.size).permutation(9)
    x = np.linspace(-1, 1, 27, dtype=np.float32).reshape(9, 3)
    for g in (edges.graph(), edges.graph(weighted=False).normalized("sym")):
        made = graph.permute(g, order).validate()
        expected = ops.spmm(g, x)[order]
        np.testing.assert_allclose(ops.spmm(made, x[order]), expected, rtol=1e-5, atol=1e-6)
        assert (made.normalization, made.is_normalized) == (g.normalization, g.is_normalized)


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max", "mul"])
@pytest.mark.parametrize("undirected", [False, True])
def test_weights_of_merged_edges_are_reduced(reduce, undirected):
    g = EDGES.graph()
    senders, receivers = np.asarray(g.indices), np.asarray(g.receivers())
    weights = np.asarray(g.weights, np.float64)
    parts = [(s, r, w) for s, r, w in zip(senders, receivers, weights, strict=True) if r < 9]
    if undirected:
        parts += [(r, s, w) for s, r, w in parts]
    combine = {"sum": np.sum, "mean": np.mean, "min": min, "max": max, "mul": np.prod}[reduce]
    expected = {(r, s): combine([w for a, b, w in parts if (a, b) == (s, r)]) for s, r, _ in parts}
    assert len(expected) < len(parts)
    made = (graph.to_undirected if undirected else graph.coalesce)(g, reduce)
    ends = list(zip(made.receivers().tolist(), made.indices.tolist(), strict=True))
    assert ends == sorted(expected), "sorted by receiver, then by sender"
    np.testing.assert_allclose(made.weights, [expected[e] for e in ends], rtol=1e-6)


def test_an_undirected_graph_gets_twice_its_weights_by_sum_and_the_same_ones_by_mean():
    g = CSRGraph.from_edges([0, 1, 1], [1, 0, 1], 2, np.float32([3, 3, 5]))
    assert graph.to_undirected(g).weights.tolist() == [6, 6, 10]
    assert graph.to_undirected(g, "mean").weights.tolist() == [3, 3, 5]


def test_a_bipartite_graph_is_merged_too():
    edges = random_edges(3, 6, 9, 900)
    made = graph.coalesce(edges.graph())
    np.testing.assert_allclose(dense(made), edges.dense(), rtol=1e-5)
    assert made.num_edges == np.count_nonzero(edges.dense())


@pytest.mark.parametrize("connection", ["weak", "strong"])
def test_the_largest_component_is_the_largest_set_of_nodes_that_reach_each_other(connection):
    for seed in range(8):
        edges = random_edges(seed, 9, 9, 12)
        reach = (edges.dense() > 0) | np.eye(9, dtype=bool)
        reach = reach | reach.T if connection == "weak" else reach
        reach = np.linalg.matrix_power(reach.astype(int), 9) > 0
        together = reach & reach.T
        expected = np.flatnonzero(together[np.argmax(together.sum(1))])
        part = graph.largest_component(edges.graph(), connection=connection)
        assert part.node_ids.tolist() == expected.tolist()
        selected = edges.dense()[np.ix_(expected, expected)]
        np.testing.assert_allclose(dense(part.graph), selected, rtol=1e-6)


@pytest.mark.parametrize("select", ["subgraph", "mask", "component", "permute", "remove"])
def test_ids_of_edges_carry_edge_data_along(select):
    """The weights of the whole, gathered by the ids, are the weights of the part."""
    g = EDGES.graph()
    mask = np.arange(9) % 2 == 0
    edge_ids, made = {
        "subgraph": lambda: graph.subgraph(g, np.array([5, 3, 8, 1]))[::-2],
        "mask": lambda: graph.subgraph(g, mask)[::-2],
        "component": lambda: graph.largest_component(g)[::-2],
        "permute": lambda: graph.permute(g, np.arange(9)[::-1], return_edges=True)[::-1],
        "remove": lambda: graph.remove_self_loops(g, return_edges=True)[::-1],
    }[select]()
    assert 0 < made.num_edges == len(edge_ids)
    np.testing.assert_array_equal(np.asarray(g.weights)[edge_ids], made.weights)


def test_ids_of_edges_are_minus_one_for_new_self_loops():
    g = EDGES.graph()
    for duplicates in (False, True):
        made, ids = graph.add_self_loops(g, 7.0, duplicates=duplicates, return_edges=True)
        real = int(made.indptr[-1])
        expected = np.where(ids < 0, 7, np.asarray(g.weights)[ids])[:real]
        np.testing.assert_array_equal(made.weights[:real], expected)
        assert len(ids) == made.num_edges
        assert (ids[:real] < 0).sum() == (
            9 if duplicates else 9 - np.count_nonzero(np.diag(dense(g)))
        )


@pytest.mark.parametrize("undirected", [False, True])
def test_slots_of_merged_edges_sum_edge_data(undirected):
    g = EDGES.graph()
    real = int(g.indptr[-1])
    transform = graph.to_undirected if undirected else graph.coalesce
    made, slots = transform(g, return_slots=True)
    assert slots.shape == ((2, real) if undirected else (real,))
    sums = sum(np.bincount(s, g.weights[:real], made.num_edges) for s in np.atleast_2d(slots))
    np.testing.assert_allclose(made.weights, sums, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(set(TRANSFORMS) - {"permute", "subgraph"}))
@pytest.mark.parametrize("num_nodes", [0, 1])
def test_graphs_without_edges_stay_without(name, num_nodes):
    made = TRANSFORMS[name][0](CSRGraph.from_edges([], [], num_nodes))
    assert made.num_rows == num_nodes
    assert made.num_edges == (num_nodes if name == "add_self_loops" else 0)
    assert graph.permute(made, np.arange(num_nodes)).shape == made.shape
    assert graph.subgraph(made, []).graph.shape == (0, 0)


def test_bfloat16_weights_stay_bfloat16():
    weights = EDGES.weights.astype(jnp.bfloat16)
    g = CSRGraph.from_edges(EDGES.senders, EDGES.receivers, 9, weights)
    for transform, _ in TRANSFORMS.values():
        assert transform(g).weights.dtype == jnp.bfloat16


def test_graphs_of_twenty_sizes_compile_nothing():
    rng = np.random.default_rng(0)
    with counted_compilations() as compiled:
        for size in range(9, 29):
            ends = rng.integers(0, size, (2, 3 * size))
            g = CSRGraph.from_edges(*ends, size, np.ones(3 * size, np.float32))
            for name in sorted(set(TRANSFORMS) - {"permute"}):
                TRANSFORMS[name][0](g)
            graph.permute(g, np.arange(size)[::-1])
            graph.permute(g.with_weights(None), np.arange(size)[::-1])
    assert not compiled


@pytest.mark.parametrize("name", TRANSFORMS)
def test_traced_graphs_are_refused(name):
    transform, _ = TRANSFORMS[name]
    with pytest.raises(ValueError, match="jit") as error:
        jax.eval_shape(lambda g: transform(g).indptr, EDGES.graph())
    check_message(str(error.value), [name, "graph", "concrete", "a tracer"])


@pytest.mark.parametrize("name", sorted(set(TRANSFORMS) - {"permute"}))
def test_normalised_graphs_are_refused(name):
    for weighted in (False, True):
        with pytest.raises(ValueError, match="normalise the result") as error:
            TRANSFORMS[name][0](EDGES.graph(weighted=weighted).normalized("mean"))
        check_message(str(error.value), [name, "graph", "not normalised", "'mean'"])


@pytest.mark.parametrize("name", sorted(set(TRANSFORMS) - {"coalesce"}))
def test_bipartite_graphs_are_refused(name):
    with pytest.raises(ValueError, match="square") as error:
        TRANSFORMS[name][0](random_edges(0, 6, 9, 5).graph())
    check_message(str(error.value), [name, "graph", "square", "(6, 9)"])


@pytest.mark.parametrize(
    ("call", "fragments"),
    [
        (lambda g: graph.subgraph(g, [0, 9]), ["subgraph", "nodes[1]", "[0, 9)", "9"]),
        (lambda g: graph.subgraph(g, [-1]), ["subgraph", "nodes[0]", "[0, 9)", "-1"]),
        (lambda g: graph.subgraph(g, [3, 1, 3]), ["subgraph", "nodes[2]", "nodes[0]", "3"]),
        (lambda g: graph.subgraph(g, [0.5]), ["subgraph", "nodes", "integer", "float64"]),
        (lambda g: graph.subgraph(g, [[0]]), ["subgraph", "nodes", "one axis", "(1, 1)"]),
        (lambda g: graph.subgraph(g, [True]), ["subgraph", "nodes", "(9,)", "(1,)"]),
        (lambda g: graph.permute(g, [0, 1]), ["permute", "order", "permutation", "2 ids"]),
        (lambda g: graph.permute(g, [0] * 9), ["permute", "order[1]", "order[0]", "0"]),
        (lambda g: graph.permute(g, range(1, 10)), ["permute", "order[8]", "[0, 9)", "9"]),
        (lambda g: graph.coalesce(g, "median"), ["coalesce", "reduce", "'sum'", "'median'"]),
        (lambda g: graph.to_undirected(g, "add"), ["to_undirected", "reduce", "'mul'", "'add'"]),
        (
            lambda g: graph.largest_component(g, connection="both"),
            ["largest_component", "connection", "'strong'", "'both'"],
        ),
        (lambda g: graph.coalesce(g.indices), ["coalesce", "graph", "CSRGraph", "Array"]),
    ],
)
def test_bad_input_is_named(call, fragments):
    with pytest.raises(ValueError, match=fragments[0]) as error:
        call(EDGES.graph())
    check_message(str(error.value), fragments)
