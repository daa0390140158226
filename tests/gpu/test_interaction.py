"""The kernels of interaction blocks on a GPU: against float64, on graphs of all kinds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, ops
from jaxgnn.ops._edge_mlp.update_edges import FORWARD
from jaxgnn.testing import assert_bit_equal, assert_close, random_array, to_float64

pytestmark = [pytest.mark.gpu, pytest.mark.costly(3)]


@pytest.fixture(scope="module", autouse=True)
def needs_kernels():
    if FORWARD.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {FORWARD.unavailable('pallas', 'cuda')}")


def _graph(rows=301, cols=107, edges=6000, hub=900):
    """Rows of no edge, of few, and of hundreds; slots of padding in between."""
    rng = np.random.default_rng(0)
    receivers = np.floor(rows * rng.random(edges) ** 3).astype(int)
    receivers[:hub] = 17
    mask = rng.random(edges) < 0.95
    return CSRGraph.from_edges(
        rng.integers(0, cols, edges), receivers, rows, num_senders=cols, edge_mask=mask
    )


# Width, dtype, options. In bfloat16 activations are smooth: rounding turns a ReLU on or off, in
# plain JAX on a CPU too.
CASES = {
    "wide": (512, "bfloat16", {"activation": "silu"}),
    "float32": (256, "float32", {"summed": "edges", "ends": "both"}),
    "narrow": (
        32,
        "bfloat16",
        {"activation": "gelu", "norm": "rms", "residual": False, "ends": "senders"},
    ),
    "odd": (33, "float32", {"norm": None, "reduce": "mean"}),
    "widest": (1024, "float32", {"summed": "edges"}),
    "one": (1, "float32", {}),
}


def _run(graph, options, implementation, h, e, layers, scale, offset):
    shared = {"scale": scale, "offset": offset, "implementation": implementation}
    return ops.interaction(graph, h, e, layers, **shared, **options)


def _values_and_gradients(graph, options, implementation, *arrays):
    run = functools.partial(_run, graph, options, implementation)
    y, pull_back = jax.vjp(run, *arrays)
    slopes = [random_array(a.shape, a.dtype, seed=90 + i) for i, a in enumerate(jax.tree.leaves(y))]
    return y, pull_back(jax.tree.unflatten(jax.tree.structure(y), slopes))


def _arrays(graph, width, dtype):
    h = tuple(random_array((n, width), dtype, n) for n in (graph.num_rows, graph.num_cols))
    e = random_array((graph.num_edges, width), dtype, seed=3)
    real = np.arange(graph.num_edges) < np.asarray(graph.indptr)[-1]
    e = jnp.where(real[:, None], e, jnp.nan)
    kernels = [
        random_array((n * width, width), dtype, seed=4 + n, scale=(n * width) ** -0.5)
        for n in (3, 1)
    ]
    rows = [random_array((width,), dtype, seed) for seed in (8, 9, 10)]
    return h, e, ops.EdgeMLPParams(kernels, [rows[0], rows[0]]), *rows[1:]


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_agree_with_float64(case):
    width, dtype, options = CASES[case]
    graph = _graph()
    arrays = _arrays(graph, width, dtype)
    with jax.default_matmul_precision("highest"):
        made = jax.jit(functools.partial(_values_and_gradients, graph, options, "pallas"))(*arrays)
    with jax.enable_x64(True):
        exact = jax.jit(functools.partial(_values_and_gradients, graph, options, "xla"))(
            *to_float64(arrays)
        )
    for actual, expected in zip(*map(jax.tree.leaves, (made, exact)), strict=True):
        assert_close(actual, expected, reduction_length=graph.num_edges, operands=dtype)


def test_two_runs_are_equal_to_the_last_bit_in_deterministic_mode_or_not():
    graph = _graph()
    arrays = _arrays(graph, 128, "float32")
    run = jax.jit(functools.partial(_values_and_gradients, graph, {}, "pallas"))
    assert_bit_equal(run(*arrays), run(*arrays))


def test_a_batch_is_each_of_its_members():
    graph = _graph(40, 30, 400, 20)
    h, e, *rest = _arrays(graph, 64, "float32")
    several = jax.tree.map(lambda x: jnp.stack([x, 2 * x, -x]), (h, e))
    run = functools.partial(_run, graph, {"ends": "both"}, "pallas")
    made = jax.jit(run)(*several, *rest)
    for member in range(3):
        own = jax.tree.map(lambda x, member=member: x[member], several)
        expected = jax.jit(run)(*own, *rest)
        for a, b in zip(*map(jax.tree.leaves, (made, expected)), strict=True):
            np.testing.assert_allclose(a[member], b, rtol=1e-3, atol=1e-3)
