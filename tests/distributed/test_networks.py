"""Networks on graphs that are spread over devices give the losses and gradients of one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse
from flax import nnx

import jaxgnn
from jaxgnn import CSRGraph, distributed, nn, ops
from jaxgnn.models import GCNII, GraphTransformer, MaxKGNN
from jaxgnn.nn.shared.dropout import dropout
from jaxgnn.ops._aggregate.edge_ends import at_ends
from tests.distributed._graphs import NODES, WIDTH, features, graph, mesh, sharded_graph

DROPOUT = {"dropout": 0.4}


def _maxk(kind, **options):
    options = {"k": 4, "num_layers": 2, **DROPOUT, **options}
    return MaxKGNN(WIDTH, 16, 3, kind=kind, **options, rngs=nnx.Rngs(0))


class _Messages(nnx.Module):
    """Two steps of messages, whose scan is compiled apart."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        update = nn.GRUUpdate(WIDTH, 4, rngs=rngs)
        self.steps = nn.MessagePassing(nn.EdgeMLP(WIDTH, [6, 4], rngs=rngs), update, num_steps=2)

    def __call__(self, graph, x, rngs):
        return self.steps(graph, x)


class _Attention(nnx.Module):
    """A layer of each kind of attention, which leaves out edges, and nodes before."""

    def __init__(self, implementation=None):
        options = {"heads": 2, "dropout": 0.4, "rngs": nnx.Rngs(0)}
        options |= {"implementation": implementation}
        alone = {"add_self_loops": False, **options}
        self.nodes = nn.DropNode(0.2)
        self.first, self.second = nn.GATConv(WIDTH, 3, **alone), nn.GATv2Conv(6, 3, **alone)
        self.third = nn.TransformerConv(6, 3, **options)

    def __call__(self, graph, x, rngs):
        x = self.nodes(x, graph, rngs=rngs)
        x = nnx.relu(self.first(graph, x, rngs=rngs))
        x = nnx.relu(self.second(graph, x, rngs=rngs))
        y, (_, weights) = self.third(graph, x, rngs=rngs, return_attention_weights=True)
        return y + ops.aggregate(graph, weights, "sum")[:, :1]


class _EdgeDropout(nnx.Module):
    """Messages and a propagation that leave out edges, with features of a batch."""

    def __init__(self):
        self.messages = nn.EdgeMLP(WIDTH, [6, WIDTH], edge_dropout=0.4, rngs=nnx.Rngs(0))
        self.propagation = nn.APPNP(num_steps=2, dropout=0.4)

    def __call__(self, graph, x, rngs):
        h = self.messages(graph, jnp.stack([x, 2 * x]), rngs=rngs)
        return self.propagation(graph, h[0] + h[1], rngs=rngs)


class _Norms(nnx.Module):
    """Norms over nodes between reductions of neighbours, and a convolution with self loops."""

    def __init__(self):
        self.batch, self.graph_norm = nn.BatchNorm(WIDTH, rngs=nnx.Rngs(0)), nn.GraphNorm(WIDTH)
        self.convolution = nn.GCNConv(WIDTH, 4, rngs=nnx.Rngs(0))

    def __call__(self, graph, x, rngs):
        of_graph = graph if isinstance(graph, distributed.LocalGraph) else None
        x = self.graph_norm(self.batch(x, of_graph), of_graph)
        x = x + ops.neighbour_reduce(graph, x, "max") + ops.neighbour_reduce(graph, x, "mean")
        x = x + ops.aggregate(graph, at_ends("senders", graph, x), "min")
        logits = ops.sddmm(graph, x, x)[:, None]
        attended = ops.segment_softmax(graph, logits) * jnp.ones((1, WIDTH))
        return self.convolution(graph, x + ops.aggregate(graph, attended, "std"))


NETWORKS = {
    "SAGE": functools.partial(_maxk, "sage"),
    "SAGE with ReLU": functools.partial(_maxk, "sage", activation="relu", k=None),
    "GCN": functools.partial(_maxk, "gcn"),
    "GIN": functools.partial(_maxk, "gin"),
    "GCNII": lambda: GCNII(WIDTH, 8, 3, num_layers=2, **DROPOUT, rngs=nnx.Rngs(0)),
    "messages": _Messages,
    "attention": _Attention,
    "edge dropout": _EdgeDropout,
    "plain attention": functools.partial(_Attention, "xla"),
    "transformer": lambda: GraphTransformer(
        WIDTH, 8, 3, num_layers=1, heads=2, dropout=0.3, attention_dropout=0.3, rngs=nnx.Rngs(0)
    ),
    "norms": _Norms,
}


LISTS, OVERLAP = {"exchange": "all_to_all"}, {"overlap": True}


