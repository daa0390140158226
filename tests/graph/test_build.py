"""Graphs from edge lists, scipy.sparse and jraph, eager and traced."""

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings

from jaxgnn.graph import CSRGraph, sort_edges
from tests.graph._oracles import (
    assert_same_tree,
    dense,
    edge_lists,
    holds_tracer,
    random_edges,
    receivers,
)

PROPERTY = settings(max_examples=25, deadline=None, derandomize=True)


class TestFromEdges:
    @PROPERTY
    @given(edges=edge_lists())
    def test_is_the_matrix_of_the_edge_list(self, edges):
        for masked in (False, True):
            for weighted in (False, True):
                graph = edges.graph(weighted=weighted, masked=masked).validate()
                expected = edges.dense(weighted=weighted, masked=masked)
                np.testing.assert_allclose(dense(graph), expected, rtol=1e-6)
                assert graph.num_edges == len(edges.senders)
                assert (graph.weights is None) is not weighted

    @pytest.mark.parametrize("masked", [True, False])
    def test_traced_edges_of_nodes_out_of_range_are_padding(self, masked):
        senders = np.array([0, 3, 1, -1, 2, 10**9, 2], np.int32)
        receivers = np.array([1, 0, 3, 2, -1, 0, 2], np.int32)
        mask = np.array([True] * 6 + [not masked])
        build = jax.jit(
            lambda s, r, m: CSRGraph.from_edges(s, r, 3, edge_mask=m if masked else None)
        )
        graph = build(senders, receivers, mask)
        expected = np.zeros((3, 3))
        expected[1, 0] = 1
        expected[2, 2] = 0 if masked else 1
        np.testing.assert_array_equal(dense(graph), expected)
        assert graph.num_edges == 7

    @PROPERTY
    @given(edges=edge_lists())
    def test_edges_of_a_receiver_keep_their_order_and_padding_goes_last(self, edges):
        graph = edges.graph()
        keys = np.where(edges.mask, edges.receivers, edges.num_rows)
        order = np.argsort(keys, kind="stable")
        np.testing.assert_array_equal(graph.indices, edges.senders[order])
        np.testing.assert_array_equal(graph.weights, edges.weights[order])
        np.testing.assert_array_equal(receivers(graph), keys[order])

    @PROPERTY
    @given(edges=edge_lists(sizes=(0, 900)))
    def test_a_traced_graph_and_its_plan_have_the_bits_of_the_eager_one(self, edges):
        traced = build_traced(
            edges.senders,
            edges.receivers,
            edges.weights,
            edges.mask,
            edges.num_rows,
            edges.num_cols,
        )
        assert_same_tree(traced, edges.graph())

    @pytest.mark.parametrize("traced", [False, True])
    @pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint16, np.int64])
    def test_ids_narrower_than_the_number_of_nodes_do_not_overflow(self, dtype, traced):
        senders, receivers = np.array([[3, 1, 127, 0], [127, 0, 5, 5]], dtype)
        mask = np.array([True, True, True, False])

        def build(senders, receivers, mask):
            return CSRGraph.from_edges(senders, receivers, 70_000, edge_mask=mask)

        graph = (jax.jit(build) if traced else build)(senders, receivers, mask)
        assert np.asarray(graph.indptr)[[0, 1, 5, 6, 127, 128, 70_000]].tolist() == [
            0,
            1,
            1,
            2,
            2,
            3,
            3,
        ]
        assert graph.indices.tolist() == [1, 127, 3, 0]
        assert graph.indices.dtype == graph.indptr.dtype == jnp.int32

    def test_takes_lists(self):
        graph = CSRGraph.from_edges(
            [0, 2, 1], [1, 0, 1], 3, [0.5, 2.0, 4.0], edge_mask=[True, True, False]
        )
        np.testing.assert_array_equal(dense(graph), [[0, 0, 2], [0.5, 0, 0], [0, 0, 0]])

    @pytest.mark.parametrize("empty", [[], np.zeros(0), jnp.zeros(0, jnp.int32)])
    def test_takes_no_edges(self, empty):
        graph = CSRGraph.from_edges(empty, empty, 3, num_senders=2, edge_mask=empty[:0]).validate()
        np.testing.assert_array_equal(dense(graph), np.zeros((3, 2)))
        assert graph.indices.dtype == jnp.int32

    def test_takes_no_nodes(self):
        graph = CSRGraph.from_edges([], [], 0).validate()
        assert graph.shape == (0, 0)
        assert graph.with_self_loops().normalized("sym").transpose().validate().num_edges == 0

    def test_takes_receivers_without_senders_and_senders_without_receivers(self):
        for shape in ((0, 4), (4, 0)):
            graph = CSRGraph.from_edges([], [], shape[0], num_senders=shape[1])
            assert graph.shape == shape
            assert graph.transpose().validate().shape == shape[::-1]
            assert_same_tree(graph.transpose().transpose(), graph)

    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
    def test_weights_keep_their_dtype(self, dtype):
        edges = random_edges(0, 6, 6, 5)
        weights = edges.weights.astype(dtype)
        graph = CSRGraph.from_edges(edges.senders, edges.receivers, 6, weights)
        assert graph.weights.dtype == dtype
        assert {array.dtype for array in derived_weights(graph)} == {np.dtype(dtype)}

    def test_float64_weights_stay_float64_where_jax_has_them(self):
        with jax.enable_x64(True):
            graph = CSRGraph.from_edges([0, 1], [1, 0], 2, np.array([0.1, 0.2]))
            assert graph.weights.dtype == jnp.float64
            assert {array.dtype for array in derived_weights(graph)} == {np.dtype(np.float64)}
            assert graph.indices.dtype == graph.indptr.dtype == jnp.int32

    def test_constants_inside_jit_give_a_constant_graph_with_its_plan(self):
        edges = random_edges(1, 6, 9, 5)
        jax_senders = jnp.asarray(edges.senders)
        built = []

        @jax.jit
        def step(x):
            built.append(edges.graph())
            built.append(CSRGraph.from_edges(jax_senders, edges.receivers, 6, num_senders=9))
            return x

        step(0.0)
        assert not holds_tracer(built)
        assert_same_tree(built[0], edges.graph())
        assert_same_tree(built[1], edges.graph(weighted=False, masked=False))

    def test_constant_edges_with_traced_weights_have_a_plan_and_a_gradient(self):
        edges = random_edges(2, 6, 9, 5)
        factors = np.arange(5, dtype=np.float32)

        @jax.jit
        @jax.grad
        def gradient(weights):
            graph = CSRGraph.from_edges(
                edges.senders, edges.receivers, 6, weights, num_senders=9, edge_mask=edges.mask
            )
            assert graph.plan is not None
            assert not holds_tracer(graph.plan)
            return graph.weights @ factors

        order = np.argsort(np.where(edges.mask, edges.receivers, 6), kind="stable")
        expected = np.zeros(5)
        expected[order] = factors
        np.testing.assert_array_equal(gradient(edges.weights), expected)

    def test_traced_senders_with_constant_receivers(self):
        edges = random_edges(2, 6, 9, 5)
        graph = jax.jit(
            lambda senders: CSRGraph.from_edges(
                senders, edges.receivers, 6, num_senders=9
            ).prepared()
        )(edges.senders)
        assert_same_tree(graph, edges.graph(weighted=False, masked=False).prepared())

    def test_vmap_builds_one_graph_for_each_batch_member(self):
        lists = [random_edges(seed, 6, 9, 5) for seed in range(3)]
        batch = [
            np.stack(field)
            for field in zip(*((e.senders, e.receivers) for e in lists), strict=True)
        ]
        build = jax.vmap(lambda s, r: CSRGraph.from_edges(s, r, 6, num_senders=9).prepared())
        graphs = jax.jit(build)(*batch)
        for i, edges in enumerate(lists):
            one = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], graphs)
            assert_same_tree(one, edges.graph(weighted=False, masked=False).prepared())

    def test_offsets_beyond_int32_are_int64(self):
        """Shapes alone: no array is made."""
        edge = jax.ShapeDtypeStruct((2**31,), jnp.int32)
        with jax.enable_x64(True):
            graph = jax.eval_shape(
                lambda s, r: CSRGraph.from_edges(s, r, 5, num_senders=3).transpose().prepared(),
                edge,
                edge,
            )
        plan = graph.plan
        offsets = (graph.indptr, plan.transposed_indptr, plan.permutation, plan.schedule.offsets)
        assert {array.dtype for array in offsets} == {np.dtype(np.int64)}
        assert graph.indices.dtype == plan.schedule.rows.dtype == np.int32

    def test_one_compilation_serves_all_edge_lists_of_a_shape(self):
        traces = []

        @jax.jit
        def build(senders, receivers, mask):
            traces.append(None)
            return CSRGraph.from_edges(senders, receivers, 6, num_senders=9, edge_mask=mask)

        for seed in range(3):
            edges = random_edges(seed, 6, 9, 5)
            expected = edges.dense(weighted=False)
            np.testing.assert_array_equal(
                dense(build(edges.senders, edges.receivers, edges.mask)), expected
            )
        assert len(traces) == 1


