"""Edge data in the order of the graph, and which edge of the input each slot is."""

import copy

import jax
import jax.export
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from hypothesis import given, settings

from jaxgnn.graph import CSRGraph
from tests.graph._oracles import (
    assert_same_tree,
    check_message,
    edge_lists,
    holds_tracer,
    random_edges,
    receivers,
)

PROPERTY = settings(max_examples=10, deadline=None, derandomize=True)


def tree_of(edges):
    """Edge data of several shapes and dtypes, in input order; ``at`` is the input position."""
    count = len(edges.senders)
    return {
        "at": np.arange(count, dtype=np.int32),
        "rest": [edges.weights, edges.weights.reshape(count, 1, 1) * np.ones((3, 1), np.int8)],
        "none": None,
    }


def taken(tree, order):
    """The entries of each leaf at these positions."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[np.asarray(order)], tree)


def build(edges, data, mask):
    return CSRGraph.from_edges(
        edges.senders,
        edges.receivers,
        edges.num_rows,
        num_senders=edges.num_cols,
        edge_mask=mask,
        edge_data=data,
    )


@jax.jit(static_argnums=(0, 1))
def build_traced(num_rows, num_cols, senders, receivers, mask, data):
    graph, data = CSRGraph.from_edges(
        senders, receivers, num_rows, num_senders=num_cols, edge_mask=mask, edge_data=data
    )
    transposed = graph.transpose()
    return graph, data, graph.edge_order, transposed.edge_order


def known(seed=0, nodes=(6, 6), count=40, *, weighted=False, masked=True):
    """A graph that knows its order, and the list that it was made of."""
    edges = random_edges(seed, *nodes, count)
    graph, _ = CSRGraph.from_edges(
        edges.senders,
        edges.receivers,
        edges.num_rows,
        edges.weights if weighted else None,
        num_senders=edges.num_cols,
        edge_mask=edges.mask if masked else None,
        edge_data=(),
    )
    return graph, edges


def assert_order_names_the_edges(graph, order, senders, receivers_of_input):
    """Each slot that is not padding has the ends of the input edge at its position."""
    real = int(graph.indptr[-1])
    order = np.asarray(order)[:real]
    np.testing.assert_array_equal(senders[order], np.asarray(graph.senders)[:real])
    np.testing.assert_array_equal(receivers_of_input[order], np.asarray(receivers(graph))[:real])


class TestInTheOrderOfTheGraph:
    @PROPERTY
    @given(edges=edge_lists())
    def test_each_slot_has_the_data_of_its_edge_and_padding_goes_last(self, edges):
        for mask in (None, edges.mask):
            graph, data = build(edges, tree_of(edges), mask)
            order = graph.edge_order
            assert isinstance(order, np.ndarray) and not order.flags.writeable
            np.testing.assert_array_equal(np.sort(order), np.arange(len(order)))
            assert_order_names_the_edges(graph, order, edges.senders, edges.receivers)
            assert_same_tree(data, taken(tree_of(edges), order))
            if mask is not None:
                assert not mask[order[int(graph.indptr[-1]) :]].any()

    @PROPERTY
    @given(edges=edge_lists(sizes=(0, 900)))
    def test_traced_edges_give_the_bits_of_eager_ones(self, edges):
        arguments = edges.senders, edges.receivers, edges.mask, tree_of(edges)
        traced, data, order, transposed = build_traced(edges.num_rows, edges.num_cols, *arguments)
        graph, expected = build(edges, tree_of(edges), edges.mask)
        assert_same_tree(data, expected)
        assert_same_tree(traced.prepared(), graph.prepared())
        np.testing.assert_array_equal(order, graph.edge_order)
        np.testing.assert_array_equal(transposed, graph.transpose().edge_order)

    def test_vmap_orders_the_data_of_each_member(self):
        lists = [random_edges(seed, 6, 9, 40) for seed in range(3)]
        fields = [(e.senders, e.receivers, e.weights) for e in lists]
        batch = [np.stack(field) for field in zip(*fields, strict=True)]

        def ordered(senders, receivers, data):
            return CSRGraph.from_edges(senders, receivers, 6, num_senders=9, edge_data=data)[1]

        made = jax.jit(jax.vmap(ordered))(*batch)
        for row, edges in zip(made, lists, strict=True):
            np.testing.assert_array_equal(row, build(edges, edges.weights, None)[1])

    def test_gradients_return_to_the_input_order(self):
        edges = random_edges(0, 6, 9, 40)
        factors = np.arange(40, dtype=np.float32)
        order = build(edges, (), None)[0].edge_order
        gradient = jax.grad(lambda data: build(edges, data, None)[1] @ factors)(edges.weights)
        np.testing.assert_array_equal(np.asarray(gradient)[order], factors)

    def test_numbers_become_the_dtypes_of_jax(self):
        data = (np.ones(2), np.array([True, False]), np.ones((2, 0), jnp.bfloat16))
        _, made = CSRGraph.from_edges([0, 1], [1, 0], 2, edge_data=data)
        assert [leaf.dtype for leaf in made] == [np.float32, bool, jnp.bfloat16]
        with jax.enable_x64(True):
            times = np.array([2**40, -(2**40)])
            _, made = CSRGraph.from_edges([0, 1], [1, 0], 2, edge_data=times)
            assert made.tolist() == [-(2**40), 2**40]

    def test_no_nodes_and_no_edges(self):
        graph, data = CSRGraph.from_edges([], [], 0, edge_data={"a": np.zeros((0, 3))})
        assert data["a"].shape == (0, 3)
        assert graph.edge_order.shape == graph.transpose().edge_order.shape == (0,)

    def test_constants_inside_jit_give_a_constant_order(self):
        orders = []

        @jax.jit
        def step(x):
            orders.append(known()[0].edge_order)
            return x

        step(0.0)
        assert isinstance(orders[0], np.ndarray)

    def test_numbers_of_nodes_and_edges_may_be_symbolic_in_an_exported_program(self):
        def ordered(senders, receivers, data):
            nodes = senders.shape[0] + 1
            graph, data = CSRGraph.from_edges(senders, receivers, nodes, edge_data={"x": data})
            return graph.edge_order, data["x"]

        (size,) = jax.export.symbolic_shape("e")
        ids = jax.ShapeDtypeStruct((size,), jnp.int32)
        data = jax.ShapeDtypeStruct((size, 2), jnp.float32)
        exported = jax.export.export(jax.jit(ordered))(ids, ids, data)
        edges = random_edges(0, 6, 6, 40)
        x = np.arange(80, dtype=np.float32).reshape(40, 2)
        ends = edges.senders.astype(np.int32), edges.receivers.astype(np.int32)
        order, made = exported.call(*ends, x)
        np.testing.assert_array_equal(order, np.argsort(edges.receivers, kind="stable"))
        np.testing.assert_array_equal(made, x[np.asarray(order)])


class TestOrderOfDerivedGraphs:
    @pytest.mark.parametrize("weighted", [False, True])
    def test_the_same_edges_have_the_same_order(self, weighted):
        graph, _ = known(weighted=weighted)
        others = [
            graph.prepared(),
            graph.with_weights(np.ones(40, np.float32)),
            graph.with_weights(None),
            graph.normalized("mean"),
            graph.normalized("sym"),
            graph.with_known_degrees((None, None)),
            graph.transpose().transpose(),
            copy.deepcopy(graph),
        ]
        for other in others:
            np.testing.assert_array_equal(other.edge_order, graph.edge_order)

    @pytest.mark.parametrize("nodes", [(6, 6), (6, 9), (9, 6)])
    def test_of_the_transpose(self, nodes):
        graph, edges = known(nodes=nodes)
        transposed = graph.transpose()
        assert isinstance(transposed.edge_order, np.ndarray)
        assert not transposed.edge_order.flags.writeable
        assert_order_names_the_edges(
            transposed, transposed.edge_order, edges.receivers, edges.senders
        )

    @pytest.mark.parametrize("duplicates", [False, True])
    @pytest.mark.parametrize("jit", [False, True])
    def test_new_self_loops_have_no_position(self, jit, duplicates):
        edges = random_edges(3, 6, 6, 12)

        def looped(senders, receivers, mask):
            graph, _ = CSRGraph.from_edges(senders, receivers, 6, edge_mask=mask, edge_data=())
            graph = graph.with_self_loops(duplicates=duplicates)
            return graph, graph.edge_order

        build = jax.jit(looped) if jit else looped
        graph, order = build(edges.senders, edges.receivers, edges.mask)
        real = int(graph.indptr[-1])
        order = np.asarray(order)[:real]
        senders, rows = np.asarray(graph.senders)[:real], np.asarray(receivers(graph))[:real]
        old = order >= 0
        assert sorted(order[old]) == np.flatnonzero(edges.mask).tolist()
        np.testing.assert_array_equal(edges.senders[order[old]], senders[old])
        np.testing.assert_array_equal(edges.receivers[order[old]], rows[old])
        np.testing.assert_array_equal(senders[~old], rows[~old])
        there = edges.senders[edges.mask & (edges.senders == edges.receivers)]
        expected = range(6) if duplicates else sorted({*range(6)} - {*there.tolist()})
        assert senders[~old].tolist() == list(expected)


class TestOrderCostsNothing:
    def test_graphs_with_and_without_an_order_are_one_pytree_and_one_compilation(self):
        graph, edges = known()
        plain = edges.graph(weighted=False)
        assert_same_tree(graph, plain)
        traces = []

        @jax.jit
        def step(graph):
            traces.append(None)
            return graph.indptr[-1]

        step(graph), step(plain)
        assert len(traces) == 1

    def test_without_edge_data_nothing_is_kept(self):
        plain, _ = known()
        before = set(vars(random_edges(0, 6, 6, 40).graph()))
        assert set(vars(plain)) - before == {"_edge_order"}

    @pytest.mark.parametrize(
        "make",
        [
            lambda: random_edges(0, 6, 6, 5).graph(),
            lambda: CSRGraph(np.array([0, 1]), np.array([0], np.int32)),
            lambda: jax.tree.map(jnp.asarray, known()[0]),
            lambda: jax.jit(lambda graph: graph.with_self_loops())(known()[0]),
        ],
        ids=["no edge data", "from arrays", "mapped", "of jit"],
    )
    def test_an_unknown_order_is_an_error(self, make):
        graph = make()
        with pytest.raises(ValueError) as error:
            _ = graph.edge_order
        check_message(str(error.value), ["CSRGraph.edge_order: self", "edge_data", "unknown"])

    def test_inside_jit_a_graph_that_was_passed_does_not_know_its_order(self):
        with pytest.raises(ValueError, match=r"jit .* got a graph of unknown order"):
            jax.jit(lambda graph: graph.edge_order)(known()[0])

    def test_inside_jit_a_graph_that_was_closed_over_knows_its_order(self):
        graph, _ = known()
        made = jax.jit(lambda x: x[graph.with_weights(x).edge_order])(np.arange(40.0))
        np.testing.assert_array_equal(made, graph.edge_order)

    def test_an_order_of_traced_edges_does_not_outlive_the_trace(self):
        edges = random_edges(0, 6, 9, 40)
        with jax.checking_leaks():
            made = build_traced(6, 9, edges.senders, edges.receivers, edges.mask, ())
        assert not holds_tracer(made)
        assert "_edge_order" not in vars(made[0])


class TestFromEdgeIndex:
    @pytest.mark.parametrize("form", [np.asarray, jnp.asarray, np.ndarray.tolist])
    def test_row_0_is_the_sender_and_row_1_the_receiver(self, form):
        edges = random_edges(0, 6, 9, 40)
        edge_index = form(np.stack([edges.senders, edges.receivers]))
        options = {"num_senders": 9, "edge_mask": edges.mask}
        graph, data = CSRGraph.from_edge_index(
            edge_index, 6, edges.weights, edge_data=edges.weights, **options
        )
        assert_same_tree(graph, edges.graph())
        assert_same_tree(data, graph.weights)
        assert_same_tree(
            CSRGraph.from_edge_index(edge_index, 6, edges.weights, **options), edges.graph()
        )

    def test_traced(self):
        edges = random_edges(0, 6, 6, 40)
        edge_index = np.stack([edges.senders, edges.receivers])
        graph = jax.jit(lambda index: CSRGraph.from_edge_index(index, 6).prepared())(edge_index)
        assert_same_tree(graph, edges.graph(weighted=False, masked=False).prepared())

    @pytest.mark.parametrize("empty", [np.zeros((2, 0)), [[], []], jnp.zeros((2, 0), jnp.int32)])
    def test_no_edges(self, empty):
        assert CSRGraph.from_edge_index(empty, 3).validate().shape == (3, 3)
        assert CSRGraph.from_edge_index(empty, 0).validate().shape == (0, 0)


def padded_tuple():
    """Two random graphs in a padded tuple, whose edges are told apart by ``at``."""
    tuples = []
    for seed, (nodes, count) in enumerate([(3, 5), (4, 30)]):
        edges = random_edges(seed, nodes, nodes, count)
        tuples.append(
            jraph.GraphsTuple(
                nodes=np.ones((nodes, 1), np.float32),
                edges=tree_of(edges),
                senders=edges.senders,
                receivers=edges.receivers,
                n_node=np.array([nodes]),
                n_edge=np.array([count]),
                globals=None,
            )
        )
    graphs = jraph.pad_with_graphs(jraph.batch_np(tuples), 9, 40, 4)
    return graphs._replace(edges={**graphs.edges, "at": np.arange(40, dtype=np.int32)})


class TestFromGraphsTuple:
    @pytest.mark.parametrize("padded", [False, True])
    @pytest.mark.parametrize("jit", [False, True])
    def test_the_edges_of_a_tuple_come_in_the_order_of_the_graph(self, jit, padded):
        graphs = padded_tuple()

        def build(graphs):
            graph, edges = CSRGraph.from_graphs_tuple(graphs, padded=padded, return_edges=True)
            return graph, edges, graph.edge_order

        graph, edges, order = (jax.jit(build) if jit else build)(graphs)
        np.testing.assert_array_equal(edges["at"], order)
        senders, rows = np.asarray(graphs.senders), np.asarray(graphs.receivers)
        assert_order_names_the_edges(graph, order, senders, rows)
        assert_same_tree(edges, taken(graphs.edges, order))
        assert int(graph.indptr[-1]) == (35 if padded else 40)

    def test_a_tuple_without_edges_has_none(self):
        graphs = padded_tuple()._replace(edges=None)
        graph, edges = CSRGraph.from_graphs_tuple(graphs, return_edges=True)
        assert edges is None and graph.edge_order.shape == (40,)


INDEX = np.array([[0, 1, 2], [1, 2, 5]])


def with_data(data):
    return CSRGraph.from_edges([0, 1, 0], [1, 0, 0], 2, edge_data=data)


BAD = {
    "a leaf of another length": (
        lambda: with_data({"a": np.ones(3), "b": [np.ones((3, 2)), np.ones((2, 3))]}),
        ["from_edges: edge_data['b'][1]", "(3, ...)", "per edge", "shape (2, 3)"],
    ),
    "one leaf alone": (lambda: with_data(np.ones(4)), ["from_edges: edge_data must", "(4,)"]),
    "a leaf without axes": (lambda: with_data(jnp.ones(())), ["edge_data must", "shape ()"]),
    "a list of numbers": (lambda: with_data([1.0, 2.0, 3.0]), ["edge_data[0]", "array", "float"]),
    "strings": (
        lambda: with_data({"kind": np.array(["a", "b", "c"])}),
        ["edge_data['kind']", "numeric or boolean", "<U1"],
    ),
    "integers that JAX would cut": (
        lambda: with_data({"time": np.array([1, 2**40, 2])}),
        ["edge_data['time']", "range of int32", "jax_enable_x64", "got 1099511627776"],
    ),
    "ragged edges of a tuple": (
        lambda: CSRGraph.from_graphs_tuple(
            padded_tuple()._replace(edges={"a": np.ones((39, 2))}), return_edges=True
        ),
        ["from_graphs_tuple: graphs.edges['a']", "(40, ...)", "shape (39, 2)"],
    ),
    "an edge_index of pairs": (
        lambda: CSRGraph.from_edge_index(INDEX.T, 6),
        ["from_edge_index: edge_index", "[2, edges]", "edge_index.T", "shape (3, 2)"],
    ),
    "an edge_index of three rows": (
        lambda: CSRGraph.from_edge_index(np.ones((3, 5), int), 6),
        ["from_edge_index: edge_index", "[2, edges]", "shape (3, 5)"],
    ),
    "an edge_index of one axis": (
        lambda: CSRGraph.from_edge_index([0, 1], 6),
        ["from_edge_index: edge_index", "[2, edges]", "shape (2,)"],
    ),
    "an edge_index of different lengths": (
        lambda: CSRGraph.from_edge_index([[0, 1], [1]], 6),
        ["from_edge_index: edge_index", "[2, edges]", "inhomogeneous"],
    ),
    "an edge_index of floats": (
        lambda: CSRGraph.from_edge_index(INDEX.astype(float), 6),
        ["from_edge_index: edge_index", "integer dtype", "float64"],
    ),
    "a receiver out of range": (
        lambda: CSRGraph.from_edge_index(INDEX, 5),
        ["from_edge_index: edge_index[1][2]", "in [0, 5)", "got 5"],
    ),
    "a sender out of range": (
        lambda: CSRGraph.from_edge_index(-INDEX, 6),
        ["from_edge_index: edge_index[0][1]", "in [0, 6)", "got -1"],
    ),
    "ragged data of an edge_index": (
        lambda: CSRGraph.from_edge_index(INDEX, 6, edge_data=[np.ones(2)]),
        ["from_edge_index: edge_data[0]", "(3, ...)", "shape (2,)"],
    ),
    "an edge_index for both ends": (
        lambda: CSRGraph.from_edges(INDEX, INDEX, 6),
        ["from_edges: senders", "edge_index[0]", "CSRGraph.from_edge_index", "shape (2, 3)"],
    ),
    "nodes of an empty graph": (
        lambda: CSRGraph.from_edge_index(INDEX, 0),
        ["from_edge_index: edge_index[0][0]", "in [0, 0)", "got 0"],
    ),
    "the order of stacked graphs": (
        lambda: jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), known()[0]).edge_order,
        ["CSRGraph.edge_order: self", "jax.vmap", "[3, "],
    ),
}


@pytest.mark.parametrize(("call", "fragments"), BAD.values(), ids=BAD)
def test_bad_input_names_the_argument_and_the_value(call, fragments):
    with pytest.raises(ValueError) as error:
        call()
    check_message(str(error.value), fragments)


@pytest.mark.parametrize(
    "call",
    [
        lambda: CSRGraph.from_edges(INDEX, 6),
        lambda: CSRGraph.from_edges(INDEX, num_nodes=6),
        lambda: CSRGraph.from_edges(edge_index=INDEX, num_nodes=6),
    ],
)
def test_from_edges_of_an_edge_index_names_the_constructor_that_takes_it(call):
    with pytest.raises(TypeError, match=r"CSRGraph.from_edge_index\(edge_index, num_nodes\)$"):
        call()


def test_wrong_arguments_of_constructors_name_the_class_of_the_user():
    with pytest.raises(TypeError, match=r"^CSRGraph\.from_edges: got an unexpected .* 'nodes'$"):
        CSRGraph.from_edges(*INDEX, 6, nodes=3)  # pyrefly: ignore
    with pytest.raises(TypeError, match=r"^CSRGraph\.from_edge_index\(\) missing 1 required"):
        CSRGraph.from_edge_index(INDEX)  # pyrefly: ignore
    with pytest.raises(ValueError, match=r"CSRGraph\.from_edges: receivers must be .*edge_index"):
        CSRGraph.from_edges(3, INDEX, 6)
