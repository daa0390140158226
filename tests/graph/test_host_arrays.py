"""Arrays of NumPy that JAX does not take as they are: other byte orders, integers of 64 bits."""

from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import CBSR, CSRGraph, Incidence, explain, graph, models, nn, ops
from jaxgnn._arrays.arrays import as_jax, put_copy, to_device
from jaxgnn.graph import GraphBatch, GraphSample

SENDERS, RECEIVERS = np.array([0, 1, 2, 2]), np.array([1, 2, 0, 1])
ONES = np.ones(4, np.float32)
X = np.arange(6, dtype=np.float32).reshape(3, 2)
GRAPH = CSRGraph.from_edges(SENDERS, RECEIVERS, 3)


def _batch(own):
    sample = GraphSample(own(SENDERS), own(RECEIVERS), 3, nodes=own(X), edges=own(ONES))
    batch = GraphBatch.from_graphs([sample, sample])
    return batch, nn.pool(own(np.concatenate([X, X])), batch, "mean")


# Each makes something of arrays, all of which ``own`` puts into some byte order.
USES = {
    "from_edges": lambda own: CSRGraph.from_edges(
        own(SENDERS), own(RECEIVERS), 3, own(ONES), edge_data=[own(SENDERS), own(ONES)]
    ),
    "from_edge_index": lambda own: CSRGraph.from_edge_index(
        own(np.stack([SENDERS, RECEIVERS])), 3, edge_mask=own(SENDERS) > 0
    ),
    "CSRGraph": lambda own: CSRGraph(
        own(np.array([0, 1, 2, 4], np.int32)), own(np.array([0, 1, 2, 0], np.int32))
    ).validate(),
    "with_weights": lambda own: GRAPH.with_weights(own(ONES)),
    "Incidence": lambda own: Incidence(
        own(np.array([0, 1], np.int32)), own(np.array([0, 1], np.int32)), 3, 2
    ),
    "CBSR": lambda own: CBSR(own(X[:, :1]), own(np.zeros((3, 1), np.uint16)), dim=300),
    "GraphBatch": _batch,
    "neighbours": lambda own: [
        graph.knn_graph(own(X), 1, batch=own(np.zeros(3, int))),
        graph.knn_graph_on_device(own(X), 1, batch=own(np.zeros(3, int))),
    ],
    "subgraph": lambda own: graph.subgraph(GRAPH, own(np.array([0, 1]))),
    "segments": lambda own: jaxgnn.segment_max(own(X), own(np.array([0, 1, 0])), 2),
    "spmm": lambda own: ops.spmm(GRAPH, own(X)),
    "maxk": lambda own: ops.maxk(own(X), 1),
    "layers": lambda own: [
        nn.GCNConv(2, 2, rngs=nnx.Rngs(0))(GRAPH, own(X)),
        nn.GATConv(2, 2, edge_dim=1, rngs=nnx.Rngs(0))(GRAPH, own(X), own(ONES)),
    ],
    "norms": lambda own: [
        nn.LayerNorm(2)(own(X)),
        nn.PairNorm()(own(X)),
        nn.BatchNorm(2, rngs=nnx.Rngs(0))(own(X)),
    ],
}


def _big_endian(array):
    return array.astype(array.dtype.newbyteorder(">"))