@functools.cache
def _loss_of(name):
    """The state of a network, and its loss and gradients on a graph, with what it has changed."""
    graphdef, *state = nnx.split(NETWORKS[name](), nnx.Param, ...)

    def loss(params, other, graph, x, targets):
        model = nnx.merge(graphdef, params, jax.tree.map(jnp.asarray, other))
        y = model(graph, x, rngs=nnx.Rngs(dropout=3))
        squares = jnp.sum((y - targets[:, : y.shape[1]]) ** 2, axis=-1)
        changed = nnx.state(model, nnx.BatchStat)
        return distributed.mean_over_nodes(graph, squares, targets[:, 0] > 0), changed

    def run(graph, x, targets, state):
        return jax.value_and_grad(loss, has_aux=True)(*state, graph, x, targets)

    return state, run


@functools.cache
def _expected(name):
    state, run = _loss_of(name)
    return jax.jit(run)(graph(), jnp.asarray(features()), jnp.asarray(features(seed=2)), state)


def _on_devices(name, sharded):
    state, run = _loss_of(name)
    over = distributed.sharded(run, sharded.mesh, rows=(1, 2), outputs="all")
    rows = sharded.shard_rows(features()), sharded.shard_rows(features(seed=2))
    return jax.jit(over)(sharded, *rows, state)


@pytest.mark.costly(4)
@pytest.mark.parametrize(
    "name, devices, options",
    [(name, 4, {}) for name in NETWORKS]
    + [("SAGE", 1, {}), ("GCN", 2, LISTS), ("norms", 4, LISTS)]
    + [("SAGE", 4, {**OVERLAP, "records": True}), ("SAGE with ReLU", 2, {**LISTS, **OVERLAP})]
    + [("GCN", 4, {**LISTS, **OVERLAP}), ("SAGE", 1, OVERLAP), ("attention", 4, OVERLAP)],
)
def test_losses_and_gradients_are_those_of_one_device(name, devices, options, four_devices):
    actual = _on_devices(name, sharded_graph(devices, **options))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), actual, _expected(name)
    )


def _largest_difference(ours, theirs):
    """Of trees of arrays, each relative to the largest entry of its array."""
    parts = zip(*map(jax.tree.leaves, (ours, theirs)), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in parts)


def test_along_a_training_with_maxk_each_step_has_the_gradients_of_one_device(four_devices):
    """From the same parameters: what Adam makes of the rounding of small gradients is apart."""
    sharded, (state, run) = sharded_graph(4), _loss_of("SAGE")
    params, other = state
    optimizer = optax.adam(0.01)
    given = jnp.asarray(features()), jnp.asarray(features(seed=2))
    rows = sharded.shard_rows(features()), sharded.shard_rows(features(seed=2))
    over = jax.jit(distributed.sharded(run, sharded.mesh, rows=(1, 2), outputs="all"))
    of_one, adam = jax.jit(run), optimizer.init(params)
    for _ in range(8):
        (expected, _), gradient = of_one(graph(), *given, (params, other))
        (value, _), of_four = over(sharded, *rows, (params, other))
        assert float(value) == pytest.approx(float(expected), rel=1e-6)
        assert _largest_difference(of_four, gradient) < 1e-5
        with jax.numpy_dtype_promotion("standard"):
            updates, adam = optimizer.update(gradient, adam, params)
            params = optax.apply_updates(params, updates)
    assert float(expected) < 0.9 * float(of_one(graph(), *given, state)[0][0])


