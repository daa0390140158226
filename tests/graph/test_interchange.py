"""Graphs of networkx, and graphs for scipy and jraph, against dense matrices in float64."""

import importlib
import importlib.util

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from tests.graph._oracles import (
    assert_same_tree,
    check_message,
    dense,
    edge_lists,
    random_edges,
)

PROPERTY = settings(max_examples=10, deadline=None, derandomize=True)


class View(list):
    """Nodes or edges as networkx offers them: a list that, called, returns their data too."""

    def __call__(self, *, data):
        return [(*key, data) for key, data in self.data] if data else self

    def __init__(self, data):
        super().__init__(key if len(key) > 1 else key[0] for key, _ in data)
        self.data = data


class StandIn:
    """The part of a networkx graph that is read, for where networkx is not installed."""

    def __init__(self, nodes, edges, *, directed):
        self.nodes = View([((node,), data) for node, data in nodes])
        self.edges = View([((u, v), data) for u, v, data in edges])
        self.directed = directed

    def is_directed(self):
        return self.directed


def of_networkx(nodes, edges, *, directed):
    if importlib.util.find_spec("networkx") is None:
        pytest.skip("networkx is not installed; the same cases run with a stand-in")
    networkx = importlib.import_module("networkx")
    graph = networkx.MultiDiGraph() if directed else networkx.MultiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    return graph


SOURCES = pytest.mark.parametrize("make", [StandIn, of_networkx], ids=["stand-in", "networkx"])
DIRECTIONS = pytest.mark.parametrize("directed", [True, False])
NODES = [
    ("ann", {"age": 31, "at": [0.0, 1.0]}),
    ("bob", {"age": 55, "at": [2.0, 3.0]}),
    (("c", 3), {"age": 8, "at": [4.0, 5.0]}),
    ("alone", {"age": 1, "at": [6.0, 7.0]}),
]
# A loop, an edge in each direction, and a repeated one.
EDGES = [
    ("bob", "bob", {"weight": 8.0, "id": 14}),
    ("bob", "ann", {"weight": 2.5, "id": 10}),
    ("ann", "bob", {"weight": 0.5, "id": 11}),
    (("c", 3), "ann", {"weight": 4.0, "id": 12}),
    ("bob", "ann", {"weight": 1.0, "id": 13}),
]


def matrix_of(nodes, edges, weight_of, *, directed):
    """Row ``v`` receives from ``u``, and of an undirected edge also row ``u`` from ``v``."""
    row = {node: i for i, (node, _) in enumerate(nodes)}
    matrix = np.zeros((len(nodes), len(nodes)))
    for u, v, data in edges:
        matrix[row[v], row[u]] += weight_of(data)
        if not directed and u != v:
            matrix[row[u], row[v]] += weight_of(data)
    return matrix


