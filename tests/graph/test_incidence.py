"""Incidence: what it holds however it is built, its two orders, batching, padding, refusals."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgnn import Incidence
from tests.graph._oracles import assert_same_tree, check_message, dense, holds_tracer

PROPERTY = settings(max_examples=15, deadline=None, derandomize=True)
# An empty hyperedge, an isolated node, and a node that is twice in a hyperedge.
HYPEREDGES = [[0, 1, 2], [], [2, 4, 2], [5]]
MATRIX = np.array(
    [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 2, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
)
HYPERGRAPH = Incidence.from_hyperedges(HYPEREDGES, num_nodes=6)
INDEX = np.array([[0, 1, 2, 2, 4, 2, 5], [0, 0, 0, 2, 2, 2, 3]])


def random_incidence(seed: int, slots: int) -> tuple[np.ndarray, np.ndarray, Incidence]:
    """Matrix, index, and a hypergraph of 6 nodes and 9 hyperedges with about a third padding."""
    rng = np.random.default_rng(seed)
    index = np.stack([rng.integers(0, 6, slots), rng.integers(0, 9, slots)])
    index[:, rng.random(slots) < 0.3] = [[6], [9]]
    matrix = np.zeros((6, 9))
    real = index[0] < 6
    np.add.at(matrix, (index[0, real], index[1, real]), 1)
    return matrix, index, Incidence.from_hyperedge_index(index, 6, 9)


BUILDERS = {
    "lists": lambda: HYPERGRAPH,
    "hyperedge_index": lambda: Incidence.from_hyperedge_index(INDEX, 6),
    "jax_index": lambda: Incidence.from_hyperedge_index(jnp.asarray(INDEX), 6, 4),
    "integers": lambda: Incidence.from_matrix(MATRIX),
    "floats": lambda: Incidence.from_matrix(MATRIX.astype(np.float32)),
    "csr": lambda: Incidence.from_matrix(scipy.sparse.csr_array(MATRIX)),
    "csc": lambda: Incidence.from_matrix(scipy.sparse.csc_matrix(MATRIX)),
    "coo": lambda: Incidence.from_matrix(
        scipy.sparse.coo_array((np.ones(7), tuple(INDEX)), shape=(6, 4))
    ),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_is_the_same_matrix_from_whatever_it_is_built(name):
    built = BUILDERS[name]().validate()
    assert (built.shape, built.num_incidences) == ((6, 4), 7)
    assert built.node_ids.dtype == built.hyperedge_ids.dtype == jnp.int32
    np.testing.assert_array_equal(built.todense(), MATRIX)
    np.testing.assert_array_equal(dense(built.by_node()), MATRIX)
    np.testing.assert_array_equal(built.node_degrees(), MATRIX.sum(axis=1))
    np.testing.assert_array_equal(built.hyperedge_sizes(), MATRIX.sum(axis=0))


def test_sets_are_taken_in_ascending_order_and_booleans_are_ones():
    made = Incidence.from_hyperedges([{5, 0, 3}, frozenset({2, 1})], 6)
    assert made.node_ids.tolist() == [0, 3, 5, 1, 2]
    booleans = np.asarray(made.todense()) == 1
    np.testing.assert_array_equal(Incidence.from_matrix(booleans).todense(), booleans)


@pytest.mark.parametrize("hyperedges", [[], [[]], [[], []]])
def test_a_hypergraph_may_have_no_hyperedge_or_only_empty_ones(hyperedges):
    made = Incidence.from_hyperedges(hyperedges, 3).validate()
    assert made.shape == (3, len(hyperedges))
    assert made.num_incidences == 0
    assert not np.asarray(made.node_degrees()).any()
    assert made.todense().shape == (3, len(hyperedges))


@jax.jit
def build_traced(index):
    return Incidence.from_hyperedge_index(index, 6, 9).prepared()


class TestOrders:
    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1), slots=st.sampled_from((0, 5, 300)))
    def test_both_are_the_matrix_and_leave_padding_out(self, seed, slots):
        matrix, index, hypergraph = random_incidence(seed, slots)
        hypergraph.validate()
        np.testing.assert_array_equal(hypergraph.todense(), matrix)
        np.testing.assert_array_equal(hypergraph.mask(), index[0] < 6)
        by_hyperedge, by_node = (
            hypergraph.by_hyperedge().validate(),
            hypergraph.by_node().validate(),
        )
        np.testing.assert_array_equal(dense(by_hyperedge), matrix.T)
        np.testing.assert_array_equal(dense(by_node), matrix)
        assert_same_tree(by_node, by_hyperedge.transpose())

    @PROPERTY
    @given(seed=st.integers(0, 2**32 - 1))
    def test_slots_say_which_incidence_each_edge_is(self, seed):
        _, index, hypergraph = random_incidence(seed, 40)
        graph, slots = hypergraph.by_hyperedge(), np.asarray(hypergraph.plan.slots)
        assert sorted(slots) == list(range(40))
        real = int(graph.indptr[-1])
        np.testing.assert_array_equal(graph.indices[:real], index[0, slots[:real]])
        np.testing.assert_array_equal(graph.receivers(), index[1, slots])

    def test_a_traced_plan_has_the_bits_of_the_eager_one(self):
        _, index, hypergraph = random_incidence(1, 300)
        assert_same_tree(build_traced(jnp.asarray(index, jnp.int32)), hypergraph)

    def test_traced_ids_out_of_range_are_padding(self):
        matrix, index, _ = random_incidence(2, 300)
        wrong = np.array([[-1, 6, 2, 3, -5], [2, 1, -3, 9, 12]])
        padding = np.flatnonzero(index[0] == 6)
        index[:, padding] = wrong[:, np.arange(len(padding)) % wrong.shape[1]]
        built = build_traced(jnp.asarray(index, jnp.int32))
        np.testing.assert_array_equal(dense(built.by_node()), matrix)
        np.testing.assert_array_equal(jax.jit(Incidence.todense)(built), matrix)

    def test_the_plan_of_a_constant_is_made_once_and_outside_of_the_trace(self):
        bare = dataclasses.replace(HYPERGRAPH, plan=None)

        @jax.jit
        def apply(x):
            assert not holds_tracer(bare.prepared())
            assert not holds_tracer(bare.todense())
            return x

        apply(jnp.ones(2))
        assert bare.made_plan() is bare.made_plan()
        assert_same_tree(bare.prepared(), HYPERGRAPH)


class TestBatch:
    def test_is_block_diagonal_with_more_hyperedges_than_nodes_and_the_other_way_round(self):
        many = Incidence.from_hyperedges([[0, 1], [1], [0], [], [1, 1]], 2)
        few = Incidence.from_hyperedges([[3, 0, 1]], 4)
        batched = Incidence.batch([many, few, many]).validate()
        blocks = [h.todense() for h in (many, few, many)]
        np.testing.assert_array_equal(batched.todense(), scipy.linalg.block_diag(*blocks))

    def test_padding_stays_padding(self):
        padded = HYPERGRAPH.padded(num_incidences=11, num_nodes=8)
        batched = Incidence.batch([padded, padded]).validate()
        assert (batched.shape, batched.num_incidences) == ((16, 8), 22)
        blocks = [padded.todense()] * 2
        np.testing.assert_array_equal(batched.todense(), scipy.linalg.block_diag(*blocks))

    def test_works_under_jit(self):
        batched = jax.jit(lambda h: Incidence.batch([h, h]))(HYPERGRAPH)
        eager = Incidence.batch([HYPERGRAPH, HYPERGRAPH])
        assert_same_tree(batched, dataclasses.replace(eager, plan=None))


class TestPadded:
    def test_adds_slots_isolated_nodes_and_empty_hyperedges(self):
        padded = HYPERGRAPH.padded(num_incidences=12, num_nodes=9, num_hyperedges=5).validate()
        assert (padded.shape, padded.num_incidences) == ((9, 5), 12)
        expected = np.zeros((9, 5))
        expected[:6, :4] = MATRIX
        np.testing.assert_array_equal(padded.todense(), expected)
        assert int(padded.mask().sum()) == 7

    def test_hypergraphs_padded_to_one_shape_share_a_compilation(self):
        traces = []

        @jax.jit
        def degrees(hypergraph):
            traces.append(1)
            return hypergraph.node_degrees()

        for hyperedges in (HYPEREDGES, [[0, 1]], [[5, 4, 3], [1]]):
            hypergraph = Incidence.from_hyperedges(hyperedges, 6)
            padded = hypergraph.padded(num_incidences=8, num_hyperedges=4)
            np.testing.assert_array_equal(degrees(padded), hypergraph.node_degrees())
        assert len(traces) == 1


def test_self_loops_are_hyperedges_of_one_node_behind_the_others():
    looped = HYPERGRAPH.with_self_loops().validate()
    np.testing.assert_array_equal(looped.todense(), np.concatenate([MATRIX, np.eye(6)], axis=1))


def test_survives_copying_pickling_and_flattening():
    for same in (
        copy.deepcopy(HYPERGRAPH),
        pickle.loads(pickle.dumps(HYPERGRAPH)),
        jax.tree.map(lambda leaf: leaf, HYPERGRAPH),
        jax.jit(lambda h: h)(HYPERGRAPH),
    ):
        assert_same_tree(same, HYPERGRAPH)


def _direct(nodes, hyperedges, num_nodes=6, num_hyperedges=4, **fields):
    return Incidence(np.array(nodes), np.array(hyperedges), num_nodes, num_hyperedges, **fields)


def test_todense_takes_traced_ids_too_narrow_for_the_number_of_nodes():
    ids = jnp.array([[1, 2, -1], [0, 1, 0]], jnp.int8)
    dense = jax.jit(lambda ids: Incidence(ids[0], ids[1], 300, 300).todense())(ids)
    assert np.argwhere(np.asarray(dense)).tolist() == [[1, 0], [2, 1]]


def _index(*rows, num_nodes=6, num_hyperedges=4):
    return Incidence.from_hyperedge_index(np.array(rows), num_nodes, num_hyperedges)


BAD_INPUT = {
    "node too large": (
        lambda: Incidence.from_hyperedges([[0], [1, 6]], 6),
        ["from_hyperedges: node_ids[2]", "in [0, 6), as num_nodes is 6", "got 6"],
    ),
    "node negative": (
        lambda: Incidence.from_hyperedges([[0], [-1]], 6),
        ["from_hyperedges: node_ids[1]", "in [0, 6)", "got -1"],
    ),
    "a node for a hyperedge": (
        lambda: Incidence.from_hyperedges({0, 1}, 6),
        ["from_hyperedges: hyperedges", "[{0, 1}] for one hyperedge of two", "got 0"],
    ),
    "node a float": (
        lambda: Incidence.from_hyperedges([[0.5]], 6),
        ["from_hyperedges: node_ids", "integer", "float64"],
    ),
    "more hyperedges than declared": (
        lambda: _index([0, 1, 2], [0, 3, 4]),
        ["hyperedge_ids[2]", "in [0, 4), as num_hyperedges is 4", "got 4"],
    ),
    "hyperedge negative": (lambda: _index([0, 1], [0, -2]), ["hyperedge_ids[1]", "got -2"]),
    "half padding": (lambda: _index([6, 6], [4, 0]), ["node_ids[1]", "in [0, 6)", "got 6"]),
    "index of one row": (
        lambda: _index([0, 1]),
        ["from_hyperedge_index: hyperedge_index", "(2, incidences)", "(1, 2)"],
    ),
    "index a vector": (
        lambda: Incidence.from_hyperedge_index(np.arange(3), 6),
        ["hyperedge_index", "(2, incidences)", "(3,)"],
    ),
    "index of floats": (
        lambda: _index([0.0, 1.0], [0.0, 1.0]),
        ["node_ids", "integer", "float64"],
    ),
    "number of nodes": (lambda: _index([0], [0], num_nodes=-1), ["num_nodes", "[0, 2^31)", "-1"]),
    "number of hyperedges": (
        lambda: _index([0], [0], num_hyperedges=2.0),
        ["num_hyperedges", "an integer", "2.0"],
    ),
    "traced without a number": (
        lambda: jax.jit(lambda i: Incidence.from_hyperedge_index(i, 6))(INDEX),
        ["num_hyperedges", "given for a traced index", "None"],
    ),
    "matrix of one axis": (
        lambda: Incidence.from_matrix(np.ones(3)),
        ["from_matrix: matrix", "two-dimensional", "(3,)"],
    ),
    "matrix with a fraction": (
        lambda: Incidence.from_matrix(np.array([[1, 0], [0, 0.5]])),
        ["from_matrix: matrix[1, 1]", "whole number", "0.5"],
    ),
    "matrix with a negative": (
        lambda: Incidence.from_matrix(scipy.sparse.csr_array(np.array([[0, -1]]))),
        ["matrix[0, 1]", "whole number", "-1"],
    ),
    "matrix with NaN": (
        lambda: Incidence.from_matrix(np.array([[np.nan]])),
        ["matrix[0, 0]", "whole number", "nan"],
    ),
    "matrix complex": (lambda: Incidence.from_matrix(np.ones((2, 2), complex)), ["complex128"]),
    "batch of none": (lambda: Incidence.batch([]), ["batch: hypergraphs", "at least one", "none"]),
    "batch of bad ids": (
        lambda: Incidence.batch([HYPERGRAPH, _direct([9], [0])]),
        ["node_ids[0]", "in [0, 6)", "got 9"],
    ),
    "padded to fewer nodes": (
        lambda: HYPERGRAPH.padded(num_nodes=5),
        ["padded: num_nodes", "at least 6", "got 5"],
    ),
    "padded to fewer slots": (
        lambda: HYPERGRAPH.padded(num_incidences=6),
        ["padded: num_incidences", "at least 7", "got 6"],
    ),
    "direct, node": (lambda: _direct([7], [0]).validate(), ["node_ids[0]", "[0, 6)", "got 7"]),
    "direct, prepared": (lambda: _direct([7], [0]).prepared(), ["node_ids[0]", "got 7"]),
    "direct, lengths": (
        lambda: _direct([1, 2], [0]).validate(),
        ["hyperedge_ids", "(2,)", "(1,)"],
    ),
    "direct, lists": (
        lambda: Incidence([1], [0], 6, 4).validate(),
        ["node_ids", "an array of integers", "list"],
    ),
    "direct, dtype": (lambda: _direct([1.0], [0]).validate(), ["node_ids", "integer", "float64"]),
    "another's plan": (
        lambda: _direct([1], [0], plan=_index([0], [0]).plan).validate(),
        ["plan.by_hyperedge.indices[0]", "1", "got 0"],
    ),
    "a larger one's plan": (
        lambda: _direct([1], [0], plan=HYPERGRAPH.plan).validate(),
        ["plan.by_hyperedge", "(4, 6) with 1 slots", "with 7"],
    ),
    "validate under jit": (
        lambda: jax.jit(lambda h: h.validate())(HYPERGRAPH),
        ["Incidence.validate: self", "outside jit", "a tracer"],
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_named(name):
    call, fragments = BAD_INPUT[name]
    with pytest.raises(ValueError) as error:
        call()
    check_message(str(error.value), fragments)