def test_bits_repeat_on_a_fixed_number_of_devices(four_devices):
    with jaxgnn.deterministic():
        first, second = (_on_devices("SAGE", sharded_graph(4, "all_to_all")) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_attention_leaves_out_the_same_edges_on_any_number_of_devices(four_devices):
    sharded, x, key = sharded_graph(4), features(2), jax.random.key(3)

    def attend(graph, x):
        options = {"dropout": 0.5, "key": key, "return_weights": True}
        return ops.gat_attention(graph, x, x, x[:, :, None], **options)

    y, weights = jax.jit(distributed.sharded(attend, mesh(4)))(sharded, sharded.shard_rows(x))
    expected, of_edges = attend(graph(), jnp.asarray(x))
    np.testing.assert_allclose(sharded.gather_rows(y), expected, rtol=1e-5, atol=1e-6)
    of_edges = np.asarray(sharded.shard_edges(graph(), of_edges))
    assert (of_edges == 0).any()
    np.testing.assert_array_equal(np.asarray(weights) == 0, of_edges == 0)
    np.testing.assert_allclose(weights, of_edges, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weighted", [True, False])
def test_sparse_features_are_multiplied_and_dropped_as_on_one_device(weighted, four_devices):
    draws = np.random.default_rng(5)
    words = scipy.sparse.random_array((NODES, 9), density=0.3, rng=draws, dtype=np.float32)
    matrix = CSRGraph.from_scipy(words.tocsr())
    matrix = matrix if weighted else matrix.with_weights(None)
    sharded = sharded_graph(4)
    layer = nn.FusedLinear(9, 4, rngs=nnx.Rngs(0))
    graphdef, params = nnx.split(layer)

    def loss(graph, x, params):
        x = dropout(x, 0.4, nnx.Rngs(dropout=2))
        y = ops.spmm(graph, nn.apply_linear(nnx.merge(graphdef, params), x, None))
        return distributed.mean_over_nodes(graph, jnp.sum(y**2, axis=1))

    run = jax.value_and_grad(loss, argnums=2)
    over = jax.jit(distributed.sharded(run, sharded.mesh, rows=(1,), outputs="all"))
    given = sharded.shard_matrix(matrix)
    assert (
        repr(given)
        == f"ShardedMatrix(devices=4, rows=8, columns=9, stored={given.blocks.num_edges})"
    )
    expected = jax.jit(run)(graph(), matrix, params)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        over(sharded, given, params),
        expected,
    )


@pytest.mark.parametrize("rows", [(), (1,)])
def test_a_sparse_matrix_within_an_argument_is_that_of_the_device(rows, four_devices):
    sharded, matrix = (
        sharded_graph(4),
        CSRGraph.from_edges([0, 8, 3], [2, 1, 22], NODES, num_senders=9),
    )
    kernel = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)

    def run(batch, kernel):
        return ops.spmm(batch["graph"], ops.spmm(batch["features"], kernel))

    over = jax.jit(distributed.sharded(lambda graph, *a: run(*a), sharded.mesh, rows=rows))
    batch = {"graph": sharded, "features": sharded.shard_matrix(matrix)}
    if rows:  # then every array of the argument has a row for each node
        batch = {"features": batch["features"]}
        over = jax.jit(
            distributed.sharded(lambda graph, b, k: run(b | {"graph": graph}, k), sharded.mesh)
        )
    y = over(sharded, batch, jnp.asarray(kernel))
    expected = jax.jit(run)({"graph": graph(), "features": matrix}, kernel)
    np.testing.assert_allclose(sharded.gather_rows(y), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["mean", "sym", "gcn"])
def test_normalising_a_part_is_normalising_the_whole(kind, four_devices):
    sharded, x = sharded_graph(4), features()
    before = distributed.shard(graph().normalized(kind), mesh(4))

    def inside(local, x):
        return ops.spmm(local.normalized(kind), x)

    expected = ops.spmm(graph().normalized(kind), jnp.asarray(x))
    for over, function in ((sharded, inside), (before, ops.spmm)):
        y = jax.jit(distributed.sharded(function, over.mesh))(over, over.shard_rows(x))
        np.testing.assert_allclose(over.gather_rows(y), expected, rtol=1e-5, atol=1e-6)


def test_weights_of_edges_and_their_gradients_follow_their_edges(four_devices):
    draws = np.random.default_rng(4).uniform(0.5, 1.5, (2, graph().num_edges)).astype(np.float32)
    weighted = graph().with_weights(draws[0])
    sharded, x = distributed.shard(weighted, mesh(4)), features()
    other = sharded.shard_edges(weighted, draws[1])

    def loss(graph, x, weights):
        y = ops.spmm(graph, x) + ops.spmm(graph.with_weights(weights).normalized("mean"), x)
        return distributed.mean_over_nodes(graph, jnp.sum(y**2, axis=-1))

    value = distributed.sharded(loss, mesh(4), rows=(1,), edges=(2,), outputs="all")
    both = jax.jit(jax.value_and_grad(value, argnums=2))
    actual, dweights = both(sharded, sharded.shard_rows(x), other)
    expected, dexpected = jax.jit(jax.value_and_grad(loss, argnums=2))(
        weighted, jnp.asarray(x), jnp.asarray(draws[1])
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    np.testing.assert_allclose(
        dweights, sharded.shard_edges(weighted, dexpected), rtol=1e-4, atol=1e-6
    )


REFUSED = {
    "shard graph.transpose": lambda g, x: ops.spmm(g.transpose(), x),
    "halo_exchange: x must be of 8 rows": lambda g, x: ops.spmm(g, x[1:]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_part_of_a_graph_can_not_do_is_refused(message, four_devices):
    sharded = sharded_graph(4)
    with pytest.raises(ValueError, match=message):
        over = distributed.sharded(REFUSED[message], mesh(4))
        jax.eval_shape(over, sharded, sharded.shard_rows(features()))
