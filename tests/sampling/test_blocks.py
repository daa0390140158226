"""Layers and ops take sampled blocks as they are, and compile once for all batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn, ops, sampling
from jaxgnn.models import MaxKGNN
from jaxgnn.testing import assert_close, random_array

NODES, EDGES, WIDTH = 60, 300, 8
rng = np.random.default_rng(0)
# Repeated edges, and the last five nodes are isolated.
GRAPH = CSRGraph.from_edges(*rng.integers(0, NODES - 5, (2, EDGES)), NODES)
WEIGHTED = GRAPH.with_weights(rng.random(EDGES, np.float32))
X = np.asarray(random_array((NODES, WIDTH), "float32", seed=1))
SEEDS = np.array([58, 3, 40, 7, 12, 1, 0])
CAPACITY = sampling.Capacity((4, NODES, NODES), (EDGES, EDGES))


def _loader(graph, fanouts=(-1, -1), x=X, **options):
    options = {"shuffle": False, "capacity": CAPACITY, "features": x} | options
    return sampling.NeighborLoader(graph, SEEDS, fanouts, 4, **options)


def _rows_first(layer):
    """A layer that gets the features of both ends of a block."""
    return lambda block, h: layer(block, (h[: block.num_rows], h))


def _of_all_layers(layer, graphs, h):
    for graph in graphs:
        h = layer(graph, h)
    return h


LAYERS = {
    "sage": (lambda r: nn.SAGEConv(WIDTH, WIDTH, activation="maxk", k=3, rngs=r), GRAPH),
    "sage of weights": (lambda r: nn.SAGEConv(WIDTH, WIDTH, rngs=r), WEIGHTED),
    "sage of maxima": (lambda r: nn.SAGEConv(WIDTH, WIDTH, reduce="max", rngs=r), GRAPH),
    "gin": (lambda r: nn.GINConv(WIDTH, WIDTH, rngs=r), WEIGHTED),
    "gat": (lambda r: nn.GATConv(WIDTH, WIDTH, rngs=r), GRAPH),
    "transformer": (lambda r: nn.TransformerConv(WIDTH, WIDTH, rngs=r), GRAPH),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_on_blocks_of_all_neighbours_is_the_layer_on_the_graph(name):
    make, graph = LAYERS[name]
    layer = make(nnx.Rngs(0))
    _check_same(graph, _rows_first(layer), layer)


def test_gcn_takes_blocks_of_a_normalised_graph():
    layer = nn.GCNConv(WIDTH, WIDTH, add_self_loops=False, rngs=nnx.Rngs(0))
    for graph in (GRAPH.normalized("gcn"), WEIGHTED.normalized("gcn")):
        _check_same(graph, layer, layer)


def test_ops_take_blocks():
    _check_same(WEIGHTED, ops.spmm, ops.spmm)

    def sums_of_edges(graph, h):
        return ops.aggregate(graph, h[graph.indices], "sum")

    _check_same(GRAPH, sums_of_edges, sums_of_edges)


def _check_same(graph, on_block, on_graph):
    step = jax.jit(lambda blocks, x: _of_all_layers(on_block, blocks, x))
    expected = np.asarray(_of_all_layers(on_graph, [graph] * 2, jnp.asarray(X)))
    loader = _loader(graph)
    for at, batch in enumerate(loader):
        seeds = SEEDS[4 * at : 4 * at + 4]
        out = step(batch.blocks, batch.x)[batch.seed_ids][: len(seeds)]
        assert_close(out, expected[seeds], reduction_length=EDGES)
    assert at == 1 and step._cache_size() == 1


@pytest.mark.parametrize("kind", ["sage", "gcn", "gin"])
def test_maxkgnn_takes_the_blocks_of_a_batch(kind):
    model = MaxKGNN(WIDTH, 16, 3, kind=kind, num_layers=2, k=4, dropout=0.0, rngs=nnx.Rngs(0))
    graph = GRAPH.normalized("sym") if kind == "gcn" else GRAPH
    batch = _loader(graph).batch(0, 0)

    def loss(model, graphs, x, rows):
        return jnp.sum(jnp.square(model(graphs, x)[rows]))

    grad = nnx.value_and_grad(loss)
    value, of_blocks = grad(model, batch.blocks, batch.x, batch.seed_ids)
    expected, of_graph = grad(model, graph, jnp.asarray(X), SEEDS[:4])
    assert_close(value, expected, reduction_length=EDGES)
    for ours, theirs in zip(*map(jax.tree.leaves, (of_blocks, of_graph)), strict=True):
        assert_close(ours, theirs, reduction_length=EDGES * 16)


def test_maxkgnn_names_a_wrong_number_of_blocks():
    model = MaxKGNN(WIDTH, 16, 3, num_layers=3, k=4, rngs=nnx.Rngs(0))
    batch = _loader(GRAPH).batch(0, 0)
    with pytest.raises(ValueError, match="3 blocks, one for each layer, got 2 blocks"):
        model(batch.blocks, batch.x)
    scanned = MaxKGNN(WIDTH, 16, 3, num_layers=2, k=4, scan_layers=True, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="MaxKGNN: graph must be one graph, got 2 blocks"):
        scanned(batch.blocks, batch.x)


def test_nan_in_padding_and_in_columns_without_edges_changes_nothing():
    loader = _loader(GRAPH, (2, 2))
    layer = nn.SAGEConv(WIDTH, WIDTH, rngs=nnx.Rngs(0))
    batch = loader.batch(0, 1)
    assert not batch.node_mask.all()
    spoiled = jnp.where(batch.node_mask[:, None], batch.x, jnp.nan)
    with jax.debug_nans(False):
        clean, dirty = (
            _of_all_layers(_rows_first(layer), batch.blocks, x)[batch.seed_ids]
            for x in (batch.x, spoiled)
        )
    np.testing.assert_array_equal(clean[batch.seed_mask], dirty[batch.seed_mask])


@pytest.mark.parametrize("graph", [GRAPH.normalized("sym"), WEIGHTED.normalized("sym")])
def test_sums_of_a_normalised_graph_are_unbiased(graph):
    loader = _loader(graph, (2,), capacity=sampling.Capacity((4, NODES), (8,)))
    expected = graph.to_scipy().astype(np.float64) @ X.astype(np.float64)
    drawn = []
    for epoch in range(400):
        batch = loader.batch(epoch, 0)
        block, x = batch.blocks[0], np.asarray(batch.x, np.float64)
        drawn.append((_dense(block) @ x)[np.asarray(batch.seed_ids)])
    error = np.std(drawn, axis=0) / np.sqrt(len(drawn))
    assert (np.abs(np.mean(drawn, axis=0) - expected[SEEDS[:4]]) <= 5 * error + 1e-6).all()


def _dense(block):
    indptr = np.asarray(block.indptr)
    rows = np.repeat(np.arange(block.num_rows), np.diff(indptr))
    columns = np.asarray(block.indices)[: indptr[-1]]
    values = np.ones(columns.size)
    if block.weights is not None:
        values *= np.asarray(block.weights)[: columns.size]
    if block.row_scale is not None:
        values *= np.asarray(block.row_scale)[rows]
    if block.col_scale is not None:
        values *= np.asarray(block.col_scale)[columns]
    dense = np.zeros(block.shape)
    np.add.at(dense, (rows, columns), values)
    return dense


def test_blocks_pass_the_validation_of_graphs():
    for graph in (WEIGHTED, GRAPH.normalized("sym")):
        for batch in _loader(graph, (3, 2)):
            for block in batch.blocks:
                block.validate()
