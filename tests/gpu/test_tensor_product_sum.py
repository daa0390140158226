"""The generated kernels of tensor products against float64, over poisoned memory."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import CSRGraph, _ffi, ops
from jaxgnn.equivariant import TensorProduct, separate_paths
from jaxgnn.ops._equivariant.tensor_product_sum import SUM
from jaxgnn.testing import assert_bit_equal, assert_close, random_array, to_float64

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]

PRODUCTS = {
    "apart": separate_paths("128x0e+33x1o+7x2e+1x3o", "0e+1o+2e+3o", keep="0e+1o+2e+3o"),
    # Several paths to an entry of the result, from several entries.
    "sums": TensorProduct.of("33x0e+33x1o+33x2e", "0e+1o+2e", "33x0e+33x1o+33x2e"),
    "small": TensorProduct.of("2x0e+2x1o", "0e+1o", "2x0e+2x1o"),
    # More numbers than a lane keeps at once.
    "wide": separate_paths("5x3o+5x4e", "0e+1o+2e+3o+4e", keep="0e+1o+2e+3o+4e+1e+2o+3e+4o"),
}


@pytest.fixture(scope="module", autouse=True)
def needs_nvrtc():
    reason = _ffi.why_missing("cuda")
    if reason is not None:
        pytest.skip(f"reason: {reason}")


def _ragged() -> CSRGraph:
    """Empty rows, a long row, repeated edges, and padding slots."""
    rng = np.random.default_rng(0)
    lengths = np.where(rng.random(90) < 0.3, 0, rng.integers(1, 40, 90))
    lengths[3] = 700
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    senders = rng.integers(0, 60, indptr[-1] + 13)
    return CSRGraph(indptr.astype(np.int32), senders.astype(np.int32), num_cols=70)


GRAPHS = {
    "ragged": _ragged,
    "no edges": lambda: CSRGraph.from_edges([], [], 5),
    "one edge": lambda: CSRGraph.from_edges([1], [0], 2),
}
NO_GRAPH_IS_LONGER = 4096  # terms of a sum, with the coefficients


@functools.cache
def _graph(name) -> CSRGraph:
    return GRAPHS[name]()


FEATURES = {"apart": 64, "sums": 20, "small": 3, "wide": 33}
WEIGHTS = "given", "made"


def _arrays(graph, product, dtype="float32", features=0):
    """Arrays with NaN in padding slots; what the allocator hands out next holds NaN too.

    The third array holds weights, or the basis of so many features; then the kernel is the fourth.
    """
    real = int(graph.indptr[-1])
    x = random_array((graph.num_cols, product.irreps_in.dim), dtype, seed=0)
    of_edges = [
        random_array((graph.num_edges, width), dtype, seed).at[real:].set(jnp.nan)
        for seed, width in ((1, product.irreps_sh.dim), (2, features or product.num_weights))
    ]
    # A small kernel: slopes of the sines of large gradients would be ill-conditioned.
    of_layer = features, product.num_weights
    kernel = [random_array(of_layer, dtype, 3) * (0.1 / features**0.5)] if features else []
    sizes = [a.shape for a in (x, *of_edges, *kernel)]
    sizes += [(graph.num_rows, product.irreps_out.dim), (264 * 8 * 16 * 32 * 4,)]
    jax.block_until_ready([jnp.full(shape, jnp.nan) for shape in sizes for _ in range(4)])
    return x, *of_edges, *kernel


def _call(graph, product, implementation):
    def call(x, harmonics, *of_weights):
        arguments = product.arguments | {"implementation": implementation}
        names = ("basis", "kernel") if len(of_weights) == 2 else ("weights",)
        arguments |= dict(zip(names, of_weights, strict=True))
        if len(of_weights) == 2:
            arguments["recompute_weights"] = implementation != "xla"
        return ops.tensor_product_sum(graph, x, harmonics, **arguments)

    return call


def _in_float64(run, graph, product, arrays):
    """A function of a call and its arrays with the reference in float64 on the CPU."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        there, copies = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)), (graph, arrays))
        exact = to_float64(copies)
        return jax.tree.map(
            np.asarray, jax.jit(lambda *a: run(_call(there, product, "xla"), *a))(*exact)
        )


def _agree(run, graph, product, arrays, operands=None):
    expected = _in_float64(run, graph, product, arrays)
    made = jax.jit(lambda *a: run(_call(graph, product, "ffi"), *a))(*arrays)
    for got, exact in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert_close(got, exact, reduction_length=NO_GRAPH_IS_LONGER, operands=operands)


def _value_and_gradients(call, *arrays):
    value, pull = jax.vjp(call, *arrays)
    return value, pull(jnp.cos(jnp.arange(value.size).reshape(value.shape)).astype(value.dtype))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_values_and_gradients_agree_with_float64(name, dtype, weights):
    graph, product = _graph("ragged"), PRODUCTS[name]
    operands = None if dtype == "float32" else dtype
    arrays = _arrays(graph, product, dtype, FEATURES[name] if weights == "made" else 0)
    _agree(_value_and_gradients, graph, product, arrays, operands)