def derived_weights(graph):
    """Shapes and dtypes of the weights of all graphs that are made from one."""
    return jax.eval_shape(
        lambda g: [
            g.transpose().weights,
            g.with_self_loops(2.0).weights,
            g.normalized("mean").weights,
            g.normalized("sym").weights,
        ],
        graph,
    )


@jax.jit(static_argnums=(4, 5))
def build_traced(senders, receivers, weights, mask, num_rows, num_cols):
    return CSRGraph.from_edges(
        senders, receivers, num_rows, weights, num_senders=num_cols, edge_mask=mask
    ).prepared()


class TestSortEdges:
    def test_of_traced_receivers_those_out_of_range_are_behind_all_rows(self):
        indptr, permutation = jax.jit(lambda r: sort_edges(r, 3))(jnp.array([-1, 1, 7, 2, 0]))
        assert indptr.tolist() == [0, 1, 2, 3]
        assert permutation[:3].tolist() == [4, 1, 3]

    @PROPERTY
    @given(edges=edge_lists())
    def test_is_a_stable_sort_of_the_receivers(self, edges):
        indptr, permutation = sort_edges(edges.receivers, edges.num_rows, edges.mask)
        keys = np.where(edges.mask, edges.receivers, edges.num_rows)
        np.testing.assert_array_equal(permutation, np.argsort(keys, kind="stable"))
        counts = np.bincount(keys, minlength=edges.num_rows + 1)[:-1]
        np.testing.assert_array_equal(indptr, np.concatenate([[0], np.cumsum(counts)]))
        assert isinstance(indptr, np.ndarray)


