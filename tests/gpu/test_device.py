"""What only a GPU can show: where arrays live, float64 agreement at size, determinism."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CBSR, CSRGraph, deterministic, ops
from jaxgnn.ops._maxk.maxk import TODENSE
from jaxgnn.testing import assert_bit_equal, random_array, timing

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]

NODES, EDGES, DIM, K = 20_000, 400_000, 256, 32


@pytest.fixture(scope="module")
def graph():
    rng = np.random.default_rng(0)
    weight = np.arange(1, NODES + 1) ** -0.6
    ends = rng.choice(NODES, size=(2, EDGES), p=weight / weight.sum())
    return CSRGraph.from_edges(ends[0], ends[1], NODES)


def test_a_graph_and_its_plan_live_on_the_gpu(graph):
    for leaf in jax.tree.leaves(graph):
        assert leaf.devices() == {jax.devices("gpu")[0]}


def test_a_graph_is_built_under_jit_as_on_the_host(graph):
    rng = np.random.default_rng(1)
    senders, receivers = rng.integers(0, NODES, (2, EDGES)).astype(np.int32)
    build = jax.jit(lambda s, r: CSRGraph.from_edges(s, r, NODES).prepared())
    traced = build(jnp.asarray(senders), jnp.asarray(receivers))
    assert_bit_equal(traced, CSRGraph.from_edges(senders, receivers, NODES).prepared())


def test_kernels_are_timed_without_the_gaps_between_them():
    x = jnp.ones((1 << 26,), jnp.float32)  # 512 MB read and written: 0.1 ms at 5 TB/s
    busy = timing.kernel_time(timing.Candidate(lambda x: x + 1, [(x,)]))
    assert busy is not None and 0.1 < busy < 2.0 * timing.measure(lambda x: x + 1, x).median_ms


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_skewed_graph_agrees_with_float64(graph, dtype):
    x = random_array((NODES, DIM), dtype, seed=2)
    kept = ops.maxk(x, K)
    for actual, dense in (
        (ops.spmm(graph, x), x),
        (ops.maxk_spmm(graph, kept), kept.todense()),
    ):
        exact = np.zeros((NODES, DIM))
        rows = np.repeat(np.arange(NODES), np.diff(np.asarray(graph.indptr)))
        wide = np.asarray(dense).astype(np.float64)
        np.add.at(exact, rows, wide[np.asarray(graph.indices)])
        error = np.linalg.norm(np.asarray(actual).astype(np.float64) - exact)
        assert error / np.linalg.norm(exact) < (1e-6 if dtype == "float32" else 3e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("dim", "k"), [(1, 1), (256, 1), (256, 33), (300, 31), (70_000, 5)])
def test_compiled_moves_write_every_entry_over_poisoned_memory(dim, k, dtype):
    if TODENSE.unavailable("ffi", "cuda"):
        pytest.skip(f"reason: {TODENSE.unavailable('ffi', 'cuda')}")
    x = random_array((777, dim), dtype, seed=4)
    kept = ops.maxk(x, k)
    for _ in range(3):  # what the allocator hands out next holds NaN
        jnp.full((777, dim), jnp.nan, dtype).block_until_ready()
        dense = ops.todense(kept, implementation="ffi")
        assert_bit_equal(dense, kept.todense())

    def expand(values):
        return ops.todense(CBSR(values, kept.indices, dim), implementation="ffi")

    assert_bit_equal(jax.vjp(expand, kept.values)[1](dense)[0], kept.values)
    batch = jax.vmap(expand)(jnp.stack([kept.values, kept.values]))  # shares the columns
    assert_bit_equal(batch[1], dense)


def test_compiled_moves_run_inside_a_captured_graph_of_many_calls():
    if TODENSE.unavailable("ffi", "cuda"):
        pytest.skip(f"reason: {TODENSE.unavailable('ffi', 'cuda')}")
    kept = ops.maxk(random_array((100, 64), "float32", seed=5), 4)

    @jax.jit
    def many(values):
        for _ in range(12):
            dense = ops.todense(CBSR(values, kept.indices, 64), implementation="ffi")
            values = jnp.take_along_axis(dense, kept.indices.astype(jnp.int32), axis=1) * 2
        return values

    for _ in range(5):
        np.testing.assert_allclose(many(kept.values), kept.values * 2**12)


def test_deterministic_mode_repeats_to_the_bit_or_says_why_not(graph):
    kept = ops.maxk(random_array((NODES, DIM), "float32", seed=3), K)

    def gradient(values):
        def loss(values):
            return jnp.sum(ops.maxk_spmm(graph, CBSR(values, kept.indices, DIM)) ** 2)

        return jax.grad(loss)(values)

    with deterministic():
        try:
            first = gradient(kept.values)
        except NotImplementedError as refusal:
            assert "xla_gpu_deterministic_ops" in str(refusal)
            return
        for _ in range(3):
            assert_bit_equal(first, gradient(kept.values))
