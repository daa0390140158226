"""Exported functions with the kernels of a GPU: a fresh process loads them and gets the numbers."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import CSRGraph, ops
from jaxgnn.testing import random_array

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]

NODES, EDGES, DIM = 4096, 65_536, 128
KERNEL = random_array((DIM, DIM), "bfloat16", seed=2)

# A process that has imported the library alone: neither kernels nor their compiler.
LOADS = """
import sys, numpy as np, jaxgnn
folder = sys.argv[1]
given = np.load(folder + "/given.npz")
graph = jaxgnn.CSRGraph(given["indptr"], given["indices"])
function = jaxgnn.load_exported(folder + "/function.jaxgnn")
np.save(folder + "/made.npy", np.asarray(function(graph, given["x"]), np.float32))
"""

FUNCTIONS = {
    "spmm, pallas": lambda graph, x: ops.spmm(graph, x, implementation="pallas"),
    "spmm, ffi": lambda graph, x: ops.spmm(graph, x, implementation="ffi"),
    "maxk_spmm, pallas": lambda graph, x: ops.maxk_spmm(
        graph, ops.maxk(x, 16, implementation="pallas"), implementation="pallas"
    ),
    "gradient": jax.grad(
        lambda graph, x: jnp.sum(jnp.sin(ops.maxk_spmm(graph, ops.maxk(x, 16)))), argnums=1
    ),
    "segment_softmax": lambda graph, x: ops.segment_softmax(graph, ops.sddmm(graph, x, x)),
    "fused_mlp": lambda graph, x: ops.fused_mlp(
        x.astype(jnp.bfloat16), [KERNEL] * 2, [KERNEL[0]] * 2, activation="relu"
    ),
}


@pytest.fixture(scope="module")
def graph():
    ends = np.random.default_rng(0).integers(0, NODES, (2, EDGES))
    return CSRGraph.from_edges(ends[0], ends[1], NODES)


def _loaded_elsewhere(folder, file, graph, x):
    (folder / "function.jaxgnn").write_bytes(file)
    np.savez(folder / "given.npz", indptr=graph.indptr, indices=graph.indices, x=x)
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-c", LOADS, os.fspath(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    return np.load(folder / "made.npy")


# An implementation that is asked for by name is for the present platform alone.
CASES = [(name, ("cuda",)) for name in FUNCTIONS]
CASES += [(name, ("cpu", "cuda")) for name in FUNCTIONS if not name.endswith(("pallas", "ffi"))]


@pytest.mark.parametrize("name, platforms", CASES)
def test_a_fresh_process_runs_the_kernels_and_gets_the_numbers(name, platforms, graph, tmp_path):
    function, x = FUNCTIONS[name], random_array((NODES, DIM), "float32", seed=1)
    file = jaxgnn.export(function, graph, x, platforms=platforms)
    kernels = jaxgnn.load_exported(file).kernels
    assert any(kernel.startswith(("mosaic_gpu", "jaxgnn_")) for kernel in kernels)
    made = _loaded_elsewhere(tmp_path, file, graph, x)
    expected = np.asarray(jax.jit(function)(graph, x), np.float32)
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("implementation", ["pallas", "ffi"])
def test_senders_out_of_range_are_the_nearest_node(implementation, graph):
    x = random_array((NODES, DIM), "float32", seed=1)
    wild = np.asarray(graph.indices).copy()
    wild[::7], wild[3::11] = 10**9, -(10**9)
    run = jax.jit(lambda i, j: ops.spmm(CSRGraph(i, j), x, implementation=implementation))
    expected = run(graph.indptr, wild.clip(0, NODES - 1))
    np.testing.assert_array_equal(run(graph.indptr, wild), expected)