FORMATS = ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"]
# Every row, column and sign; entry (1, 3) is one, so that not all of them say "weighted".
ENTRIES = np.array([[0, 2, 0, 0, 3], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0], [5, 0, 0, 0, 7]])


def make_sparse(form, kind, dtype):
    return getattr(scipy.sparse, f"{form}_{kind}")(ENTRIES.astype(dtype))


class TestFromScipy:
    @pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64, np.float32, np.float64])
    @pytest.mark.parametrize("kind", ["array", "matrix"])
    @pytest.mark.parametrize("form", FORMATS)
    def test_every_format_and_dtype(self, form, kind, dtype):
        graph = CSRGraph.from_scipy(make_sparse(form, kind, dtype)).validate()
        np.testing.assert_array_equal(dense(graph), ENTRIES.astype(dtype))
        assert graph.num_edges == 5
        assert graph.plan is not None
        assert graph.weights is None if dtype is bool else graph.weights.dtype == jnp.float32

    def test_ones_need_no_weights_unless_asked_for(self):
        matrix = scipy.sparse.csr_array(ENTRIES.astype(bool).astype(np.float32))
        assert CSRGraph.from_scipy(matrix).weights is None
        assert CSRGraph.from_scipy(matrix, weighted=True).weights.tolist() == [1.0] * 5

    def test_weights_can_be_dropped(self):
        graph = CSRGraph.from_scipy(make_sparse("csr", "array", np.float32), weighted=False)
        assert graph.weights is None
        np.testing.assert_array_equal(dense(graph), ENTRIES != 0)

    def test_float64_stays_where_jax_has_it(self):
        with jax.enable_x64(True):
            graph = CSRGraph.from_scipy(make_sparse("csr", "array", np.float64))
            assert graph.weights.dtype == jnp.float64
            assert graph.indptr.dtype == jnp.int32

    def test_int64_offsets_of_scipy_become_int32(self):
        matrix = make_sparse("csr", "array", np.float32)
        matrix.indptr, matrix.indices = matrix.indptr.astype("i8"), matrix.indices.astype("i8")
        graph = CSRGraph.from_scipy(matrix)
        assert graph.indptr.dtype == graph.indices.dtype == jnp.int32

    def test_stored_zeros_are_edges(self):
        matrix = scipy.sparse.csr_array(([0.0, 2.0, 0.0], [1, 2, 0], [0, 2, 3]), shape=(2, 3))
        graph = CSRGraph.from_scipy(matrix)
        assert graph.degrees().tolist() == [2, 1]
        assert graph.weights.tolist() == [0.0, 2.0, 0.0]

    def test_unsorted_and_repeated_entries_of_csr_stay_as_they_are(self):
        matrix = scipy.sparse.csr_array(([1.0, 2.0, 4.0], [2, 0, 2], [0, 3, 3]), shape=(2, 3))
        graph = CSRGraph.from_scipy(matrix)
        assert graph.indices.tolist() == [2, 0, 2]
        assert graph.weights.tolist() == [1.0, 2.0, 4.0]
        np.testing.assert_array_equal(dense(graph), matrix.toarray())

    def test_repeated_entries_of_coo_add_up(self):
        matrix = scipy.sparse.coo_array(([1.0, 1.0, 3.0], ([0, 0, 1], [2, 2, 0])), shape=(2, 3))
        graph = CSRGraph.from_scipy(matrix)
        assert graph.num_edges == 2
        np.testing.assert_array_equal(dense(graph), [[0, 0, 2], [3, 0, 0]])

    @pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 3)])
    def test_no_entries(self, shape):
        graph = CSRGraph.from_scipy(scipy.sparse.csr_array(shape)).validate()
        assert (graph.shape, graph.num_edges, graph.weights) == (shape, 0, None)

    def test_inside_jit_it_is_a_constant(self):
        matrix, built = make_sparse("csr", "array", np.float32), []

        @jax.jit
        def step(x):
            built.append(CSRGraph.from_scipy(matrix))
            return x

        step(0.0)
        assert not holds_tracer(built)
        assert_same_tree(built[0], CSRGraph.from_scipy(matrix))

    def test_later_changes_of_the_matrix_do_not_reach_the_graph(self):
        matrix = make_sparse("csr", "array", np.float32)
        graph = CSRGraph.from_scipy(matrix)
        matrix.data[:], matrix.indices[:], matrix.indptr[:] = 9, 0, 0
        np.testing.assert_array_equal(dense(graph), ENTRIES)


