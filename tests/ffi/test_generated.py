"""Generated CUDA source of tensor products: emulated on a CPU, and compiled by NVRTC."""

import ctypes
import functools
import re
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, _ffi, ops
from jaxgnn._ffi import _library, _nvrtc
from jaxgnn._ffi import tensor_product_sum as calls
from jaxgnn._ffi._tensor_product_source import Source, source
from jaxgnn.equivariant import TensorProduct, separate_paths
from jaxgnn.ops._equivariant.reference import tensor_product_sum as reference
from jaxgnn.ops._equivariant.tensor_product_sum import SUM
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import assert_close, random_array

HERE = Path(__file__).parent
KINDS = "rows", "columns", "weights", "harmonics"
PRODUCTS = {
    # Several paths to an entry of the result, from several entries; one entry that none reads.
    "sums": TensorProduct.of(
        "3x0e+33x1o+3x2e+7x0o",
        "0e+1o+2e+3o",
        "3x0e+33x1o+3x2e",
        [(0, 0, 0), (1, 0, 1), (1, 2, 1), (2, 0, 2), (2, 2, 2), (0, 2, 2), (2, 2, 0)],
    ),
    "apart": separate_paths("40x0e+1x1o+7x2e+7x3o", "0e+1o+2e+3o", keep="0e+1o+2e+3o"),
    "scalars": TensorProduct.of("1x0e", "0e", "1x0e"),
    # More numbers than a lane keeps at once: several passes, and several kernels of an entry.
    "wide": separate_paths("2x3o+2x4e", "0e+1o+2e+3o+4e", keep="0e+1o+2e+3o+4e+1e+2o+3e+4o"),
    "two of a degree": TensorProduct.of("5x1o", "1o+0e+1o", "5x0e+5x1o+5x2e"),
}
# Rows without edges, of a part of a tile and of three tiles, and two padding slots.
GRAPH = CSRGraph.from_edges(
    [0, 1, 2, 3, 0, 1, *(i % 4 for i in range(35)), 2, 2],
    [1] * 4 + [2] * 2 + [4] * 35 + [0, 0],
    5,
    edge_mask=[True] * 41 + [False] * 2,
)


@functools.cache
def _emulator(folder, name):
    """A library with the kernels of all kinds for a product, as C++ that runs lane after lane."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("reason: needs a C++ compiler to emulate a GPU")
    text = ['#include "emulated_warp.h"']
    for kind in KINDS:
        made = source(PRODUCTS[name], kind)
        cuda = made.text.replace("extern __shared__ __align__(16) float tables[];", "")
        runs = [
            f"call.kernel = kernel{i}; Run(call, {launch.columns}, 8);"
            for i, launch in enumerate(made.launches)
        ]
        cuda = cuda.replace('extern "C"', "static")
        text.append(f"namespace {kind} {{\n{cuda}\n}}")
        run = f'extern "C" void run_{kind}(Call call) {{ using namespace {kind};'
        text.append(" ".join([run, *runs, "}"]))
    file = folder / f"{name.replace(' ', '_')}.cc"
    file.write_text("\n".join(text))
    library = file.with_suffix(".so")
    command = [compiler, "-std=c++17", "-O0", "-w", "-fPIC", "-shared", f"-I{HERE}"]
    subprocess.run([*command, str(file), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


class _Call(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("rows", "edges")),
        *(
            (name, ctypes.c_void_p)
            for name in ("indptr", "indices", "slots", "first", "second", "third", "out")
        ),
    ]


@pytest.fixture
def emulated(tmp_path_factory, monkeypatch):
    """Replaces the call of generated kernels by that of their emulation, for one product."""

    def emulate(name):
        library = _emulator(tmp_path_factory.getbasetemp(), name)

        def call(target, result, indptr, indices, slots, *arrays, program):
            assert target == "jaxgnn_generated"
            kind = program.partition(":")[2].partition(";")[0]
            operands = [
                None if array is None else np.ascontiguousarray(array)
                for array in (indptr, indices, slots, *arrays)
            ]
            out = np.full(result[0], np.nan, np.float32)
            places = [None if array is None else array.ctypes.data for array in (*operands, out)]
            made = _Call(None, len(indptr) - 1, len(indices), *places)
            getattr(library, f"run_{kind}")(made)
            return jnp.asarray(out)

        monkeypatch.setattr(calls, "call", call)
        monkeypatch.setattr(calls._nvrtc, "add", lambda name: None)

    return emulate


def _calls(product):
    """Arrays of each kind, with NaN in padding slots; then the call, and the reference."""
    x = random_array((5, product.irreps_in.dim), "float32", seed=0)
    dy = random_array((5, product.irreps_out.dim), "float32", seed=1)
    harmonics = random_array((43, product.irreps_sh.dim), "float32", seed=2).at[41:].set(jnp.nan)
    weights = random_array((43, product.num_weights), "float32", seed=3).at[41:].set(jnp.nan)
    return {
        "rows": ((x, harmonics, weights), calls.sum_at_rows_cuda, reference.tensor_product_sum),
        "columns": ((dy, harmonics, weights), calls.sum_at_columns_cuda, reference.sum_at_columns),
        "weights": ((x, dy, harmonics), calls.weight_products_cuda, reference.weight_products),
        "harmonics": ((x, dy, weights), calls.harmonic_products_cuda, reference.harmonic_products),
    }


@pytest.mark.costly(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_generated_kernels_compute_the_formula(name, kind, emulated):
    product = PRODUCTS[name]
    arrays, run, plain = _calls(product)[kind]
    emulated(name)
    with_dtype = kind in ("weights", "harmonics")
    options = {"product": product} | ({"dtype": "float32"} if with_dtype else {})
    actual = run(GRAPH, *arrays, **options)
    with jax.enable_x64(True):
        options |= {"dtype": "float64"} if with_dtype else {}
        expected = plain(GRAPH, *(array.astype(jnp.float64) for array in arrays), **options)
    assert_close(actual, expected, reduction_length=40 * 7 * product.irreps_sh.dim)


@pytest.fixture
def needs_nvrtc():
    reason = _ffi.why_missing("nvrtc")
    if reason is not None:
        pytest.skip(f"reason: {reason}")


@pytest.mark.costly
@pytest.mark.usefixtures("needs_nvrtc")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", ["sums", "apart"])
def test_nvrtc_compiles_generated_sources(name, capability):
    for kind in KINDS:
        program = f"{calls._FAMILY}:{calls._described(PRODUCTS[name], kind)}"
        _nvrtc.add(program)
        assert _nvrtc.compile_for(program, capability) is None


@pytest.mark.usefixtures("needs_nvrtc")
def test_an_error_of_nvrtc_has_its_log():
    _nvrtc.register("no_cuda", lambda name: Source("__device__ int x = y;", ()))
    _nvrtc.add("no_cuda:x")
    problem = _nvrtc.compile_for("no_cuda:x", 90)
    assert re.search(r'sm_90: jaxgnn.cu\(1\): error: identifier "y"', problem)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A GPU with or without NVRTC, as far as choosing a kernel goes."""

    def pretend(with_nvrtc):
        path = "libnvrtc.so" if with_nvrtc else None
        monkeypatch.setattr(_nvrtc, "nvrtc_path", lambda: path)
        if with_nvrtc:
            monkeypatch.setattr(_nvrtc, "problem", lambda library: None)
        monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
        _library.why_missing.cache_clear()

    yield pretend
    _library.why_missing.cache_clear()


