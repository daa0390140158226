"""Ops and graphs inside ``shard_map``: in and outside of ``jit``, variation checked or not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.sharding import Mesh, PartitionSpec

from jaxgnn import Incidence, ops
from jaxgnn.graph import CSRGraph, is_concrete
from jaxgnn.graph.plan.plan import make_traced_plan
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import random_array

SENDERS, RECEIVERS = np.array([1, 2, 0, 3, 3]), np.array([0, 0, 2, 1, 3])
EDGES = CSRGraph.from_edges(SENDERS, RECEIVERS, 4)
NO_EDGES = CSRGraph.from_edges([], [], 4)
HYPEREDGES = [{0, 1}, {1, 2, 3}]
BATCH = random_array((4, 4, 8), "float32", seed=3)
SPARSE = ["ffi", None] if dispatch.current_platform() == "cpu" else [None]

modes = pytest.mark.parametrize("check_vma", [False, True])
WRAPS = {"jit": jax.jit, "eager": lambda f: f}
compiled = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)


def _sharded(function, devices, check_vma):
    """``function`` of a member of the batch, each of which is on a device of its own."""
    spec, mesh = PartitionSpec("batch"), Mesh(devices, ("batch",))
    share = functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    return share(lambda x: function(x[0])[None], check_vma=check_vma)


def _network(graph, name, x):
    kept = ops.maxk(x, 3, implementation=name)
    y = ops.maxk_spmm(graph, kept, implementation=name) + ops.spmm(graph, x, implementation=name)
    scores = ops.sddmm(graph, y, x, implementation=name)
    attention = ops.segment_softmax(graph, scores, implementation=name)
    return y + jnp.sum(attention) + ops.todense(kept, implementation=name)


def _attention(graph, name, x):
    """All ops of attention, and the sum of heads, of two heads of four columns."""
    h, options = x.reshape(4, 2, 4), {"implementation": name}
    narrow, logits = jnp.sum(h, axis=-1), jnp.ones((graph.num_edges, 2)) * x[0, 0]
    y, weights = ops.gat_attention(graph, narrow, narrow, h, return_weights=True, **options)
    y += ops.gatv2_attention(graph, h, h, h[0], edge_logits=logits, **options)
    key = jax.random.key(0)
    y += ops.dot_attention(graph, h, h, h, edge_logits=logits, dropout=0.3, key=key, **options)
    return (y + ops.spmm(graph.with_weights(weights), h, **options)).reshape(4, 8)


# Outside of jit each operation is a program of its own: the shorter network comes first.
PROGRAMS = {
    f"{network.__name__[1:]} {how}": (network, wrap)
    for network in (_network, _attention)
    for how, wrap in WRAPS.items()
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("graph", [EDGES, NO_EDGES], ids=["edges", "no edges"])
@modes
def test_sparse_ops_and_gradients_of_a_member_are_those_of_the_member_alone(
    program, name, graph, check_vma, four_devices
):
    network, wrap = program

    def both(x):
        y, pull_back = jax.vjp(functools.partial(network, graph, name), x)
        return jnp.concatenate([y, pull_back(jnp.cos(y))[0]])

    actual = wrap(_sharded(both, four_devices, check_vma))(BATCH)
    alone = jax.jit(both)
    expected = jnp.stack([alone(x) for x in BATCH])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def _of_ids(x):
    """A hypergraph of ids that JAX made, which are traced inside ``shard_map``."""
    return Incidence(jnp.array([0, 1, 1, 2]), jnp.array([0, 0, 1, 1]), 4, 2)


def _of_varying_ids(x):
    shift = (x[:4, 0] * 0).astype(jnp.int32)
    return Incidence(jnp.array([0, 1, 1, 2]) + shift, jnp.array([0, 0, 1, 1]), 4, 2)


HYPERGRAPHS = {
    "of sets": lambda x: Incidence.from_hyperedges(HYPEREDGES, 4),
    "of ids that JAX made": _of_ids,
    "of ids that vary": _of_varying_ids,
}


@pytest.mark.costly
@pytest.mark.parametrize(
    "hypergraph, path", [*((h, "sums") for h in HYPERGRAPHS), ("of sets", "mixing")]
)
@modes
@compiled
def test_hypergraphs_made_inside_are_those_made_outside(
    hypergraph, path, check_vma, wrap, four_devices
):
    make = HYPERGRAPHS[hypergraph]

    def convolve(x):
        return ops.hypergraph_conv(x, make(x), path=path)

    actual = wrap(_sharded(convolve, four_devices, check_vma))(BATCH)
    expected = jnp.stack([convolve(x) for x in BATCH])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


MATRIX = scipy.sparse.csr_array((np.full(5, 2.0), (RECEIVERS, SENDERS)), (4, 4))
GRAPHS = {
    "from_edges": lambda: CSRGraph.from_edges(SENDERS, RECEIVERS, 4),
    "from_scipy": lambda: CSRGraph.from_scipy(MATRIX),
    "with_self_loops": lambda: EDGES.with_self_loops(),
    "with_self_loops, weighted": lambda: CSRGraph.from_scipy(MATRIX).with_self_loops(0.5),
    "normalized": lambda: CSRGraph.from_edges(SENDERS, RECEIVERS, 4).normalized("sym"),
    "without edges": lambda: CSRGraph.from_edges([], [], 4),
}


@pytest.mark.costly
@pytest.mark.parametrize("kind", GRAPHS)
@modes
@compiled
def test_graphs_of_numbers_made_inside_stay_numbers_and_have_a_plan(
    kind, check_vma, wrap, four_devices
):
    def aggregate(x):
        graph = GRAPHS[kind]()
        assert is_concrete(graph.indptr, graph.indices, *jax.tree.leaves(graph.plan))
        return ops.spmm(graph, x)

    actual = wrap(_sharded(aggregate, four_devices, check_vma))(BATCH)
    expected = jnp.stack([ops.spmm(GRAPHS[kind](), x) for x in BATCH])
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.costly
@modes
@compiled
def test_plans_of_ids_that_vary_have_blocks_of_edges_for_a_gpu(check_vma, wrap, four_devices):
    """Of offsets that do not vary, as where only the senders come from the data."""

    def entries(x):
        senders = EDGES.indices + (x[0, 0] * 0).astype(jnp.int32)
        plan = make_traced_plan(EDGES.indptr, senders, num_cols=4, edge_blocks=True)
        return plan.edge_blocks[0].entries.astype(jnp.int32)

    actual = wrap(_sharded(entries, four_devices, check_vma))(BATCH)
    expected = jnp.stack([entries(x) for x in BATCH])
    np.testing.assert_array_equal(actual, expected)