class TestFromNetworkx:
    @SOURCES
    @DIRECTIONS
    def test_an_edge_enters_the_row_of_its_second_node(self, make, directed):
        source = make(NODES, EDGES, directed=directed)
        graph, nodes = CSRGraph.from_networkx(source)
        assert nodes == [node for node, _ in NODES]
        expected = matrix_of(NODES, EDGES, lambda data: data["weight"], directed=directed)
        np.testing.assert_array_equal(dense(graph.validate()), expected)
        assert graph.num_edges == (5 if directed else 9)
        assert graph.plan is not None
        plain, _ = CSRGraph.from_networkx(source, weight=None)
        assert plain.weights is None
        np.testing.assert_array_equal(
            dense(plain), matrix_of(NODES, EDGES, lambda data: 1, directed=directed)
        )

    @DIRECTIONS
    def test_it_is_the_transposed_adjacency_of_networkx(self, directed):
        source = of_networkx(NODES, EDGES, directed=directed)
        adjacency = importlib.import_module("networkx").to_numpy_array(source)
        np.testing.assert_array_equal(dense(CSRGraph.from_networkx(source)[0]), adjacency.T)

    @SOURCES
    @DIRECTIONS
    def test_attributes_come_in_the_order_of_rows_and_of_slots(self, make, directed):
        source = make(NODES, EDGES, directed=directed)
        graph, _, data = CSRGraph.from_networkx(
            source, node_attributes=["age", "at"], edge_attributes=["id", "weight"]
        )
        np.testing.assert_array_equal(data.nodes["age"], [31, 55, 8, 1])
        np.testing.assert_array_equal(data.nodes["at"], np.arange(8).reshape(4, 2))
        np.testing.assert_array_equal(data.edges["weight"], graph.weights)
        ids = np.array([data["id"] for _, _, data in source.edges(data=True)])
        np.testing.assert_array_equal(data.edges["id"], ids[graph.edge_order])
        sums = jax.ops.segment_sum(data.edges["id"], graph.receivers(), 4)
        expected = matrix_of(NODES, EDGES, lambda data: data["id"], directed=directed).sum(1)
        np.testing.assert_array_equal(sums, expected)

    @SOURCES
    def test_attributes_of_one_kind_alone(self, make):
        source = make(NODES, EDGES, directed=True)
        _, _, data = CSRGraph.from_networkx(source, node_attributes=["age"])
        assert (set(data.nodes), set(data.edges)) == ({"age"}, set())
        _, _, data = CSRGraph.from_networkx(source, edge_attributes=["id"])
        assert (set(data.nodes), set(data.edges)) == (set(), {"id"})

    @SOURCES
    def test_edges_without_a_weight_have_the_weight_one(self, make):
        edges = [(0, 1, {"weight": 3.0}), (1, 0, {}), (1, 1, {"cost": 2})]
        source = make([(0, {}), (1, {})], edges, directed=True)
        np.testing.assert_array_equal(dense(CSRGraph.from_networkx(source)[0]), [[0, 1], [3, 1]])
        costs, _ = CSRGraph.from_networkx(source, weight="cost")
        np.testing.assert_array_equal(dense(costs), [[0, 1], [1, 2]])

    @SOURCES
    def test_without_any_weight_the_graph_is_unweighted(self, make):
        graph, _ = CSRGraph.from_networkx(make([(7, {}), (5, {})], [(7, 5, {})], directed=False))
        assert graph.weights is None
        np.testing.assert_array_equal(dense(graph), [[0, 1], [1, 0]])

    @SOURCES
    @DIRECTIONS
    @pytest.mark.parametrize("nodes", [[], NODES])
    def test_no_edges(self, make, directed, nodes):
        graph, found, data = CSRGraph.from_networkx(
            make(nodes, [], directed=directed), node_attributes=["age"], edge_attributes=["id"]
        )
        assert found == [node for node, _ in nodes]
        assert (graph.shape, graph.num_edges) == ((len(nodes), len(nodes)), 0)
        assert (data.nodes["age"].shape, data.edges["id"].shape) == ((len(nodes),), (0,))


class TestToScipy:
    @PROPERTY
    @given(edges=edge_lists())
    def test_is_the_dense_matrix_with_scales_and_without_padding(self, edges):
        for weighted in (False, True):
            graph = edges.graph(weighted=weighted)
            for kind in (None, "mean", "sym"):
                normalized = graph.normalized(kind)
                matrix = normalized.to_scipy()
                assert matrix.dtype == np.float32
                assert (matrix.shape, matrix.nnz) == (graph.shape, int(graph.indptr[-1]))
                np.testing.assert_allclose(matrix.toarray(), dense(normalized), rtol=1e-6)

    @PROPERTY
    @given(edges=edge_lists())
    def test_there_and_back_is_the_same_graph(self, edges):
        for weighted in (False, True):
            graph = edges.graph(weighted=weighted, masked=False)
            back = CSRGraph.from_scipy(graph.to_scipy(), weighted=weighted)
            assert_same_tree(back, graph)

    @pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (4, 6)])
    def test_back_and_there_is_the_same_matrix(self, shape):
        matrix = scipy.sparse.random_array(shape, density=0.5, rng=0, format="csr")
        made = CSRGraph.from_scipy(matrix).to_scipy()
        np.testing.assert_allclose(made.toarray(), matrix.toarray(), rtol=1e-6)
        assert made.shape == shape

    def test_its_product_is_that_of_spmm(self):
        graph = random_edges(0, 6, 9, 90).graph().with_weights(None).normalized("sym")
        x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
        made = ops.spmm(graph, jnp.asarray(x), implementation="xla")
        np.testing.assert_allclose(graph.to_scipy() @ x, made, rtol=1e-5, atol=1e-6)

    def test_weights_of_sixteen_bits_become_float32_and_of_64_stay(self):
        for dtype in (jnp.bfloat16, jnp.float16):
            graph = CSRGraph.from_edges([0, 1], [1, 0], 2, np.array([1.5, 0.25], dtype))
            matrix = graph.to_scipy()
            assert matrix.dtype == np.float32
            np.testing.assert_array_equal(matrix.toarray(), [[0, 0.25], [1.5, 0]])
        with jax.enable_x64(True):
            graph = CSRGraph.from_edges([0, 1], [1, 0], 2, np.array([0.1, 0.2]))
            assert graph.to_scipy().dtype == np.float64
            assert graph.to_scipy().toarray()[1, 0] == 0.1

    def test_changing_the_matrix_in_place_leaves_the_graph_alone(self):
        graph = random_edges(0, 6, 9, 90).graph()
        before = jax.tree.map(np.array, graph)
        matrix = graph.to_scipy()
        matrix.sum_duplicates()
        matrix.data[:], matrix.indices[:], matrix.indptr[:] = 0, 0, 0
        assert_same_tree(graph, before)