SMALL = TensorProduct.of("2x0e+2x1o", "0e+1o", "2x0e+2x1o")


def _shapes(dtype):
    widths = SMALL.irreps_in.dim, SMALL.irreps_sh.dim, SMALL.num_weights
    sizes = zip((5, 43, 43), widths, strict=True)
    return [jax.ShapeDtypeStruct(size, dtype) for size in sizes]


def test_without_nvrtc_the_reason_says_what_to_install_and_none_is_plain_jax(on_a_gpu):
    on_a_gpu(with_nvrtc=False)
    shapes = _shapes("float32")
    assert "pip install nvidia-cuda-nvrtc" in SUM.why_not(
        "ffi", "cuda", GRAPH, *shapes, product=SMALL
    )
    assert SUM.choose("cuda", GRAPH, *shapes, product=SMALL) == "xla"


@pytest.mark.parametrize(
    "dtype, chosen", [("float32", "ffi"), ("bfloat16", "ffi"), ("float64", "xla")]
)
def test_with_nvrtc_none_is_generated_kernels_but_for_float64(dtype, chosen, on_a_gpu):
    on_a_gpu(with_nvrtc=True)
    with jax.enable_x64(True):
        assert SUM.choose("cuda", GRAPH, *_shapes(dtype), product=SMALL) == chosen


@pytest.mark.lowers
@pytest.mark.parametrize("mapped", [False, True], ids=["one", "batch"])
def test_value_and_gradients_call_a_generated_program_for_each_kind(mapped, on_a_gpu):
    on_a_gpu(with_nvrtc=True)

    def run(*arrays):
        call = lambda *a: ops.tensor_product_sum(GRAPH, *a, **SMALL.arguments)  # noqa: E731
        value, pull = jax.vjp(call, *arrays)
        return value, pull(value)

    shapes = _shapes("float32")
    if mapped:
        run = jax.vmap(run, (0, None, None))
        shapes[0] = jax.ShapeDtypeStruct((3, *shapes[0].shape), "float32")
    text = jax.jit(run).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    names = re.findall(r'program = "tensor_product_sum:(\w+);', text)
    assert sorted(names) == sorted(KINDS)


def test_names_of_programs_say_how_to_make_them():
    for product in PRODUCTS.values():
        assert calls._source_of(calls._described(product, "rows")) is source(product, "rows")
