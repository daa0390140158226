"""Batches along relations have the edges of the graph, in blocks that layers take."""

import itertools
import warnings

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.graph import HeteroGraph
from jaxgnn.sampling import HeteroCapacity, HeteroNeighborLoader, NeighborLoader
from jaxgnn.testing import assert_close

rng = np.random.default_rng(3)
NODES = {"author": 20, "paper": 40, "venue": 5}
WRITES, CITES, BACK = edge_types = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "rev_writes", "author"),
)


def _graph(sender, receiver, edges):
    # The last node of a type is isolated.
    ends = (rng.integers(0, NODES[t] - 1, edges) for t in (sender, receiver))
    return CSRGraph.from_edges(*ends, NODES[receiver], num_senders=NODES[sender])


# No relation has a venue.
GRAPH = HeteroGraph(
    {WRITES: _graph("author", "paper", 90), CITES: _graph("paper", "paper", 120)}, num_nodes=NODES
).with_reverse()
X = {t: rng.normal(size=(n, 4)).astype(np.float32) for t, n in NODES.items()}
Y = np.arange(NODES["paper"])
SEEDS = [39, 3, 3, *range(10, 30)]


def _loader(graph=GRAPH, seeds=("paper", SEEDS), fanouts=(3, 2), batch_size=8, **options):
    options = {"features": X, "labels": Y} | options
    return HeteroNeighborLoader(graph, seeds, fanouts, batch_size, **options)


def _assert_equal(one, other):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_edges_features_and_labels_are_those_of_the_graph():
    fanouts = {WRITES: (3, 2), CITES: (0, -1), BACK: (2, 1)}
    for batch in _loader(fanouts=fanouts, seed=5):
        n_id = {t: np.asarray(ids) for t, ids in batch.n_id.items()}
        for node_type, ids in n_id.items():
            real = ids >= 0
            assert real.sum() == batch.num_nodes[node_type][0] == np.unique(ids[real]).size
            np.testing.assert_array_equal(
                batch.x[node_type], np.where(real[:, None], X[node_type][ids], 0)
            )
        seeds = n_id["paper"][np.asarray(batch.seed_ids)]
        np.testing.assert_array_equal(np.asarray(batch.y)[batch.seed_mask], seeds[batch.seed_mask])
        for layer, hop in ((0, 1), (1, 0)):
            for edge_type, graph in batch.blocks[layer].items():
                sender, _, receiver = edge_type
                whole = GRAPH[edge_type]
                indptr = np.asarray(graph.indptr)
                rows = np.repeat(np.arange(graph.num_rows), np.diff(indptr))
                e_id = np.asarray(batch.e_id[edge_type][layer])
                assert (e_id[indptr[-1] :] == -1).all()
                e_id = e_id[: indptr[-1]]
                assert len(e_id) == batch.num_edges[edge_type][layer]
                senders = n_id[sender][np.asarray(graph.indices)[: len(e_id)]]
                np.testing.assert_array_equal(senders, np.asarray(whole.indices)[e_id])
                of_whole = np.asarray(whole.indptr)
                receivers = n_id[receiver][rows]
                assert (of_whole[receivers] <= e_id).all() and (
                    e_id < of_whole[receivers + 1]
                ).all()
                drawing = n_id[receiver][: batch.num_nodes[receiver][layer + 1]]
                degrees, fanout = np.diff(of_whole)[drawing], fanouts[edge_type][hop]
                expected = degrees if fanout < 0 else np.minimum(degrees, fanout)
                np.testing.assert_array_equal(np.bincount(rows, minlength=len(drawing)), expected)


