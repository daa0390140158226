"""Bad input gives a ValueError that names the class, the argument, the expectation and the value.

At once where shapes and dtypes tell, from ``validate()`` where only values do.
"""

import dataclasses

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
import scipy.sparse

from jaxgnn import ops
from jaxgnn.graph import CBSR, CSRGraph, sort_edges
from tests.graph._oracles import assert_same_tree, check_message, random_edges

NAN, INF = float("nan"), float("inf")
INDPTR = np.array([0, 1, 3], np.int32)
INDICES = np.array([1, 0, 1], np.int32)
EDGES = CSRGraph(INDPTR, INDICES)
PLANNED = jax.tree.map(np.asarray, random_edges(0, 6, 9, 600).graph())


def graph(indptr=INDPTR, indices=INDICES, **fields):
    return CSRGraph(indptr, indices, **fields)


def ones(shape, dtype=np.float32):
    return np.ones(shape, dtype)


def int32(*values):
    return np.array(values, np.int32)


def edges(senders=(0, 1), receivers=(1, 0), num_nodes=2, *args, **kwargs):
    return CSRGraph.from_edges(senders, receivers, num_nodes, *args, **kwargs)


def graphs_tuple(**changes):
    fields = {
        "nodes": np.ones((2, 1)),
        "edges": None,
        "senders": np.array([0, 1]),
        "receivers": np.array([1, 0]),
        "n_node": np.array([2]),
        "n_edge": np.array([2]),
        "globals": None,
    }
    return jraph.GraphsTuple(**{**fields, **changes})


def cbsr(ids=((0, 2), (1, 3)), values=None, dim=4, dtype=jnp.uint8):
    ids = np.array(ids, dtype)
    return CBSR(ones(ids.shape) if values is None else values, ids, dim)


def sparse(*entries, shape=(2, 2)):
    values, rows, columns = zip(*entries, strict=True)
    return scipy.sparse.csr_array((values, (rows, columns)), shape=shape)


