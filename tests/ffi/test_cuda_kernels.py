"""Hand-written CUDA kernels: emulated on a CPU, and compiled by NVRTC for every kind of GPU."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CBSR, CSRGraph, ops
from jaxgnn._ffi import _launch, _nvrtc, _programs
from jaxgnn._ffi import maxk as maxk_calls
from jaxgnn._ffi import maxk_spmm as maxk_spmm_calls
from jaxgnn._ffi import spmm as spmm_calls
from jaxgnn.graph.plan import built_parts as _parts
from jaxgnn.graph.plan import edge_blocks as _edge_blocks
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import DTYPES, assert_bit_equal, assert_close, random_array, to_float64
from pallas_kernels import chip as _chip
from pallas_kernels.chip import Chip
from tests.ffi import _emulator
from tests.ffi.test_generated import CAPABILITIES

NODES = 40
# An entry, or 16 bytes, a lane; slices of columns; one and eight rows a warp.
SHAPES = [(16, 4), (37, 5), (256, 33)]


def _graph(**options):
    """Rows without edges, a row of several pieces, repeated edges, and padding slots."""
    rng = np.random.default_rng(0)
    lengths = np.where(np.arange(NODES) % 5 == 0, 0, rng.integers(1, 9, NODES))
    lengths[3] = 600
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    senders = rng.integers(0, NODES - 4, indptr[-1] + 7)
    return CSRGraph(indptr.astype(np.int32), senders.astype(np.int32), num_cols=NODES, **options)


def _weighted():
    graph = _graph()
    return graph.with_weights(random_array((graph.num_edges,), "float32", seed=9))


GRAPHS = {
    "bare": _graph,
    "scaled": lambda: _graph().normalized("sym"),
    "weighted": lambda: _weighted().normalized("mean"),
    "no edges": lambda: CSRGraph.from_edges([], [], NODES),
}


@pytest.fixture
def launched(monkeypatch, tmp_path_factory):
    """The names of launched kernels; ops take an emulated GPU for the one at hand."""
    find = functools.partial(_emulator.library_of, tmp_path_factory.getbasetemp())
    monkeypatch.setattr(_launch, "call_many", functools.partial(_emulator.call_many, find))
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    _emulator.LAUNCHED.clear()
    return _emulator.LAUNCHED


def _exact(function, *args):
    with jax.enable_x64(True):
        return function(*jax.tree.map(to_float64, args))


def _value_and_gradients(implementation, op, graph, dy, *arrays):
    """The result of an op, and its gradients to the weights of the graph and to arrays."""

    def run(weights, *arrays):
        return op(graph.with_weights(weights), *arrays, implementation=implementation)

    y, pull_back = jax.vjp(run, graph.weights, *arrays)
    return y, pull_back(dy.astype(y.dtype))


def _compare(op, graph, dy, *arrays):
    actual = _value_and_gradients("ffi", op, graph, dy, *arrays)
    exact = _exact(functools.partial(_value_and_gradients, "xla", op), graph, dy, *arrays)
    # The result, then the gradients to float32 weights, then to features.
    for one, expected in zip(jax.tree.leaves(actual), jax.tree.leaves(exact), strict=True):
        assert_close(one, expected, reduction_length=600)


@pytest.mark.costly(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [dim for dim, _ in SHAPES])
@pytest.mark.parametrize("name", GRAPHS)
def test_spmm_and_its_gradients_agree_with_float64(name, dim, dtype, launched):
    graph = GRAPHS[name]()
    x, dy = (random_array((NODES, dim), dtype, seed=seed) for seed in (1, 2))
    _compare(ops.spmm, graph, dy, x)
    assert ("add_pieces" in launched) == (name != "no edges")
    assert ("sddmm" in launched) == (name == "weighted")


def test_products_of_heads_and_of_batches_agree_with_float64(launched):
    graph = _graph()
    graph = graph.with_weights(random_array((graph.num_edges, 3), "float32", seed=4))
    x, dy = (random_array((2, NODES, 3, 5), "float32", seed=seed) for seed in (5, 6))
    _compare(ops.spmm, graph, dy, x)
    assert {"spmm", "sddmm"} <= set(launched)


@pytest.mark.costly(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim, k", SHAPES)
@pytest.mark.parametrize("blocks", ["none", "few rows", "many rows"])
@pytest.mark.parametrize("name", GRAPHS)
def test_maxk_spmm_and_its_gradients_agree_with_float64(
    name, blocks, dim, k, dtype, launched, monkeypatch
):
    graph = dataclasses.replace(GRAPHS[name](), plan=None)
    if blocks != "none":
        monkeypatch.setattr(_parts, "on_gpu", lambda: True)
        rows = (96,) if blocks == "many rows" else (32,)
        monkeypatch.setattr(_edge_blocks, "_rows_of_blocks", lambda *sizes: (rows, False))
        graph = graph.prepared()
    kept = ops.maxk(random_array((NODES, dim), dtype, seed=3), k, implementation="xla")
    dy = random_array((NODES, dim), dtype, seed=2)

    def op(graph, values, *, implementation):
        kept_here = CBSR(values, kept.indices, dim)
        return ops.maxk_spmm(graph, kept_here, implementation=implementation)

    _compare(op, graph, dy, kept.values)
    by_block = blocks != "none" and name != "no edges"
    assert ("grad_values_blocks" in launched) == by_block
    assert ("grad_values" in launched) == (blocks == "none")
    assert ("grad_weights" in launched) == (name == "weighted")


def test_a_wide_row_has_a_whole_warp(launched):
    kept = ops.maxk(random_array((NODES, 1100), "bfloat16", seed=3), 40, implementation="xla")
    y = ops.maxk_spmm(_graph(), kept, implementation="ffi")
    exact = _exact(functools.partial(ops.maxk_spmm, implementation="xla"), _graph(), kept)
    assert_close(y, exact, reduction_length=600)


def test_offsets_may_be_int64(launched):
    with jax.enable_x64(True):
        graph = _weighted()
        graph = dataclasses.replace(graph, indptr=graph.indptr.astype(jnp.int64), plan=None)
        kept = ops.maxk(random_array((NODES, 16), "float32", seed=3), 3, implementation="xla")
        for op, features in ((ops.spmm, kept.todense()), (ops.maxk_spmm, kept)):
            actual = op(graph, features, implementation="ffi")
            assert_close(actual, op(graph, features, implementation="xla"), reduction_length=600)


@pytest.mark.costly(4)
@pytest.mark.parametrize("by", ["value", "magnitude"])
@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize("dim", [1, 100, 256, 301, 1024])
def test_maxk_has_the_bits_of_the_reference(dim, dtype, by, launched):
    x = np.array(random_array((2, 9, dim), "float32", seed=5, scale=10.0))
    x[0, 0] = 0.0
    x[0, 1] = np.where(np.arange(dim) % 2, -0.0, 0.0)
    x[0, 2] = np.round(x[0, 2])  # ties
    x[0, 3, ::2] = np.nan
    x[0, 4] = np.inf
    x[0, 5, ::3] = -np.inf
    x[0, 6] = 1.0 + 1e-6 * x[0, 6]
    x = jnp.asarray(x).astype(dtype)
    for k in sorted({1, (dim + 2) // 3, dim}):
        kept = ops.maxk(x, k, by=by, implementation="ffi")
        assert_bit_equal(kept, ops.maxk(x, k, by=by, implementation="xla"))
        dense = ops.todense(kept, implementation="ffi")
        assert_bit_equal(dense, ops.todense(kept, implementation="xla"))
        assert_bit_equal(maxk_calls.gather_columns_cuda(x, kept.indices), kept.values)
    mapped = jax.vmap(lambda x: ops.maxk(x, 1, by=by, implementation="ffi"))(x)
    assert_bit_equal(mapped, ops.maxk(x, 1, by=by, implementation="xla"))


# -- compilation -----------------------------------------------------------------------------------


def _lowered(graph, dtype):
    """The text of a program for CUDA that calls all kernels that a graph can need."""

    def run(graph, weights, x):
        kept = ops.maxk(x, 16, implementation="ffi")

        def of(weights, values):
            of_weights = graph.with_weights(weights)
            same = dataclasses.replace(kept, values=values)
            sums = ops.maxk_spmm(of_weights, same, implementation="ffi")
            dense = ops.todense(same, implementation="ffi")
            return sums + ops.spmm(of_weights, dense, implementation="ffi")

        y, pull_back = jax.vjp(of, weights, kept.values)
        return pull_back(y), maxk_calls.gather_columns_cuda(x, kept.indices)

    traced = jax.jit(run).trace(graph, graph.weights, jnp.ones((graph.num_cols, 64), dtype))
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def _programs_of_all_sources(monkeypatch):
    """Names and kernels of programs that hold every source, in two dtypes."""
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    # Sizes of their own: a program that was traced for the emulator would be found again.
    weights = np.ones(47, np.float32)
    graph = CSRGraph.from_edges(np.arange(47) % 41, np.arange(47) % 41, 41, weights=weights)
    texts = [_lowered(graph, dtype) for dtype in DTYPES]
    monkeypatch.setattr(_parts, "on_gpu", lambda: True)
    in_blocks = dataclasses.replace(graph, plan=None).prepared()
    texts += [_lowered(in_blocks, dtype) for dtype in DTYPES]
    calls = re.findall(r'kernels = "([^"]+)".*?program = "(cuda:[^"]+)"', "".join(texts))
    return {name: kernels for kernels, name in calls}


@pytest.mark.costly
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_nvrtc_compiles_every_kernel_for(capability, monkeypatch):
    programs = _programs_of_all_sources(monkeypatch)
    files = {name.partition(":")[2].partition("|")[0] for name in programs}
    assert files == {path.stem for path in _launch.FOLDER.glob("*.cu")}
    for name, kernels in programs.items():
        binary = _nvrtc.compiled(_programs.source(name), capability)
        for kernel in kernels.split(","):
            assert f".text.{kernel}\0".encode() in binary


def test_a_gpu_that_is_newer_than_nvrtc_gets_ptx():
    binary = _nvrtc.compiled('extern "C" __global__ void kernel() {}', 999)
    assert b".target sm_" in binary and binary.endswith(b"\0")


def test_an_error_has_the_file_and_the_line(monkeypatch, tmp_path):
    (tmp_path / "number.h").write_text("// Numbers.\n")
    (tmp_path / "part.h").write_text("// A part.\nconstexpr int kPart = 1;\n")
    (tmp_path / "wrong.cu").write_text(
        '#include "part.h"\n#include "part.h"\n\n__device__ int x = y;\n'
    )
    monkeypatch.setattr(_launch, "FOLDER", tmp_path)
    with pytest.raises(_nvrtc.CompilationError) as error:
        _nvrtc.compiled(_programs.source("cuda:wrong||"), 90)
    assert re.search(r'for sm_90: wrong\.cu\(4\): error: identifier "y"', str(error.value))


@pytest.mark.parametrize(
    "name", ["spmm|int f() { return 1; }|", "../spmm||", "spmm||int x)", "spmm|", "spmm||\nint x;"]
)
def test_the_name_of_a_program_holds_no_code(name):
    with pytest.raises(ValueError, match="is damaged"):
        _programs.source(f"cuda:{name}")


def test_without_nvrtc_nothing_is_compiled_and_the_reason_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_nvrtc, "nvrtc_path", lambda: None)
    with pytest.raises(_nvrtc.CompilationError, match="pip install nvidia-cuda-nvrtc"):
        _nvrtc.compiled("", 90)


@pytest.mark.parametrize(
    "path, what", [("/no/libnvrtc.so.13", "cannot open"), ("libc.so.6", "nvrtc")]
)
def test_an_nvrtc_that_can_not_be_used_is_a_reason(path, what, monkeypatch):
    monkeypatch.setattr(_nvrtc, "nvrtc_path", lambda: path)
    assert what in _nvrtc.problem()


@pytest.mark.parametrize("name, most", [("T4", 14336), ("RTX4090", 16384), ("H100", 16384)])
def test_rows_fit_the_shared_memory_of_the_gpu(name, most, monkeypatch):
    monkeypatch.setattr(_chip, "_current", lambda: Chip.named(name))
    kept = ops.maxk(jnp.ones((NODES, most + 1)), 1, implementation="xla")
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    with pytest.raises(NotImplementedError, match=f"at most {most} columns, got {most + 1}"):
        ops.maxk_spmm(_graph(), kept, implementation="ffi")


@pytest.mark.parametrize("name", ["T4", "RTX4090", "A100", "H100", "B200"])
def test_launches_fit_the_gpu(name, monkeypatch):
    monkeypatch.setattr(_chip, "_current", lambda: Chip.named(name))
    launches = []

    def call_many(target, results, *operands, **attributes):
        launches.append(np.reshape(attributes["launches"], (-1, len(_launch.Launch._fields) - 1)))
        return [jnp.zeros(shape, dtype) for shape, dtype in results]

    monkeypatch.setattr(_launch, "call_many", call_many)
    monkeypatch.setattr(_parts, "on_gpu", lambda: True)
    graph = _graph()
    in_blocks = dataclasses.replace(graph, plan=None).prepared()
    for dtype in DTYPES:
        for dim in (64, 1100, 8000, 14336):
            x = jnp.zeros((NODES, dim), dtype)
            kept = ops.maxk(x, 40, implementation="xla")
            spmm_calls.spmm_cuda(graph, x)
            spmm_calls.sddmm_cuda(graph, x, x)
            maxk_spmm_calls.maxk_spmm_cuda(graph, kept)
            maxk_spmm_calls.grad_weights_cuda(graph, kept, x)
            for one in (graph, in_blocks):
                maxk_spmm_calls.grad_values_cuda(one, kept, x)
        maxk_calls.maxk_cuda(jnp.zeros((9, 1024)), k=1024, by="value", early_stop=None)
    rows = [_launch.Launch("", *row) for row in np.concatenate(launches)]
    assert max(row.shared_bytes for row in rows) <= Chip.named(name).block_bytes
    assert max(row.threads_x * row.threads_y for row in rows) <= 1024
    assert min(min(row[2:6]) for row in rows) >= 1