def tuple_and_edges(graph, nodes, edges, *, padded):
    """The tuple of a graph, and what becomes of it on the way back."""
    made = graph.to_graphs_tuple(nodes, {"weights": edges}, np.ones((1, 2)), padded=padded)
    return made, CSRGraph.from_graphs_tuple(made, padded=padded, return_edges=True)


class TestToGraphsTuple:
    @PROPERTY
    @given(edges=edge_lists(nodes=(6, 6)))
    def test_edges_are_those_of_the_slots_and_padding_is_left_out(self, edges):
        graph = edges.graph()
        x = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2)
        made, (back, data) = tuple_and_edges(graph, x, graph.weights, padded=False)
        real = int(graph.indptr[-1])
        assert (np.asarray(made.n_node).tolist(), np.asarray(made.n_edge).tolist()) == ([6], [real])
        assert made.senders.dtype == made.receivers.dtype == np.int32
        np.testing.assert_array_equal(made.senders, np.asarray(graph.senders)[:real])
        np.testing.assert_allclose(dense(back.with_weights(data["weights"])), edges.dense())
        np.testing.assert_array_equal(back.edge_order, np.arange(real))

    @pytest.mark.parametrize("jit", [False, True])
    @pytest.mark.parametrize("count", [0, 40])
    @pytest.mark.parametrize("masked", [False, True])
    def test_padding_slots_become_the_edges_of_a_padding_graph(self, masked, count, jit):
        edges = random_edges(1, 6, 6, count)
        graph = edges.graph(masked=masked)
        x = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2)

        def convert(graph, x):
            return tuple_and_edges(graph, x, graph.weights, padded=True)

        made, (back, data) = (jax.jit(convert) if jit else convert)(graph, x)
        real = int(graph.indptr[-1])
        assert np.asarray(made.n_node).tolist() == [6, 1]
        assert np.asarray(made.n_edge).tolist() == [real, count - real]
        mask = np.arange(count) < real
        np.testing.assert_array_equal(jraph.get_edge_padding_mask(made), mask)
        assert jraph.get_node_padding_mask(made).tolist() == [True] * 6 + [False]
        assert jraph.get_graph_padding_mask(made).tolist() == [True, False]
        np.testing.assert_array_equal(made.nodes, np.append(x, [[0, 0]], axis=0))
        np.testing.assert_array_equal(made.globals, [[1, 1], [0, 0]])
        assert (np.asarray(made.senders)[real:] == 6).all()
        assert (np.asarray(made.receivers)[real:] == 6).all()
        expected = np.pad(edges.dense(masked=masked), (0, 1))
        np.testing.assert_allclose(dense(back.with_weights(data["weights"])), expected)
        assert int(back.indptr[-1]) == real

    def test_a_tuple_without_data(self):
        made = random_edges(0, 6, 6, 5).graph().to_graphs_tuple()
        assert made.nodes is made.edges is made.globals is None
        assert_same_tree(
            CSRGraph.from_graphs_tuple(made).indices,
            random_edges(0, 6, 6, 5).graph().to_graphs_tuple().senders,
        )

    def test_a_graph_without_nodes(self):
        made = CSRGraph.from_edges([], [], 0).to_graphs_tuple(np.zeros((0, 3), np.float32))
        assert CSRGraph.from_graphs_tuple(made).shape == (0, 0)


GRAPH = random_edges(0, 6, 6, 5).graph()
RECTANGULAR = random_edges(0, 6, 9, 5).graph()


def networkx(nodes=NODES, edges=EDGES, **options):
    return CSRGraph.from_networkx(StandIn(nodes, edges, directed=True), **options)


def edge(**data):
    return [("bob", "ann", data)]