# name: (call, what its message must say, in this order)
BAD_INPUT = {
    # from_edges: values
    "sender too large": (lambda: edges([0, 5]), ["from_edges: senders[1]", "in [0, 2)", "got 5"]),
    "sender negative": (lambda: edges([-1, 0]), ["from_edges: senders[0]", "in [0, 2)", "got -1"]),
    "receiver too large": (
        lambda: edges(receivers=[0, 2]),
        ["from_edges: receivers[1]", "in [0, 2)", "got 2"],
    ),
    "receiver negative": (
        lambda: edges(receivers=[0, -7]),
        ["from_edges: receivers[1]", "in [0, 2)", "got -7"],
    ),
    "sender beyond num_senders": (
        lambda: edges([0, 1], num_senders=1),
        ["from_edges: senders[1]", "in [0, 1)", "got 1"],
    ),
    "first bad edge that is not masked": (
        lambda: edges([9, 8], edge_mask=[False, True]),
        ["from_edges: senders[1]", "got 8"],
    ),
    "edges without nodes": (
        lambda: edges([0], [0], 0),
        ["from_edges: senders[0]", "in [0, 0)", "got 0"],
    ),
    "weight nan": (lambda: edges(weights=[NAN, 1.0]), ["CSRGraph: weights[1]", "finite", "nan"]),
    "weight infinite": (lambda: edges(weights=[1.0, INF]), ["weights[0]", "finite", "inf"]),
    # from_edges: shapes, dtypes, sizes
    "senders float": (
        lambda: edges([0.0, 1.0]),
        ["from_edges: senders", "integer dtype", "float64"],
    ),
    "receivers bool": (
        lambda: edges(receivers=[True, False]),
        ["from_edges: receivers", "integer dtype", "bool"],
    ),
    "weights int": (
        lambda: edges(weights=[1, 2]),
        ["from_edges: weights", "floating dtype", "int64"],
    ),
    "mask int": (lambda: edges(edge_mask=[1, 0]), ["from_edges: edge_mask", "bool", "int64"]),
    "fewer senders": (lambda: edges([0]), ["from_edges: senders", "(2,)", "(1,)"]),
    "fewer weights": (lambda: edges(weights=[1.0]), ["from_edges: weights", "(2,)", "(1,)"]),
    "longer mask": (lambda: edges(edge_mask=[True] * 3), ["edge_mask", "(2,)", "(3,)"]),
    "matrix of receivers": (
        lambda: edges(receivers=np.zeros((2, 1), int)),
        ["from_edges: receivers", "(2,)", "(2, 1)"],
    ),
    "an edge_index twice": (
        lambda: edges(np.zeros((2, 3), int), np.zeros((2, 3), int)),
        ["from_edges: senders", "(3,)", "edge_index[0]", "shape (2, 3)"],
    ),
    "an edge_index for receivers": (
        lambda: edges([0, 1, 1], np.zeros((2, 3), int)),
        ["from_edges: receivers", "(3,)", "edge_index[1]", "shape (2, 3)"],
    ),
    "an edge_index of lists": (
        lambda: edges([[0], [1]], [[0], [1]]),
        ["from_edges: senders", "(1,)", "edge_index[0]", "shape (2, 1)"],
    ),
    "num_nodes negative": (lambda: edges([], [], -1), ["from_edges: num_nodes", "got -1"]),
    "num_nodes float": (lambda: edges([], [], 2.0), ["num_nodes", "an integer", "got 2.0"]),
    "num_nodes bool": (lambda: edges([], [], True), ["num_nodes", "an integer", "got True"]),
    "num_nodes huge": (lambda: edges([], [], 2**31), ["num_nodes", "2^31", "got 2147483648"]),
    "num_senders negative": (
        lambda: edges([], [], 1, num_senders=-2),
        ["from_edges: num_senders", "[0, 2^31)", "got -2"],
    ),
    # sort_edges
    "sort too large": (
        lambda: sort_edges(np.array([0, 3]), 3),
        ["sort_edges: receivers[1]", "in [0, 3)", "got 3"],
    ),
    "sort negative": (
        lambda: sort_edges(np.array([0, -1]), 3, np.array([False, True])),
        ["sort_edges: receivers[1]", "got -1"],
    ),
    # from_scipy
    "not sparse": (lambda: CSRGraph.from_scipy(np.eye(2)), ["from_scipy: matrix", "ndarray"]),
    "one-dimensional": (
        lambda: CSRGraph.from_scipy(scipy.sparse.coo_array(np.ones(2))),
        ["from_scipy: matrix", "two-dimensional", "coo_array"],
    ),
    "complex": (
        lambda: CSRGraph.from_scipy(sparse((1j, 0, 0))),
        ["from_scipy: matrix", "floating dtype", "complex128"],
    ),
    "sparse nan": (
        lambda: CSRGraph.from_scipy(sparse((1.0, 0, 0), (NAN, 1, 0))),
        ["CSRGraph: weights[1]", "finite", "nan"],
    ),
    "sparse with too many columns": (
        lambda: CSRGraph.from_scipy(sparse((2.0, 0, 2**32), shape=(1, 2**33))),
        ["from_scipy: matrix.shape[1]", "[0, 2^31)", "got 8589934592"],
    ),
    # from_graphs_tuple
    "not a tuple of graphs": (
        lambda: CSRGraph.from_graphs_tuple(EDGES),
        ["from_graphs_tuple: graphs", "GraphsTuple", "CSRGraph"],
    ),
    "no senders": (
        lambda: CSRGraph.from_graphs_tuple(graphs_tuple(senders=None)),
        ["from_graphs_tuple: graphs.senders", "got None"],
    ),
    "sender outside the tuple": (
        lambda: CSRGraph.from_graphs_tuple(graphs_tuple(senders=np.array([0, 2]))),
        ["senders[1]", "in [0, 2)", "got 2"],
    ),
    "tuple with fewer weights": (
        lambda: CSRGraph.from_graphs_tuple(graphs_tuple(), np.ones(1)),
        ["weights", "(2,)", "(1,)"],
    ),
    # validate: structure
    "offsets start late": (
        lambda: graph(int32(1, 2, 3)).validate(),
        ["CSRGraph: indptr[0]", "0", "got 1"],
    ),
    "offsets fall": (
        lambda: graph(int32(0, 3, 1)).validate(),
        ["CSRGraph: indptr[2]", "at least 3", "got 1"],
    ),
    "offsets fall by more than int32 holds": (
        lambda: graph(int32(0, 2**31 - 1, -(2**31), -1, 3)).validate(),
        ["CSRGraph: indptr[2]", "at least 2147483647", "got -2147483648"],
    ),
    "offsets beyond the edges": (
        lambda: graph(int32(0, 1, 4)).validate(),
        ["CSRGraph: indptr[2]", "at most the number of edge slots, 3", "got 4"],
    ),
    "no offsets": (
        lambda: graph(int32(), num_cols=2).validate(),
        ["CSRGraph: graph.indptr", "at least one entry", "(0,)"],
    ),
    "offsets float": (
        lambda: graph(INDPTR.astype(jnp.float32)).validate(),
        ["CSRGraph: graph.indptr", "int32 or int64", "float32"],
    ),
    "offsets unsigned, whose fall shows no sign": (
        lambda: graph(np.array([0, 3, 1], jnp.uint32)).validate(),
        ["CSRGraph: graph.indptr", "int32 or int64", "uint32"],
    ),
    "sender too large in indices": (
        lambda: graph(indices=int32(0, 2, 1)).validate(),
        ["CSRGraph: indices[1]", "in [0, 2)", "got 2"],
    ),
    "sender negative in indices": (
        lambda: graph(indices=int32(0, 1, -4)).validate(),
        ["CSRGraph: indices[2]", "in [0, 2)", "got -4"],
    ),
    "indices float": (
        lambda: graph(indices=np.zeros(3, np.float32)).validate(),
        ["CSRGraph: graph.indices", "int32", "float32"],
    ),
    "indices narrow": (
        lambda: graph(indices=np.zeros(3, jnp.uint8)).validate(),
        ["CSRGraph: graph.indices", "int32", "uint8"],
    ),
    "indices of two axes": (
        lambda: graph(indices=np.zeros((3, 1), jnp.int32)).validate(),
        ["CSRGraph.validate: self", "arrays of one axis", "indices int32[3, 1]"],
    ),
    "num_cols negative": (
        lambda: graph(num_cols=-1).validate(),
        ["CSRGraph: graph.num_cols", "[0, 2^31)", "got -1"],
    ),
    "prepared with a bad sender": (
        lambda: graph(indices=int32(0, 1, 900)).prepared(),
        ["CSRGraph: indices[2]", "in [0, 2)", "got 900"],
    ),
    "transpose with falling offsets": (
        lambda: graph(int32(0, 3, 1)).transpose(),
        ["CSRGraph: indptr[2]", "at least 3", "got 1"],
    ),
    # validate: weights and scales
    "weights nan": (
        lambda: graph(weights=np.array([1.0, 2.0, NAN])).validate(),
        ["CSRGraph: weights[2]", "finite", "nan"],
    ),
    "bfloat16 weights nan": (
        lambda: graph(weights=np.array([1.0, NAN, 1.0], jnp.bfloat16)).validate(),
        ["CSRGraph: weights[1]", "finite", "nan"],
    ),
    "weights short": (
        lambda: graph(weights=ones(2)).validate(),
        ["CSRGraph: graph.weights", "(3,)", "(2,)"],
    ),
    "weights of integers": (
        lambda: graph(weights=int32(1, 1, 1)).validate(),
        ["CSRGraph: graph.weights", "floating", "int32"],
    ),
    "row_scale short": (
        lambda: graph(row_scale=ones(1)).validate(),
        ["CSRGraph: graph.row_scale", "(2,)", "(1,)"],
    ),
    "col_scale long": (
        lambda: graph(col_scale=ones(3)).validate(),
        ["CSRGraph: graph.col_scale", "(2,)", "(3,)"],
    ),
    "row_scale infinite": (
        lambda: graph(row_scale=np.array([1.0, INF])).validate(),
        ["CSRGraph: row_scale[1]", "finite", "inf"],
    ),
    "col_scale of integers": (
        lambda: graph(col_scale=int32(1, 1)).validate(),
        ["CSRGraph: graph.col_scale", "floating", "int32"],
    ),
    # derived graphs
    "other weights short": (
        lambda: EDGES.with_weights(ones(2)),
        ["CSRGraph.with_weights: weights", "(3,)", "(2,)"],
    ),
    "other weights of integers": (
        lambda: EDGES.with_weights([1, 2, 3]),
        ["CSRGraph.with_weights: weights", "floating", "int64"],
    ),
    "unknown normalisation": (
        lambda: EDGES.normalized("row"),
        ["CSRGraph.normalized: kind", "'mean', 'sym', 'gcn' or None", "'row'"],
    ),
    "normalised twice": (
        lambda: EDGES.normalized("mean").normalized("sym"),
        ["CSRGraph.normalized: self", "not normalised yet"],
    ),
    "self loops of a bipartite graph": (
        lambda: graph(num_cols=3).with_self_loops(),
        ["CSRGraph.with_self_loops: self", "square", "(2, 3)"],
    ),
    "self loops after normalisation": (
        lambda: EDGES.normalized("mean").with_self_loops(),
        ["CSRGraph.with_self_loops: self", "not normalised yet"],
    ),
    "self loops of nan": (
        lambda: random_edges(0, 6, 6, 5).graph().with_self_loops(NAN),
        ["CSRGraph: weights[", "finite", "nan"],
    ),
    "empty graph in an op": (
        lambda: ops.spmm(edges([], [], 0), ones((0, 1))),
        ["spmm: graph", "at least one node", "(0, 0)"],
    ),
    # CBSR
    "column too large": (
        lambda: cbsr([(0, 2), (1, 4)]).validate(),
        ["CBSR: indices[1, 1]", "below dim = 4", "got 4"],
    ),
    "columns not ascending": (
        lambda: cbsr([(0, 2), (3, 1)]).validate(),
        ["CBSR: indices[1]", "strictly ascending", "[3, 1]"],
    ),
    "column repeated": (
        lambda: cbsr([(0, 0), (3, 1)]).validate(),
        ["CBSR: indices[0]", "strictly ascending", "[0, 0]"],
    ),
    "columns signed": (
        lambda: cbsr([(-1, 2), (0, 1)], dtype=jnp.int32).validate(),
        ["CBSR: indices", "uint8 for dim = 4", "int32"],
    ),
    "columns too narrow": (
        lambda: cbsr(dim=257).validate(),
        ["CBSR: indices", "uint16 for dim = 257", "uint8"],
    ),
    "fewer values than columns": (
        lambda: cbsr(values=ones((2, 1))).validate(),
        ["CBSR: indices", "(2, 1)", "got (2, 2)"],
    ),
    "no rows axis": (lambda: cbsr((0, 2)).validate(), ["CBSR: indices", "[..., rows, k]", "(2,)"]),
    "values of integers": (
        lambda: cbsr(values=ones((2, 2), jnp.int32)).validate(),
        ["CBSR: values", "floating", "int32"],
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_named(name):
    call, fragments = BAD_INPUT[name]
    with pytest.raises(ValueError) as error:
        call()
    check_message(str(error.value), fragments)


IDS = jax.ShapeDtypeStruct((2,), jnp.int32)
FLOATS = jax.ShapeDtypeStruct((2,), jnp.float32)
FEATURES = jax.ShapeDtypeStruct((6, 1), jnp.float32)
HUGE = jax.ShapeDtypeStruct((2**31,), jnp.int32)


def from_traced_edges(senders, receivers, **kwargs):
    return CSRGraph.from_edges(senders, receivers, 2, **kwargs)


# name: (function, what it is traced on, what the message must say)
BAD_AT_TRACE_TIME = {
    "senders float": (from_traced_edges, (FLOATS, IDS), ["senders", "integer", "float32"]),
    "receivers float": (from_traced_edges, (IDS, FLOATS), ["receivers", "integer", "float32"]),
    "lengths": (
        lambda ids: from_traced_edges(ids, ids[:1]),
        (IDS,),
        ["from_edges: senders", "(1,)", "(2,)"],
    ),
    "weights of integers": (
        lambda ids: from_traced_edges(ids, ids, weights=ids),
        (IDS,),
        ["from_edges: weights", "floating", "int32"],
    ),
    "mask of integers": (
        lambda ids: from_traced_edges(ids, ids, edge_mask=ids),
        (IDS,),
        ["from_edges: edge_mask", "bool", "int32"],
    ),
    "constant receivers out of range": (
        lambda ids: from_traced_edges(ids, [0, 2]),
        (IDS,),
        ["from_edges: receivers[1]", "in [0, 2)", "got 2"],
    ),
    "constant edges out of range": (
        lambda weights: from_traced_edges([0, 3], [0, 1], weights=weights),
        (FLOATS,),
        ["from_edges: senders[1]", "in [0, 2)", "got 3"],
    ),
    "too many edges for int32 offsets": (
        from_traced_edges,
        (HUGE, HUGE),
        ["CSRGraph: jax_enable_x64", "True for a graph of more than 2^31 - 1 edges", "False"],
    ),
    "tuple without node features": (
        lambda ids: CSRGraph.from_graphs_tuple(
            graphs_tuple(nodes=None, senders=ids, receivers=ids, n_node=ids)
        ),
        (IDS,),
        ["from_graphs_tuple: graphs.nodes", "under jit", "None"],
    ),
    "other weights": (
        lambda weights: EDGES.with_weights(weights),
        (FLOATS,),
        ["with_weights: weights", "(3,)", "(2,)"],
    ),
    "validate of a tracer": (
        lambda indices: CSRGraph(INDPTR, indices).validate(),
        (INDICES,),
        ["CSRGraph.validate: self", "concrete; call it outside jit", "a tracer"],
    ),
    "validate of traced rows": (
        lambda values: cbsr(values=values).validate(),
        (jax.ShapeDtypeStruct((2, 2), jnp.float32),),
        ["CBSR.validate: self", "concrete", "a tracer"],
    ),
    "graph of wrong offsets in an op": (
        lambda indptr: ops.spmm(CSRGraph(indptr, INDICES), ones((1, 1))),
        (FLOATS,),
        ["spmm: graph.indptr", "int32 or int64", "float32"],
    ),
    "graph of wrong weights in an op": (
        lambda weights: ops.spmm(graph(weights=weights), ones((2, 1))),
        (FLOATS,),
        ["spmm: graph.weights", "(3,)", "(2,)"],
    ),
    "graph with the plan of another in an op": (
        lambda g, x: ops.spmm(dataclasses.replace(g, indices=g.indices[1:], num_cols=9), x),
        (PLANNED.with_weights(None), jax.ShapeDtypeStruct((9, 1), jnp.float32)),
        ["spmm: graph.plan.transposed_indices", "(599,)", "(600,)"],
    ),
}


@pytest.mark.parametrize("name", BAD_AT_TRACE_TIME)
def test_bad_shapes_and_dtypes_are_named_at_trace_time(name):
    function, arguments, fragments = BAD_AT_TRACE_TIME[name]
    with pytest.raises(ValueError) as error:
        jax.jit(function).trace(*arguments)
    check_message(str(error.value), fragments)


def test_validate_returns_the_graph_itself():
    assert PLANNED.validate() is PLANNED
    assert EDGES.validate() is EDGES
    rows = cbsr()
    assert rows.validate() is rows


def test_what_lies_in_padding_slots_is_not_validated():
    padding = graph(
        int32(0, 1, 2),
        int32(1, 0, 99),
        weights=np.array([1.0, 2.0, NAN]),
    ).validate()
    assert_same_tree(padding.prepared().validate().transpose().indices[:2], int32(1, 0))
    masked = edges([0, -5], [1, 77], weights=[1.0, NAN], edge_mask=[True, False])
    assert masked.validate().degrees().tolist() == [0, 1]


def test_the_values_of_a_traced_graph_are_found_by_validate_afterwards():
    bad = jax.jit(lambda indices: CSRGraph(int32(0, 1, 2), indices))(int32(0, 2))
    with pytest.raises(ValueError, match=r"CSRGraph: indices\[1\] must be in \[0, 2\), got 2"):
        bad.validate()


def test_normalised_graphs_with_self_loops_are_sound():
    base = random_edges(1, 6, 6, 5).graph(weighted=False)
    normal = base.with_self_loops().normalized("sym").validate()
    normal.transpose().validate().transpose().validate()
