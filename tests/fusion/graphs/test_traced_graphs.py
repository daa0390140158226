"""Graphs that are arguments, new in each call: sorted in the step, once for all layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from jax import P

import jaxgnn
from tests._eager_costs import counted_compilations
from tests.fusion._cases import applied, arrays, assert_same, fuse, refused

NODES, EDGES = 7, 40
_rng = np.random.default_rng(1)
# Repeated edges in any order, some dropped: receivers below zero and beyond the nodes. Negative
# senders count from the end. Node 6 has no edges.
RECEIVERS = jnp.asarray(_rng.integers(-2, NODES - 1, EDGES), jnp.int32).at[:3].set(NODES + 1)
SENDERS = jnp.asarray(_rng.integers(-NODES + 1, NODES - 1, EDGES), jnp.int32)
X, W, E, K, L = arrays((NODES, 3), (EDGES,), (EDGES, 2), (8, 4), (4, 4))


def _sum(x, w, e, s, r):
    return jax.ops.segment_sum(x[s] * w[:, None], r, NODES)


def _plain_sum(x, w, e, s, r):
    return jnp.zeros_like(x).at[r].add(x[s], mode="drop")  # negative receivers count from the end


def _maximum(x, w, e, s, r):
    return jax.ops.segment_max(x[s], r, NODES)


def _messages(x, w, e, s, r):
    return jax.ops.segment_sum(jnp.tanh(x[s] * x[r]), r, NODES)


def _clipped(x, w, e, s, r):
    return jax.ops.segment_sum(e * w[:, None], r, NODES, mode="clip")


def _network(x, w, e, s, r):
    hidden = jax.nn.relu(jnp.concatenate([x[r], x[s], e], -1) @ K)
    return jax.ops.segment_sum(hidden @ L, r, NODES)


def _projection(x, w, e, s, r):
    return jnp.concatenate([x[r], x[s], e], -1) @ K


def _attention(x, w, e, s, r):
    r = r % (NODES - 1)  # as written, an edge that is dropped has a gradient that is no number
    logits = jax.nn.leaky_relu((x @ K[:3, :1])[r] + (x @ K[3:6, :1])[s])
    exponentials = jnp.exp(logits - jax.ops.segment_max(logits, r, NODES)[r])
    totals = jax.ops.segment_sum(exponentials, r, NODES)
    return jax.ops.segment_sum(x[s] * (exponentials / totals[r]), r, NODES)


def _layers(x, w, e, s, r):
    @jax.checkpoint
    def layer(h):
        return jnp.tanh(_sum(h, w, e, s, r))

    h, _ = jax.lax.scan(lambda h, _: (layer(h) + x, None), layer(x), None, length=3)
    return layer(h) + _maximum(h, w, e, s, jnp.clip(r, 0, 5))


CASES = {
    "sum": (_sum, ["spmm"]),
    "plain sum": (_plain_sum, ["spmm"]),
    "maximum": (_maximum, ["neighbour_reduce"]),
    "messages": (_messages, ["aggregate"]),
    "clipped": (_clipped, ["aggregate"]),
    "network": (_network, ["edge_mlp_aggregate"]),
    "projection": (_projection, ["3 products"]),
    "attention": (_attention, ["gat_attention"]),
}


@pytest.mark.costly(4)
@pytest.mark.parametrize("case", CASES)
def test_ids_that_are_known_only_when_it_runs_are_sorted_there(case):
    fn, ops = CASES[case]
    assert applied(fuse(fn), X, W, E, SENDERS, RECEIVERS) == ops
    assert_same(fn, fuse(fn), X, W, E, SENDERS, RECEIVERS)


def _sorted_sum(x, w, e, s, r):
    added = jax.ops.segment_sum(jnp.tanh(e), r, NODES, indices_are_sorted=True)
    sums = jax.ops.segment_sum(x[s], r, NODES, indices_are_sorted=True)
    return jnp.concatenate([added, sums], -1)


@pytest.mark.costly(2)
@pytest.mark.parametrize("dropped", [(), (-3, -1), (NODES, NODES + 2), (-1, NODES)])
def test_ids_that_are_promised_to_ascend_are_not_sorted(dropped):
    receivers = jnp.sort(jnp.concatenate([RECEIVERS, jnp.asarray(dropped, jnp.int32)]).clip(-3, 9))
    size = len(receivers)
    args = X, W, jnp.ones((size, 2)), jnp.resize(SENDERS, (size,)), receivers
    assert_same(_sorted_sum, fuse(_sorted_sum), *args)
    compiled = jax.jit(fuse(_sorted_sum)).lower(*args).compile().as_text()
    # The order by sender is for gradients alone, and is not computed for values.
    assert "jaxgnn_segment_order" not in compiled and " sort(" not in compiled


def test_all_dropped_edges_and_a_single_one_are_right():
    for size in (1, EDGES):
        args = X, W[:size], E[:size], SENDERS[:size], jnp.full(size, -1)
        assert_same(_sum, fuse(_sum), *args)


def test_layers_and_loops_share_one_order():
    """The maximum has other ids, which are another list."""
    fused = fuse(_layers)
    assert_same(_layers, fused, X, W, E, SENDERS, RECEIVERS)
    program = jax.make_jaxpr(fused)(X, W, E, SENDERS, RECEIVERS)
    calls = [e for e in program.jaxpr.eqns if e.primitive.name in ("jit", "pjit")]
    plans = [e for e in calls if "segment_order" in str(e.params["jaxpr"])]
    assert len(plans) == 4  # by receiver and by sender, of either list
    (loop,) = (e for e in program.jaxpr.eqns if e.primitive.name == "scan")
    assert "segment_order" not in str(loop.params)


def test_a_loop_of_unknown_length_reads_an_order_from_outside():
    def run(x, w, s, r, steps):
        return jax.lax.fori_loop(0, steps, lambda _, h: jnp.tanh(_sum(h, w, E, s, r)), x)

    args = X, W, SENDERS, RECEIVERS, 3
    np.testing.assert_allclose(fuse(run)(*args), run(*args), rtol=1e-4, atol=1e-5)
    program = jax.make_jaxpr(fuse(run))(*args)
    (loop,) = (e for e in program.jaxpr.eqns if e.primitive.name == "while")
    assert "segment_order" in str(program) and "segment_order" not in str(loop.params)


def test_padding_may_hold_anything():
    """Edges that arrive nowhere, with features that are no numbers, and nodes that none reads."""
    is_padding = jnp.arange(EDGES) >= EDGES - 5
    receivers = jnp.where(is_padding, NODES, RECEIVERS)
    weights = jnp.where(is_padding, jnp.nan, W)
    features = jnp.where(is_padding[:, None], jnp.nan, E)
    senders = jnp.where(is_padding, NODES + 5, SENDERS % (NODES - 1))
    x = X.at[NODES - 1].set(jnp.nan)
    for fn in (_sum, _network):
        got = jax.jit(fuse(fn))(x, weights, features, senders, receivers)
        args = jnp.nan_to_num(x), jnp.nan_to_num(weights), jnp.nan_to_num(features)
        np.testing.assert_allclose(got, fn(*args, senders, receivers), rtol=1e-4, atol=1e-5)
        to_x, to_w = jax.grad(
            lambda x, w, fn=fn: fuse(fn)(x, w, features, senders, receivers).sum(), argnums=(0, 1)
        )(x, weights)
        assert jnp.isfinite(to_x).all() and jnp.isfinite(to_w[: EDGES - 5]).all()


def _graph(seed, nodes, edges):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, nodes, (2, edges)).astype(np.int32)
    made = jraph.GraphsTuple(
        nodes=rng.normal(size=(nodes, 4)).astype(np.float32),
        edges=rng.normal(size=(edges, 2)).astype(np.float32),
        globals=None,
        senders=ids[0],
        receivers=ids[1],
        n_node=np.array([nodes]),
        n_edge=np.array([edges]),
    )
    return jax.tree.map(jnp.asarray, jraph.pad_with_graphs(made, 16, 60, 3))


def test_one_compilation_is_for_all_graphs_of_a_bucket():
    """Graphs of other sizes in one padded shape; the padding edges are between padding nodes."""

    @jax.numpy_dtype_promotion("standard")  # jraph multiplies floats with integers
    def loss(graph, kernel):
        layer = jraph.GraphConvolution(lambda x: x @ kernel, add_self_edges=True)
        attention = jraph.GAT(lambda x: x, lambda s, r, _: jax.nn.leaky_relu((s + r)[:, :1]))
        nodes = attention(layer(graph)).nodes
        return jnp.where(jraph.get_node_padding_mask(graph)[:, None], nodes, 0)

    (kernel,) = arrays((4, 4))
    fused = fuse(loss, graph_arguments="graph")
    graphs = [_graph(*size) for size in ((0, 5, 20), (1, 7, 31), (2, 1, 1), (3, 9, 50))]
    assert applied(fused, graphs[0], kernel) == ["spmm", "segment_softmax and spmm"]
    jax.block_until_ready(fused(graphs[0], kernel))
    with counted_compilations() as compiled:
        got = [jax.block_until_ready(fused(graph, kernel)) for graph in graphs]
    assert not compiled
    plain = jax.jit(loss)
    for graph, result in zip(graphs, got, strict=True):
        np.testing.assert_allclose(result, plain(graph, kernel), rtol=1e-4, atol=1e-4)
    args = _graph(1, 7, 31), kernel

    def gradient(fn):
        return jax.jit(jax.grad(lambda g, k: jnp.sum(fn(g, k) ** 2), 1))(*args)

    np.testing.assert_allclose(gradient(fused), gradient(loss), rtol=1e-3, atol=1e-3)


def test_graphs_may_be_mapped_over():
    lists = jnp.stack([SENDERS, SENDERS[::-1]]), jnp.stack([RECEIVERS, RECEIVERS - 1])

    def mapped(fn):
        return lambda x, w: jax.vmap(lambda s, r: fn(x, w, E, s, r))(*lists)

    assert_same(mapped(_sum), mapped(fuse(_sum)), X, W)


def test_each_device_sorts_its_own_edges(four_devices):
    kinds = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((4,), ("edges",), axis_types=kinds, devices=four_devices)

    def sharded(fn):
        def run(x, w, e, s, r):
            return jax.lax.psum(fn(x, w, e, s, r), "edges")

        specs = P(), *[P("edges")] * 4
        return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=P()))

    args = X, W, E, SENDERS, RECEIVERS
    np.testing.assert_allclose(sharded(fuse(_sum))(*args), _sum(*args), rtol=1e-4, atol=1e-5)


def test_a_list_that_is_an_operand_of_each_step_is_sorted_there():
    def batches(x, w, s, r):
        def step(total, of_one):
            return total + _sum(x, w, E, *of_one), None

        return jax.lax.scan(step, jnp.zeros_like(x), (s, r))[0]

    args = X, W, jnp.stack([SENDERS, SENDERS[::-1]]), jnp.stack([RECEIVERS, RECEIVERS - 1])
    assert applied(fuse(batches), *args) == ["spmm"]
    assert_same(batches, fuse(batches), *args)


def _nearest(x, w, e, s, r):
    return jax.ops.segment_sum(x[s] * w[:, None], jnp.repeat(jnp.arange(NODES), 5), NODES)


_KNOWN = jnp.tile(jnp.arange(NODES), 5) - 1


def _some_nearest(x, w, e, s, r):
    return jax.ops.segment_max(x[s], _KNOWN, NODES)


@pytest.mark.parametrize(("fn", "op"), [(_nearest, "spmm"), (_some_nearest, "neighbour_reduce")])
def test_receivers_may_be_known_where_senders_are_not(fn, op):
    """Lists of a fixed number of neighbours, which are found in each step."""
    args = X, W[:35], E, SENDERS[:35], RECEIVERS
    assert applied(fuse(fn), *args) == [op]
    assert_same(fn, fuse(fn), *args)


def test_explain_names_what_is_sorted_and_what_would_not_pay():
    args = X, W, E, SENDERS, RECEIVERS
    shown = str(jaxgnn.fuse.explain(fuse(_sum), *args, measure=False))
    assert "40 edges are sorted in each call, once for all that uses their order" in shown
    shown = str(jaxgnn.fuse.explain(fuse(_projection), *args, measure=False))
    assert "ids are known only when it runs; nothing is sorted" in shown
    reason = refused(jaxgnn.fuse(_sum), *args)
    assert "the ids are known only when it runs; to sort them there" in reason
    # Whoever names the argument wants the order; each rule still has to be faster at its size.
    wanted = refused(jaxgnn.fuse(_sum, graph_arguments=(3, "r")), *args)
    assert "to sort them" not in wanted and "faster" in wanted


def test_gathers_that_fill_are_left_alone_and_named():
    def filled(x, s, r):
        return jax.ops.segment_sum(jnp.take(x, s, axis=0), r, NODES)

    assert "x[ids] reads the nearest row" in refused(fuse(filled), X, SENDERS, RECEIVERS)


def test_one_argument_is_known_and_another_is_sorted():
    fused = fuse(_sum, static_graph=True, graph_arguments=("s", "r"))
    assert_same(_sum, fused, X, W, E, SENDERS, RECEIVERS)
    assert "are sorted in each call" in str(
        jaxgnn.fuse.explain(fused, X, W, E, SENDERS, RECEIVERS, measure=False)
    )


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("edges", "graph_arguments must be names or positions of arguments among x, w, e, s, r"),
        (5, "graph_arguments must be names or positions.*"),
        (True, "graph_arguments must be names or positions.*"),
    ],
)
def test_an_argument_that_is_not_there_is_named(named, message):
    with pytest.raises(ValueError, match=f"fuse: {message}, got {named!r}"):
        jaxgnn.fuse(_sum, graph_arguments=named)


def test_an_argument_without_ids_is_named():
    args = X, W, {"e": E}, SENDERS, RECEIVERS
    for name, got in (("w", r"float32\[40\]"), ("e", r"float32\[40,2\]")):
        expected = f"fuse: graph_arguments: {name} must be an array of integers.*got {got}"
        for transform in (lambda f: f, jax.jit):
            with pytest.raises(ValueError, match=expected):
                transform(jaxgnn.fuse(_sum, graph_arguments=name))(*args)
    with pytest.raises(ValueError, match=r"graph_arguments: s must be .* got nothing"):
        jaxgnn.fuse(lambda x, s=None: x, graph_arguments="s")(X)


def test_verify_runs_on_graphs_that_are_arguments():
    fused = fuse(_network, graph_arguments=("s", "r"), verify="strict")
    fused(X, W, E, SENDERS, RECEIVERS)