@pytest.mark.parametrize("name", USES)
def test_arrays_of_the_other_byte_order_give_the_same(name):
    expected, got = (jax.tree.leaves(USES[name](own)) for own in (np.asarray, _big_endian))
    for one, other in zip(expected, got, strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


def test_an_array_of_the_other_byte_order_is_copied_once_and_stays_the_callers():
    given = _big_endian(ONES)
    placed = put_copy(given)
    given[0] = 5
    np.testing.assert_array_equal(placed, ONES)
    assert not given.dtype.isnative and given.flags.writeable


WRAPPING = np.array([2**32 + 1, 0, 0])  # 1, if the upper half is lost
GRAPHS_OF_WRAPPING = {
    field: GraphSample(SENDERS, RECEIVERS, 3, **{field: {"a": values}})
    for field, values in (
        ("nodes", WRAPPING),
        ("edges", np.append(WRAPPING, 0)),
        ("globals", WRAPPING),
    )
}
WIDE = {
    **{
        rf"GraphBatch.from_graphs: graphs\[1\].{field}\['a'\]": partial(
            GraphBatch.from_graphs,
            [GraphSample(SENDERS, RECEIVERS, 3, **{field: {"a": np.zeros(size, int)}}), sample],
        )
        for (field, sample), size in zip(GRAPHS_OF_WRAPPING.items(), (3, 4, 3), strict=True)
    },
    "Incidence: node_ids": lambda: Incidence(WRAPPING, np.zeros(3, int), 3, 1),
    "CSRGraph: indices": lambda: CSRGraph(np.array([0, 1, 2, 3]), WRAPPING),
    "CSRGraph.to_graphs_tuple: nodes": lambda: GRAPH.to_graphs_tuple(WRAPPING, padded=True),
    "x": lambda: as_jax("x", "x", WRAPPING[0]).block_until_ready(),
    r"a\['b'\]": lambda: to_device("x", {"a": {"b": WRAPPING}}),
    "AGNNConv: x": lambda: nn.AGNNConv()(GRAPH, WRAPPING[:, None]),
    "edge_scores: x": lambda: explain.edge_scores(
        lambda graph, x: ops.spmm(graph, x.astype(np.float32)), GRAPH, WRAPPING[:, None], target=0
    ),
    "segment_sum: the data": lambda: jaxgnn.segment_sum(WRAPPING, np.array([0, 1, 0]), 2),
    "knn_graph_on_device: batch": lambda: graph.knn_graph_on_device(X, 1, batch=WRAPPING),
    "radius_graph_on_device: batch": lambda: graph.radius_graph_on_device(
        X, 9.0, max_neighbours=2, batch=WRAPPING
    ),
    "mean_over_nodes: values": lambda: graph.mean_over_nodes(GRAPH, WRAPPING),
    "GATConv: x": lambda: nn.GATConv(1, 2, rngs=nnx.Rngs(0))(GRAPH, WRAPPING[:, None]),
    "GCNConv: x": lambda: nn.GCNConv(1, 2, rngs=nnx.Rngs(0))(GRAPH, WRAPPING[:, None]),
    "CausalLM: tokens": lambda: models.CausalLM(
        vocabulary=4, features=2, num_layers=1, num_heads=1, rngs=nnx.Rngs(0)
    )(WRAPPING[None]),
}


@pytest.mark.parametrize("name", WIDE)
def test_integers_that_jax_would_cut_are_refused(name):
    with pytest.raises(
        ValueError, match=f"{name} must be in the range of int32, .* got 4294967297"
    ):
        WIDE[name]()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array(["a"]), "x: y must be of numbers, or bool, got dtype <U1"),
        (np.ones(1, np.longdouble), "x: y must be of numbers, or bool, got dtype float128"),
        (np.array([None]), "x: y must be of numbers, or bool, got dtype object"),
        ([2**40], "x: y must be in the range of int32, .* got 1099511627776"),
        (2**40, "x: y must be an integer that JAX can hold, got 1099511627776"),
        (np.array([2**32], np.uint64), "x: y must be in the range of uint32, .* got 4294967296"),
        ([[1], [1, 2]], "x: y must be an array, or lists of equal lengths"),
    ],
)
def test_what_jax_can_not_hold_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        as_jax("x", "y", values)


def test_integers_in_range_and_those_under_x64_are_kept():
    values = np.array([2**31 - 1, -(2**31)])
    assert as_jax("x", "y", values).tolist() == values.tolist()
    assert as_jax("x", "y", np.array([2**32 - 1], np.uint64)).tolist() == [2**32 - 1]
    assert as_jax("x", "y", [1, 2.5]).tolist() == [1, 2.5]
    with jax.enable_x64(True):
        assert as_jax("x", "y", WRAPPING).tolist() == WRAPPING.tolist()
    with pytest.raises(ValueError, match="x: y must be in the range of int8, got 200"):
        as_jax("x", "y", np.array([200]), np.int8)


def test_segment_ids_of_64_bits_are_beyond_all_segments():
    ids = np.array([2**32, 1, 2**40])
    np.testing.assert_array_equal(jaxgnn.segment_sum(X, ids, 2), [[0, 0], [2, 3]])
    with pytest.raises(ValueError, match=r"segment_sum: num_segments must be below 2\^31"):
        jaxgnn.segment_sum(X, ids)
