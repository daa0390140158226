"""CSRGraph: its transpose, its plan, self loops, and its life as a pytree."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from tests.graph._oracles import (
    assert_same_tree,
    dense,
    edge_lists,
    holds_tracer,
    normalize,
    prepare,
    random_edges,
    receivers,
)

PROPERTY = settings(max_examples=15, deadline=None, derandomize=True)


def without_plan(graph):
    """The same graph as one built directly from its arrays."""
    return dataclasses.replace(graph, plan=None)


class TestShape:
    def test_rows_columns_and_edge_slots(self):
        graph = random_edges(0, 6, 9, 5).graph()
        assert (graph.shape, graph.num_rows, graph.num_cols, graph.num_edges) == ((6, 9), 6, 9, 5)

    def test_is_square_unless_told(self):
        assert CSRGraph(jnp.array([0, 1, 2]), jnp.array([0, 1], jnp.int32)).shape == (2, 2)

    @PROPERTY
    @given(edges=edge_lists())
    def test_degrees_and_receivers_leave_padding_out(self, edges):
        graph = edges.graph()
        kept = edges.receivers[edges.mask]
        np.testing.assert_array_equal(graph.degrees(), np.bincount(kept, minlength=6))
        padding = [edges.num_rows] * int(np.sum(~edges.mask))
        np.testing.assert_array_equal(receivers(graph), [*sorted(kept), *padding])


class TestTranspose:
    @PROPERTY
    @given(edges=edge_lists())
    def test_is_the_transposed_matrix_and_its_own_inverse(self, edges):
        graph = edges.graph().validate()
        transposed = graph.transpose().validate()
        assert transposed.shape == (9, 6)
        np.testing.assert_array_equal(dense(transposed), dense(graph).T)
        assert_same_tree(transposed.transpose(), graph)

    @PROPERTY
    @given(edges=edge_lists())
    def test_keeps_the_order_of_the_edges_of_each_sender(self, edges):
        graph = edges.graph()
        rows = np.asarray(receivers(graph))
        real = int(graph.indptr[-1])
        order = np.argsort(np.asarray(graph.indices)[:real], kind="stable")
        permutation = np.asarray(graph.plan.permutation)
        np.testing.assert_array_equal(permutation[:real], order)
        transposed = np.asarray(graph.plan.transposed_indices)
        np.testing.assert_array_equal(transposed[:real], rows[:real][order])

    def test_padding_slots_stay_behind_and_stay_readable(self):
        edges = random_edges(0, 6, 9, 900)
        graph = edges.graph()
        real = int(graph.indptr[-1])
        transposed = jax.tree.map(np.asarray, graph.transpose())
        assert 0 < real < 900
        permutation = np.asarray(graph.plan.permutation)
        np.testing.assert_array_equal(permutation[real:], np.arange(real, 900))
        np.testing.assert_array_equal(transposed.weights[real:], np.asarray(graph.weights)[real:])
        assert transposed.indices[real:].min() >= 0
        assert transposed.indices[real:].max() < 6

    @pytest.mark.parametrize("planned", [True, False])
    def test_traced_it_has_the_same_bits(self, planned):
        graph = random_edges(1, 6, 9, 900).graph()
        given_graph = graph if planned else without_plan(graph)
        transposed = jax.jit(lambda g: g.transpose())(given_graph)
        assert_same_tree(transposed, graph.transpose())

    def test_carries_gradients_of_the_weights(self):
        graph = random_edges(1, 6, 9, 5).graph()
        factors = np.arange(5, dtype=np.float32)
        loss = jax.jit(lambda w: graph.with_weights(w).transpose().weights @ factors)
        gradient = jax.grad(loss)(graph.weights)
        expected = np.zeros(5)
        expected[np.asarray(graph.plan.permutation)] = factors
        np.testing.assert_array_equal(gradient, expected)

    def test_numpy_weights_meet_a_traced_structure(self):
        graph = random_edges(1, 6, 9, 5).graph()
        weights = np.asarray(graph.weights)
        transposed = jax.jit(lambda g: g.with_weights(weights).transpose())(graph)
        assert_same_tree(transposed, graph.transpose())


class TestPlan:
    def test_is_made_once_and_kept(self):
        graph = without_plan(random_edges(2, 6, 9, 5).graph())
        assert graph.prepared().plan is graph.prepared().plan
        planned = graph.prepared()
        assert planned.prepared() is planned

    def test_made_inside_jit_of_a_constant_graph_it_is_a_constant_that_outlives_the_trace(self):
        expected = random_edges(2, 6, 9, 5).graph()
        graph = without_plan(expected)
        plans = []

        @jax.jit
        @jax.grad
        def step(x):
            plans.append(graph.prepared().plan)
            return jax.vmap(
                lambda row: row @ graph.prepared().plan.permutation[:2].astype(row.dtype)
            )(x).sum()

        with jax.checking_leaks():
            step(jnp.ones((2, 2)))
        assert plans
        assert not holds_tracer(plans)
        assert graph.prepared().plan is plans[0]
        assert_same_tree(graph.prepared(), expected.prepared())

    def test_of_a_traced_graph_is_not_kept(self):
        graph = without_plan(random_edges(2, 6, 9, 5).graph())
        with jax.checking_leaks():
            jax.jit(lambda g: g.prepared().plan.permutation)(graph)
        assert not holds_tracer(graph.prepared())

    @PROPERTY
    @given(edges=edge_lists(sizes=(900,)))
    def test_made_under_jit_has_the_bits_of_the_host_plan(self, edges):
        graph = edges.graph(weighted=False)
        assert_same_tree(prepare(without_plan(graph)), graph.prepared())

    def test_of_numpy_int64_offsets_is_int32_as_under_jit(self):
        planned = random_edges(2, 6, 9, 900).graph(weighted=False)
        graph = CSRGraph(np.asarray(planned.indptr, np.int64), planned.indices, num_cols=9)
        assert graph.prepared().plan.schedule.offsets.dtype == jnp.int32
        assert_same_tree(graph.prepared().plan, prepare(graph).plan)

    def test_other_weights_leave_scales_of_rows_or_columns_and_their_name(self):
        graph = random_edges(2, 6, 6, 5).graph().with_weights(None).normalized("mean")
        for normalized in (graph, graph.transpose()):
            other = normalized.with_weights(np.ones(graph.num_edges, np.float32))
            assert other.is_normalized
            assert other.normalization == normalized.normalization is not None

    def test_of_other_weights_is_shared(self):
        graph = random_edges(2, 6, 9, 5).graph()
        other = graph.with_weights(2 * np.asarray(graph.weights))
        assert other.plan is graph.plan
        assert graph.with_weights(None).plan.transposed_indices is graph.plan.transposed_indices


def with_loops(matrix, existing, weight, duplicates):
    """``matrix`` with ``weight`` added on the diagonal, where there is no edge yet."""
    missing = np.ones(len(matrix), bool) if duplicates else np.diag(existing) == 0
    return matrix + np.diag(np.where(missing, weight, 0.0))


class TestSelfLoops:
    @pytest.mark.parametrize("duplicates", [False, True])
    @PROPERTY
    @given(edges=edge_lists(nodes=(6, 6), sizes=(0, 5)))
    def test_adds_a_loop_to_each_node_without_one(self, edges, duplicates):
        existing = edges.dense(weighted=False)
        for weighted, weight in ((False, 1.0), (True, 2.5)):
            graph = edges.graph(weighted=weighted)
            looped = graph.with_self_loops(weight, duplicates=duplicates).validate()
            expected = with_loops(edges.dense(weighted=weighted), existing, weight, duplicates)
            np.testing.assert_allclose(dense(looped), expected, rtol=1e-6)
            padding = graph.num_edges - int(graph.indptr[-1])
            slots = graph.num_edges + 6 if padding else int(looped.indptr[-1])
            assert looped.num_edges == slots
            assert looped.plan is not None

    def test_twice_adds_nothing(self):
        once = random_edges(3, 6, 6, 5).graph(masked=False).with_self_loops()
        assert_same_tree(once.with_self_loops(), once)

    @pytest.mark.parametrize("duplicates", [False, True])
    def test_new_loops_follow_the_edges_of_their_node(self, duplicates):
        graph = CSRGraph.from_edges([1, 0, 0, 3, 4], [0, 0, 1, 4, 4], 6)
        looped = graph.with_self_loops(duplicates=duplicates)
        assert looped.indices.tolist() == (
            [1, 0, 0, 0, 1, 2, 3, 3, 4, 4, 5] if duplicates else [1, 0, 0, 1, 2, 3, 3, 4, 5]
        )

    @pytest.mark.parametrize("weighted", [False, True])
    def test_traced_it_is_the_same_matrix(self, weighted):
        edges = random_edges(3, 6, 6, 5)
        graph = edges.graph(weighted=weighted)
        looped = jax.jit(lambda g: g.with_self_loops(2.5))(graph)
        assert_same_tree(looped.degrees(), graph.with_self_loops().degrees())
        np.testing.assert_array_equal(dense(looped), dense(graph.with_self_loops(2.5)))
        assert looped.num_edges == 11, "shapes cannot depend on how many loops there are"

    def test_of_a_constant_graph_inside_jit_has_its_plan_and_gradients_of_the_weights(self):
        graph = random_edges(3, 6, 6, 5).graph()
        looped = graph.with_self_loops()
        x = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2)
        plans = []

        def loss(weights):
            inner = graph.with_weights(weights).with_self_loops()
            plans.append(inner.plan)
            return jnp.sum(ops.spmm(inner, x, implementation="xla") ** 2)

        with jax.checking_leaks():
            gradient = jax.jit(jax.grad(loss))(graph.weights)
        assert_same_tree(plans[0], looped.plan)
        real = int(graph.indptr[-1])
        y = dense(looped) @ x
        rows, columns = np.asarray(receivers(graph))[:real], np.asarray(graph.indices)[:real]
        np.testing.assert_allclose(gradient[:real], 2 * np.sum(y[rows] * x[columns], 1), rtol=1e-4)
        assert not np.asarray(gradient)[real:].any()


class TestPytree:
    def test_flattens_and_comes_back(self):
        graph = normalize(random_edges(4, 6, 9, 5).graph(), "mean")
        leaves, structure = jax.tree.flatten(graph)
        assert_same_tree(jax.tree.unflatten(structure, leaves), graph)
        assert_same_tree(jax.jit(lambda g: g)(graph), graph)

    def test_an_unweighted_graph_has_no_array_of_weights_among_its_leaves(self):
        graph = without_plan(random_edges(4, 6, 9, 5).graph(weighted=False))
        graph = jax.eval_shape(lambda g: g.normalized("sym"), graph)
        shapes = sorted(leaf.shape for leaf in jax.tree.leaves(graph))
        assert shapes == [(5,), (6,), (7,), (9,)], "scales, offsets and senders: nothing else"
        floats = [leaf for leaf in jax.tree.leaves(graph) if leaf.dtype == jnp.float32]
        assert {leaf.shape for leaf in floats} == {(6,), (9,)}

    def test_graphs_of_different_size_differ_in_structure(self):
        """The number of senders is static: it tells jit to compile anew."""
        one = CSRGraph(jnp.array([0, 1]), jnp.array([0], jnp.int32), num_cols=3)
        other = CSRGraph(jnp.array([0, 1]), jnp.array([0], jnp.int32), num_cols=4)
        assert jax.tree.structure(one) != jax.tree.structure(other)

    def test_vmap_over_weights_shares_the_structure(self):
        graph = random_edges(4, 6, 9, 5).graph()
        weights = jnp.stack([graph.weights, 2 * graph.weights])
        transposed = jax.vmap(lambda w: graph.with_weights(w).transpose().weights)(weights)
        expected = np.asarray(weights)[:, np.asarray(graph.plan.permutation)]
        np.testing.assert_array_equal(transposed, expected)

    def test_scan_and_vmap_over_stacked_graphs(self):
        graphs = [random_edges(seed, 6, 9, 5).graph() for seed in range(3)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *graphs)

        def column_sums(graph):
            transposed = graph.transpose()
            return jax.ops.segment_sum(transposed.weights, transposed.receivers(), 9)

        scan = jax.jit(lambda graphs: jax.lax.map(column_sums, graphs))
        scanned = scan(stacked)
        expected = [dense(graph).sum(0) for graph in graphs]
        np.testing.assert_allclose(scanned, expected, rtol=1e-5)
        np.testing.assert_allclose(jax.jit(jax.vmap(column_sums))(stacked), expected, rtol=1e-5)

    def test_is_carried_through_a_scan(self):
        graph = random_edges(4, 6, 9, 5).graph()

        def step(graph, _):
            return graph.with_weights(2 * graph.weights), None

        doubled = jax.lax.scan(step, graph, length=3)[0]
        assert_same_tree(doubled, graph.with_weights(8 * graph.weights))

    def test_can_be_donated(self):
        graph = random_edges(4, 6, 9, 5).graph()
        expected = jax.tree.map(np.asarray, graph.with_weights(2 * graph.weights))
        doubled = jax.jit(lambda g: g.with_weights(2 * g.weights), donate_argnums=0)(graph)
        assert_same_tree(doubled, expected)
        assert graph.weights.is_deleted()

    @pytest.mark.parametrize(
        "duplicate", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))]
    )
    def test_can_be_copied_and_pickled(self, duplicate):
        graph = without_plan(random_edges(4, 6, 9, 5).graph())
        expected = graph.prepared()
        assert_same_tree(duplicate(graph), graph)
        assert_same_tree(duplicate(graph).prepared(), expected)

    def test_takes_other_weights(self):
        graph = CSRGraph.from_edges([0, 1], [1, 0], 2)
        assert graph.with_weights([0.5, 0.25]).weights.tolist() == [0.5, 0.25]
        assert graph.with_weights([0.5, 0.25]).with_weights(None).weights is None


def test_a_graph_shows_shapes_and_no_arrays_whatever_its_leaves_are():
    graph = CSRGraph.from_edges([0, 1], [1, 0], 2, [1.0, 2.0])
    assert repr(graph) == (
        "CSRGraph(indptr=int32[3], indices=int32[2], weights=float32[2], row_scale=None, "
        "col_scale=None, num_cols=2, normalization=None, made=[], nbytes=28)"
    )
    assert "indptr='leaf'" in repr(jax.tree.map(lambda _: "leaf", graph))