BAD = {
    "no networkx graph": (
        lambda: CSRGraph.from_networkx(np.eye(3)),
        ["from_networkx: graph", "networkx graph", "ndarray"],
    ),
    "a weight that no edge has": (
        lambda: networkx(weight="wieght"),
        ["from_networkx: weight", "some edge", "'wieght'"],
    ),
    "a weight that is text": (
        lambda: networkx(edges=edge(weight="heavy")),
        ["from_networkx: weight", "numbers at 'weight'", "<U5"],
    ),
    "a weight of two numbers": (
        lambda: networkx(edges=edge(weight=[1.0, 2.0])),
        ["from_networkx: weight", "one number per edge at 'weight'", "(2,)"],
    ),
    "a weight that is no number": (
        lambda: networkx(edges=edge(weight=float("nan"))),
        ["CSRGraph: weights[0]", "finite", "nan"],
    ),
    "a node without an attribute": (
        lambda: networkx([*NODES, ("eve", {})], node_attributes=["age"]),
        ["from_networkx: node_attributes", "every node", "'age'", "node 'eve'"],
    ),
    "an edge without an attribute": (
        lambda: networkx(edges=[*EDGES, *edge()], edge_attributes=["id"]),
        ["from_networkx: edge_attributes", "every edge", "'id'", "edge ('bob', 'ann')"],
    ),
    "a name instead of names": (
        lambda: networkx(node_attributes="at"),
        ["from_networkx: node_attributes", "sequence of names", "'at'"],
    ),
    "attributes of different lengths": (
        lambda: networkx(
            [("ann", {"at": [1, 2]}), ("bob", {"at": [1]})], [], node_attributes=["at"]
        ),
        ["from_networkx: node_attributes", "of one shape at 'at'", "inhomogeneous"],
    ),
    "an attribute that is text": (
        lambda: networkx(edges=edge(id="a"), edge_attributes=["id"]),
        ["from_networkx: edge_attributes", "numbers at 'id'", "<U1"],
    ),
    "integers that JAX would cut": (
        lambda: networkx([("ann", {"born": 2**40})], [], node_attributes=["born"]),
        ["from_networkx: node_attributes", "range of int32", "got 1099511627776"],
    ),
    "to_scipy of a traced graph": (
        lambda: jax.jit(lambda graph: graph.to_scipy())(GRAPH),
        ["CSRGraph.to_scipy: self", "outside jit", "tracer"],
    ),
    "to_scipy of senders out of range": (
        lambda: CSRGraph(np.array([0, 1]), np.array([3], np.int32)).to_scipy(),
        ["CSRGraph: indices[0]", "in [0, 1)", "got 3"],
    ),
    "a tuple of a rectangular graph": (
        lambda: RECTANGULAR.to_graphs_tuple(),
        ["to_graphs_tuple: self", "square", "(6, 9)"],
    ),
    "a tuple of a traced graph": (
        lambda: jax.jit(lambda graph: graph.to_graphs_tuple())(GRAPH),
        ["to_graphs_tuple: padded", "True for a traced graph", "got False"],
    ),
    "nodes of another number": (
        lambda: GRAPH.to_graphs_tuple({"x": [np.ones((5, 2))]}),
        ["to_graphs_tuple: nodes['x'][0]", "(6, ...)", "per row", "(5, 2)"],
    ),
    "edges of another number": (
        lambda: GRAPH.to_graphs_tuple(edges=np.ones((6, 2))),
        ["to_graphs_tuple: edges", "(5, ...)", "per edge slot", "(6, 2)"],
    ),
    "globals of another number": (
        lambda: GRAPH.to_graphs_tuple(globals=np.ones(3)),
        ["to_graphs_tuple: globals", "(1, ...)", "per graph", "(3,)"],
    ),
}


@pytest.mark.parametrize(("call", "fragments"), BAD.values(), ids=BAD)
def test_bad_input_names_the_argument_and_the_value(call, fragments):
    with pytest.raises(ValueError) as error:
        call()
    check_message(str(error.value), fragments)


@pytest.mark.parametrize("kind", ["graphml", "gml"])
def test_files_that_networkx_writes_come_back_with_their_attributes(kind, tmp_path):
    networkx = pytest.importorskip("networkx", reason="reason: networkx is not installed")
    g = networkx.DiGraph()
    for name, x in (("ann", 0.5), ("bob", 1.5), ("eve", 2.5)):
        g.add_node(name, x=x)
    g.add_edge("ann", "bob", weight=2.0, length=7)
    g.add_edge("eve", "bob", weight=3.0, length=9)
    getattr(networkx, f"write_{kind}")(g, tmp_path / "graph")
    read = getattr(networkx, f"read_{kind}")(tmp_path / "graph")
    graph, nodes, data = CSRGraph.from_networkx(
        read, node_attributes=["x"], edge_attributes=["length"]
    )
    row = {name: at for at, name in enumerate(nodes)}
    expected = np.zeros((3, 3))
    expected[row["bob"], row["ann"]], expected[row["bob"], row["eve"]] = 2, 3
    np.testing.assert_array_equal(graph.to_scipy().toarray(), expected)
    assert data.nodes["x"][row["eve"]] == 2.5
    lengths = {nodes[s]: int(v) for s, v in zip(graph.senders, data.edges["length"], strict=True)}
    assert lengths == {"ann": 7, "eve": 9}