def test_nodes_begin_with_the_seeds_and_ascend_within_a_hop():
    batch = _loader(shuffle=False).batch(0, 0)
    assert batch.n_id["paper"][:7].tolist() == [39, 3, 10, 11, 12, 13, 14]
    assert batch.seed_ids.tolist() == [0, 1, 1, 2, 3, 4, 5, 6]
    for node_type, ids in batch.n_id.items():
        begins = np.asarray(batch.num_nodes[node_type])[::-1]
        for begin, end in itertools.pairwise(begins):
            assert (np.diff(ids[begin:end]) > 0).all()
    assert batch.num_nodes["venue"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "options",
    [{}, {"method": "labor", "batch_dependency": 4}, {"replace": True}, {"weights": True}],
    ids=str,
)
def test_one_type_and_relation_are_drawn_as_one_graph(options):
    graph = GRAPH[CITES].with_weights(rng.random(GRAPH[CITES].num_edges).astype(np.float32))
    weights = options.pop("weights", None) and graph.weights
    given = {"shuffle": True, "seed": 2**40 + 1} | options
    one = NeighborLoader(graph, SEEDS, (3, 2), 8, X["paper"], Y, weights=weights, **given)
    typed = HeteroGraph({CITES: graph})
    given["weights"] = None if weights is None else {CITES: weights}
    other = _loader(typed, features={"paper": X["paper"]}, **given)
    for ours, theirs in zip(other.epoch(3), one.epoch(3), strict=True):
        _assert_equal(
            (ours.n_id["paper"], ours.e_id[CITES], ours.x["paper"], ours.y, ours.seed_ids),
            (theirs.n_id, theirs.e_id, theirs.x, theirs.y, theirs.seed_ids),
        )
        for block, expected in zip(ours.blocks, theirs.blocks, strict=True):
            _assert_equal(
                (block[CITES].indices, block[CITES].weights), (expected.indices, expected.weights)
            )
            np.testing.assert_array_equal(
                block[CITES].indptr[: expected.num_rows + 1], expected.indptr
            )


def _hetero_conv(width, rngs):
    return nn.HeteroConv(
        {e: nn.SAGEConv(width if e == CITES else (width, width), 4, rngs=rngs) for e in edge_types}
    )


def _hgt(width, rngs):
    return nn.HGTConv(width, 4, GRAPH.metadata, heads=2, rngs=rngs)


@pytest.mark.parametrize("make", [_hetero_conv, _hgt])
def test_layers_take_the_blocks_and_compile_once(make):
    """With all neighbours, the results of the seeds are those on the whole graph."""
    rngs = nnx.Rngs(0)
    layers = nnx.List([make(4, rngs), make(4, rngs)])
    compiled = []

    @nnx.jit
    def apply(layers, blocks, x):
        compiled.append(None)
        for layer, block in zip(layers, blocks, strict=True):
            cut = {t: x[t][:count] for t, count in block.num_nodes.items()}
            x = x | layer(block, cut)
        return x["paper"]

    expected = np.asarray(apply(layers, (GRAPH, GRAPH), X))
    compiled.clear()
    for batch in _loader(fanouts=(-1, -1), joined=make is _hgt):
        y = np.asarray(apply(layers, batch.blocks, batch.x)[batch.seed_ids])
        of_seeds = expected[batch.y[batch.seed_mask]]
        assert_close(y[batch.seed_mask], of_seeds, reduction_length=40, roundings=8)
    assert len(compiled) == 1


def test_relations_draw_independently():
    """Two relations with the same edges draw other ones."""
    graph = HeteroGraph({("paper", name, "paper"): GRAPH[CITES] for name in ("cites", "likes")})
    batch = _loader(graph, fanouts=(1,), features=None, labels=None, batch_size=23).batch(0, 0)
    one, other = (np.asarray(ids[0]) for ids in batch.e_id.values())
    assert (one != other).any()


def test_fanout_zero_of_all_relations_leaves_the_seeds_alone():
    batch = _loader(fanouts=(0, 0)).batch(0, 0)
    assert not any(counts.any() for counts in batch.num_edges.values())
    assert batch.num_nodes["author"].tolist() == [0, 0, 0]