@pytest.mark.parametrize("features", [0, 3], ids=WEIGHTS)
@pytest.mark.parametrize("name", ["no edges", "one edge"])
def test_values_and_gradients_of_few_edges_agree_with_float64(name, features):
    graph, product = _graph(name), PRODUCTS["small"]
    _agree(_value_and_gradients, graph, product, _arrays(graph, product, features=features))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", ["sums", "small", "wide"])
def test_second_derivatives_agree_with_float64(name, weights):
    def run(call, *arrays):
        every = tuple(range(len(arrays)))

        def slope(*arrays):
            gradients = jax.grad(lambda *a: jnp.sum(call(*a) ** 2), every)(*arrays)
            return sum(jnp.sum(jnp.sin(0.01 * g)) for g in gradients)

        return jax.grad(slope, every)(*arrays)

    graph, product = _graph("ragged"), PRODUCTS[name]
    features = FEATURES[name] if weights == "made" else 0
    _agree(run, graph, product, _arrays(graph, product, features=features))


@pytest.mark.parametrize("features", [0, 3], ids=WEIGHTS)
def test_forward_mode_agrees_with_float64(features):
    def run(call, x, *of_edges):
        arrays = x, *of_edges
        return jax.jvp(call, arrays, (jnp.cos(x), *of_edges))[1]

    graph, product = _graph("ragged"), PRODUCTS["small"]
    _agree(run, graph, product, _arrays(graph, product, features=features))


def _graph_without_padding():
    return CSRGraph.from_edges(np.arange(40) % 7, np.arange(40) // 6, 7)


def _stacks(product, features, calls=3):
    """Arrays for several calls, and the graph of all."""
    graph = _graph_without_padding()
    arrays = _arrays(graph, product, features=features)
    return graph, [jnp.stack([a * (1 + i) for i in range(calls)]) for a in arrays]


@pytest.mark.parametrize("features", [0, 20], ids=WEIGHTS)
@pytest.mark.parametrize("program", ["loop", "slices", "batch", "shared edges"])
def test_calls_in_one_program_equal_those_of_programs_of_their_own(program, features):
    # See test_in_place.py for the loop and the slices.
    product = PRODUCTS["sums"]
    graph, stacks = _stacks(product, features)
    run = functools.partial(_value_and_gradients, _call(graph, product, "ffi"))
    if program == "shared edges":
        stacks[1:] = [jnp.broadcast_to(a[:1], a.shape) for a in stacks[1:]]
    programs = {
        "loop": lambda stacks: jax.lax.map(lambda arrays: run(*arrays), stacks),
        "slices": lambda stacks: jax.tree.map(
            lambda *a: jnp.stack(a), *(run(*(a[i] for a in stacks)) for i in range(3))
        ),
        "batch": lambda stacks: jax.vmap(run)(*stacks),
        "shared edges": lambda stacks: jax.vmap(run, (0, *[None] * len(stacks[1:])))(
            stacks[0], *(a[0] for a in stacks[1:])
        ),
    }
    made = jax.jit(programs[program])(stacks)
    apart = [jax.jit(run)(*(a[i] for a in stacks)) for i in range(3)]
    for i, alone in enumerate(apart):
        for got, expected in zip(jax.tree.leaves(made), jax.tree.leaves(alone), strict=True):
            assert_close(got[i], expected, reduction_length=NO_GRAPH_IS_LONGER)


@pytest.mark.parametrize("features", [0, 64], ids=WEIGHTS)
def test_results_are_equal_to_the_last_bit_from_run_to_run(features):
    graph, product = _graph("ragged"), PRODUCTS["apart"]
    run = jax.jit(functools.partial(_value_and_gradients, _call(graph, product, None)))
    arrays = _arrays(graph, product, features=features)
    with jaxgnn.deterministic():
        assert_bit_equal(run(*arrays), run(*arrays))


def test_none_is_the_generated_kernels():
    graph, product = _graph("ragged"), PRODUCTS["small"]
    arrays = _arrays(graph, product)
    assert SUM.choose("cuda", graph, *arrays, product=product) == "ffi"


LOADS = """
import sys, numpy as np, jaxgnn
folder = sys.argv[1]
given = np.load(folder + "/given.npz")
function = jaxgnn.load_exported(folder + "/function.jaxgnn")
np.save(folder + "/made.npy", np.asarray(function(*(given[name] for name in "xhw"))))
"""


def test_an_exported_function_runs_where_nothing_was_traced(tmp_path):
    graph, product = _graph_without_padding(), PRODUCTS["small"]
    arrays = _arrays(graph, product)
    call = _call(graph, product, "ffi")
    file = jaxgnn.export(call, *arrays, platforms=("cuda",))
    (tmp_path / "function.jaxgnn").write_bytes(file)
    np.savez(tmp_path / "given.npz", **dict(zip("xhw", map(np.asarray, arrays), strict=True)))
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-c", LOADS, os.fspath(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    expected = jax.jit(call)(*arrays)
    np.testing.assert_array_equal(np.load(tmp_path / "made.npy"), expected)