def tuple_of(edges, xp=np):
    """One graph of a GraphsTuple."""
    return jraph.GraphsTuple(
        nodes=xp.ones((edges.num_rows, 2)),
        edges=xp.asarray(edges.weights)[:, None],
        senders=xp.asarray(edges.senders),
        receivers=xp.asarray(edges.receivers),
        n_node=xp.array([edges.num_rows]),
        n_edge=xp.array([len(edges.senders)]),
        globals=None,
    )


def batch(*sizes, seed=0):
    """A batch of random graphs, and its adjacency: the graphs' own on the diagonal."""
    lists = [random_edges(seed + n, n, n, num_edges) for n, num_edges in sizes]
    blocks = [edges.dense(masked=False) for edges in lists]
    return jraph.batch_np([tuple_of(edges) for edges in lists]), scipy.linalg.block_diag(*blocks)


class TestFromGraphsTuple:
    @pytest.mark.parametrize("xp", [np, jnp])
    def test_one_graph(self, xp):
        edges = random_edges(4, 6, 6, 5)
        graph = CSRGraph.from_graphs_tuple(tuple_of(edges, xp)).validate()
        np.testing.assert_array_equal(dense(graph), edges.dense(weighted=False, masked=False))
        assert graph.plan is not None

    def test_a_batch_keeps_its_graphs_apart(self):
        graphs, expected = batch((3, 5), (1, 0), (4, 300))
        graph = CSRGraph.from_graphs_tuple(graphs, graphs.edges[:, 0])
        np.testing.assert_allclose(dense(graph), expected, rtol=1e-6)

    @pytest.mark.parametrize("jit", [False, True])
    @pytest.mark.parametrize(("nodes", "edges", "count"), [(9, 305, 4), (12, 400, 5)])
    def test_padding_edges_contribute_nothing(self, nodes, edges, count, jit):
        """Padding with spare nodes, edges and graphs, or with the least that jraph allows."""
        graphs, real = batch((3, 5), (1, 0), (4, 300))
        padded = jraph.pad_with_graphs(graphs, nodes, edges, count)

        def build(graphs):
            return CSRGraph.from_graphs_tuple(graphs, graphs.edges[:, 0], padded=True)

        graph = (jax.jit(build) if jit else build)(padded).validate()
        expected = np.zeros((nodes, nodes))
        expected[:8, :8] = real
        np.testing.assert_allclose(dense(graph), expected, rtol=1e-6)
        assert graph.num_edges == edges
        assert int(np.asarray(graph.indptr)[-1]) == 305

    @pytest.mark.parametrize("jit", [False, True])
    @pytest.mark.parametrize("edges", [5, 0])
    def test_a_tuple_of_one_graph_is_not_said_to_be_padded(self, edges, jit):
        """All its edges would be those of padding: jraph pads by another graph at least."""
        graphs = tuple_of(random_edges(4, 6, 6, edges))

        def build(graphs):
            return CSRGraph.from_graphs_tuple(graphs, padded=True)

        with pytest.raises(ValueError, match=r"padded must be False .* got True for 1"):
            (jax.jit(build) if jit else build)(graphs)
        least = jraph.pad_with_graphs(graphs, 7, edges)
        assert int(np.asarray((jax.jit(build) if jit else build)(least).indptr)[-1]) == edges

    def test_traced_padding_gives_the_bits_of_the_eager_graph(self):
        padded = jraph.pad_with_graphs(batch((3, 5), (4, 300))[0], 12, 400, 5)
        traced = jax.jit(lambda graphs: CSRGraph.from_graphs_tuple(graphs, padded=True).prepared())
        graph = CSRGraph.from_graphs_tuple(padded, padded=True)
        assert_same_tree(traced(padded), graph.prepared())

    def test_without_the_flag_padding_edges_stay_among_the_padding_nodes(self):
        graphs, real = batch((3, 5), (4, 300))
        padded = jraph.pad_with_graphs(graphs, 12, 400, 5)
        matrix = dense(CSRGraph.from_graphs_tuple(padded, padded.edges[:, 0]))
        np.testing.assert_allclose(matrix[:7, :7], real, rtol=1e-6)
        assert not matrix[:7, 7:].any()
        assert not matrix[7:, :7].any()

    def test_batches_padded_to_one_shape_share_a_compilation(self):
        traces = []

        @jax.jit
        def build(graphs):
            traces.append(None)
            return CSRGraph.from_graphs_tuple(graphs, graphs.edges[:, 0], padded=True)

        for sizes in ([(3, 5), (4, 300)], [(2, 0)], [(1, 1), (2, 9), (5, 20)]):
            graphs, real = batch(*sizes)
            matrix = dense(build(jraph.pad_with_graphs(graphs, 12, 400, 5)))
            np.testing.assert_allclose(matrix[: len(real), : len(real)], real, rtol=1e-6)
            assert np.count_nonzero(matrix) == np.count_nonzero(real)
        assert len(traces) == 1

    @pytest.mark.parametrize("nodes", [None, {}])
    def test_a_tuple_without_node_features_counts_its_nodes(self, nodes):
        graphs, expected = batch((3, 5), (4, 300))
        graph = CSRGraph.from_graphs_tuple(graphs._replace(nodes=nodes), graphs.edges[:, 0])
        np.testing.assert_allclose(dense(graph), expected, rtol=1e-6)

    def test_node_features_may_be_a_tree(self):
        graphs, expected = batch((3, 5), (4, 300))
        graphs = graphs._replace(nodes={"a": graphs.nodes, "b": (graphs.nodes,)})
        graph = CSRGraph.from_graphs_tuple(graphs, graphs.edges[:, 0])
        np.testing.assert_allclose(dense(graph), expected, rtol=1e-6)

    def test_a_constant_padded_tuple_inside_jit_gives_a_constant_graph(self):
        padded = jraph.pad_with_graphs(batch((3, 5), (4, 300))[0], 12, 400, 5)
        built = []

        @jax.jit
        def step(x):
            built.append(CSRGraph.from_graphs_tuple(padded, padded=True))
            return x

        step(0.0)
        assert not holds_tracer(built)
        assert_same_tree(built[0], CSRGraph.from_graphs_tuple(padded, padded=True))