def test_types_without_features_and_edge_ids_may_be_left_out():
    batch = _loader(features={"paper": X["paper"]}, labels=None, edge_ids=False).batch(0, 0)
    assert list(batch.x) == ["paper"] and batch.y is None and batch.e_id is None
    assert set(batch.node_mask) == set(NODES)
    assert int(batch.edge_mask(0)[CITES].sum()) == batch.num_edges[CITES][0]


def test_a_batch_that_does_not_fit_grows_the_capacity_once_and_says_so():
    nodes = {"paper": (8, 12, 14), "author": (0, 9, 10), "venue": (0, 1, 1)}
    small = HeteroCapacity(nodes, {CITES: (9, 9), WRITES: (9, 9), BACK: (0, 9)})
    loader = _loader(capacity=small)
    with pytest.warns(UserWarning, match=r"epoch 0 and step 0 .* more than .* compiles again"):
        first = loader.batch(0, 0)
    assert loader.capacity.holds(small.like(loader.capacity)) and not small.holds(loader.capacity)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shapes = {str([block.num_nodes for block in b.blocks]) for b in [first, *loader.epoch(0)]}
    assert len(shapes) == 1


def test_processes_share_the_seeds_and_agree_on_shapes():
    parts = [_loader(seeds=("paper", range(21)), processes=(index, 2)) for index in (0, 1)]
    assert parts[0].capacity == parts[1].capacity
    y = [np.asarray(b.y)[b.seed_mask] for part in parts for b in part.epoch(0)]
    assert sorted(np.concatenate(y)) == list(range(21))


WRONG = ("paper", "reads", "author")
BAD = [
    ({"graph": GRAPH[CITES]}, "graph must be a HeteroGraph, got CSRGraph"),
    ({"graph": GRAPH.map(lambda g: g.normalized("mean"))}, r"graph\[.*writes.*must be not normal"),
    ({"seeds": [1, 2]}, "seeds must be a pair of a node type, one of"),
    ({"seeds": ("editor", [1])}, "seeds must be a pair of a node type, one of .*editor"),
    ({"seeds": ("author", [20])}, "seeds must be node ids from 0 to 19, got 20 at 0"),
    ({"fanouts": (3, -2)}, "fanouts must be positive .* or 0 for none, got -2"),
    ({"fanouts": {CITES: (1,), WRITES: (1,)}}, "fanouts must be given for all relations.*rev_w"),
    ({"fanouts": {WRONG: (1,)}}, "fanouts must be by relations of the graph.*reads"),
    ({"fanouts": {CITES: (1,), WRITES: (1,), BACK: (1, 2)}}, "fanouts must be equally many"),
    ({"features": X["paper"]}, "features must be a dictionary of the features of types"),
    ({"features": {"editor": X["paper"]}}, "features must be of the types.*editor"),
    ({"features": {"author": X["paper"]}}, "features must be of 20 rows.* got 40 rows"),
    ({"labels": Y[1:]}, r"labels must be of shape \(40, ...\)"),
    ({"weights": {CITES: np.ones(3)}}, r"weights must be of shape \(120,\)"),
    ({"weights": {WRONG: np.ones(3)}}, "weights must be by relations of the graph"),
    ({"weights": np.ones(3)}, "weights must be a dictionary by relations, got ndarray"),
    ({"edge_times": {CITES: range(120)}, "seed_times": range(23)}, "edge_times must be given for"),
    (
        {"edge_times": {WRITES: None, CITES: range(120, 0, -1), BACK: None}, "seed_times": SEEDS},
        r"edge_times\[\('paper', 'cites', 'paper'\)\] must be ascending within each row.* of edges",
    ),
    ({"batch_size": 0}, "batch_size must be an int of at least 1"),
    ({"capacity": HeteroCapacity({}, {})}, "capacity must be with the types"),
]


@pytest.mark.parametrize(("changed", "message"), BAD, ids=[next(iter(b[0])) for b in BAD])
def test_bad_input_is_named(changed, message):
    with pytest.raises(ValueError, match="sampling.HeteroNeighborLoader: " + message):
        _loader(**changed)
