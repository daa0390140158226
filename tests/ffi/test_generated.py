"""Generated CUDA source of tensor products: emulated on a CPU, and compiled by NVRTC."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, ops
from jaxgnn._codegen.radial_weights import RadialWeights
from jaxgnn._codegen.tensor_product import source
from jaxgnn._ffi import _launch, _library, _nvrtc
from jaxgnn._ffi import generated_tensor_product_sum as calls
from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.radial_layer import RadialLayer
from jaxgnn.ops._equivariant import layer_products
from jaxgnn.ops._equivariant.reference import tensor_product_sum as reference
from jaxgnn.ops._equivariant.tensor_product_sum import SUM
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import assert_close, random_array, to_float64
from tests.codegen._products import PRODUCTS
from tests.ffi import _emulator as emulator

KINDS = "rows", "columns", "weights", "harmonics"
CAPABILITIES = 75, 80, 89, 90, 100, 120
TANGENTS = "rows_tangent", "columns_tangent", "weights_tangent"
# Rows without edges, of a part of a tile and of three tiles, and two padding slots.
GRAPH = CSRGraph.from_edges(
    [0, 1, 2, 3, 0, 1, *(i % 4 for i in range(35)), 2, 2],
    [1] * 4 + [2] * 2 + [4] * 35 + [0, 0],
    5,
    edge_mask=[True] * 41 + [False] * 2,
)


FEATURES = {"apart": 20, "two of a degree": 6}  # of the layer that makes weights; else 16
EMULATED_BLOCKS = 3  # of those that share all rows


def _features(name):
    return FEATURES.get(name, 16)


def _sources(name):
    """All sources for a product, by their names in the emulator's library."""
    product = PRODUCTS[name]
    sources = {kind: source(product, kind) for kind in (*KINDS, *TANGENTS)}
    for kind in ("rows", "columns", "harmonics"):
        for products in (1, 3):
            radial = RadialWeights(_features(name), products, EMULATED_BLOCKS)
            sources[f"{kind}_radial_{products}"] = source(product, kind, radial)
    for paths in layer_products.parts(product):
        key = "weights_of_" + "_".join(map(str, paths))
        sources[key] = source(product, "weights", None, paths)
    return sources


def _key(program):
    """The name of a program's source in the emulator's library."""
    kind, *_, layer, paths = program.partition(":")[2].split(";")
    if layer:
        return f"{kind}_radial_{layer.split('-')[1]}"
    return kind + (f"_of_{paths.replace(',', '_')}" if paths else "")


@functools.cache
def _emulator(folder, name):
    """A library with all kernels for a product, as C++ that runs lane after lane."""
    sources = {
        key: (generated.text, [f"kernel{i}" for i in range(len(generated.launches))])
        for key, generated in _sources(name).items()
    }
    return emulator.build(folder, name.replace(" ", "_"), sources)


@pytest.fixture
def emulated(tmp_path_factory, monkeypatch):
    """Replaces the launch of generated kernels by that of their emulation, for one product."""

    def emulate(name):
        library = _emulator(tmp_path_factory.getbasetemp(), name)
        call = functools.partial(emulator.call_many, lambda program, _: (library, _key(program)))
        monkeypatch.setattr(_launch, "call_many", call)

    return emulate


def _arrays(product):
    """Arrays of a product, with NaN in padding slots."""
    shapes = {
        "x": (5, product.irreps_in.dim),
        "dy": (5, product.irreps_out.dim),
        "harmonics": (43, product.irreps_sh.dim),
        "weights": (43, product.num_weights),
    }
    arrays = {
        name: random_array(shape, "float32", seed=i)
        for i, (name, shape) in enumerate(shapes.items())
    }
    of_edges = {name: arrays[name].at[41:].set(jnp.nan) for name in ("harmonics", "weights")}
    return arrays | of_edges


# Each kind with its arrays, its call, and the reference.
CALLS = {
    "rows": (("x", "harmonics", "weights"), calls.sum_at_rows, reference.tensor_product_sum),
    "columns": (("dy", "harmonics", "weights"), calls.sum_at_columns, reference.sum_at_columns),
    "weights": (("x", "dy", "harmonics"), calls.weight_products, reference.weight_products),
    "harmonics": (("x", "dy", "weights"), calls.harmonic_products, reference.harmonic_products),
    "basis": (
        ("x", "dy", "harmonics", "kernel"),
        layer_products.basis_products,
        reference.basis_products,
    ),
    "kernel": (
        ("x", "dy", "harmonics", "basis"),
        layer_products.kernel_products,
        reference.kernel_products,
    ),
}


def _compare(name, kind, arrays, precision="highest", **limits):
    product, (names, run, plain) = PRODUCTS[name], CALLS[kind]
    options = {"product": product}
    if kind in ("basis", "kernel"):
        options |= {"precision": precision}
    with_dtype = kind not in ("rows", "columns")
    actual = run(
        GRAPH,
        *(arrays[n] for n in names),
        **options,
        **({"dtype": "float32"} if with_dtype else {}),
    )
    with jax.enable_x64(True):
        exact = [to_float64(arrays[n]) for n in names]
        expected = plain(GRAPH, *exact, **options, **({"dtype": "float64"} if with_dtype else {}))
    assert_close(actual, expected, reduction_length=40 * 7 * product.irreps_sh.dim, **limits)


@pytest.mark.costly(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_generated_kernels_compute_the_formula(name, kind, emulated):
    emulated(name)
    _compare(name, kind, _arrays(PRODUCTS[name]))


def test_entries_that_no_path_reads_have_a_gradient_of_zero(emulated):
    product = PRODUCTS["sums"]
    assert {path.i_in for path in product.paths} == {0, 1, 2}  # of four entries
    emulated("sums")
    _compare("sums", "columns", _arrays(product))


DERIVATIVES = {
    "rows_tangent": (
        calls.sum_tangent,
        reference.tensor_product_sum,
        ("x", "harmonics", "weights"),
    ),
    "columns_tangent": (calls.columns_tangent, reference.sum_at_columns, ("harmonics", "weights")),
    "weights_tangent": (calls.weights_tangent, reference.weight_products, ("x", "harmonics")),
}


@pytest.mark.costly(4)
@pytest.mark.parametrize("kind", TANGENTS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_kernels_of_tangents_compute_the_derivative(name, kind, emulated):
    emulated(name)
    product, arrays = PRODUCTS[name], _arrays(PRODUCTS[name])
    run, plain, varied = DERIVATIVES[kind]
    names = CALLS[kind.partition("_")[0]][0]
    along = {n: jnp.sin(3 * arrays[n]) for n in varied}
    given = [a for n in names for a in ((arrays[n], along[n]) if n in varied else (arrays[n],))]
    of_weights = kind == "weights_tangent"
    actual = run(GRAPH, *given, product=product, **({"dtype": "float32"} if of_weights else {}))
    with jax.enable_x64(True):
        options = {"product": product} | ({"dtype": "float64"} if of_weights else {})
        exact = [to_float64(arrays[n]) for n in names]
        tangents = [
            to_float64(along[n]) if n in varied else jnp.zeros_like(exact[i])
            for i, n in enumerate(names)
        ]
        expected = jax.jvp(lambda *a: plain(GRAPH, *a, **options), exact, tangents)[1]
    assert_close(actual, expected, reduction_length=40 * 7 * product.irreps_sh.dim)


def _layer(name, precision):
    """Arrays of a layer that makes weights, with NaN in padding slots."""
    features = _features(name)
    basis = random_array((43, features), "float32", seed=4).at[41:].set(jnp.nan)
    kernel = random_array((features, PRODUCTS[name].num_weights), "float32", seed=5)
    return {"basis": basis, "kernel": kernel, "weights": RadialLayer(basis, kernel, precision)}


@pytest.mark.costly(4)
@pytest.mark.parametrize("kind", ["rows", "columns", "harmonics", "basis", "kernel"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_kernels_that_make_weights_compute_the_formula(name, kind, emulated):
    emulated(name)
    arrays = _arrays(PRODUCTS[name]) | _layer(name, "highest")
    _compare(name, kind, arrays)


def test_gradients_to_the_kernel_have_its_order_where_parts_have_another(emulated):
    product = PRODUCTS["sums"]
    order = [path for part in layer_products.parts(product) for path in part]
    assert order != sorted(order)
    emulated("sums")
    _compare("sums", "kernel", _arrays(product) | _layer("sums", "highest"))


@pytest.mark.parametrize("kind", ["rows", "columns", "harmonics"])
def test_weights_made_in_tf32_are_those_of_rounded_numbers(kind, emulated):
    name = "two of a degree"
    emulated(name)
    rounded = {
        key: jax.lax.reduce_precision(_layer(name, "tf32")[key], 8, 10)
        for key in ("basis", "kernel")
    }
    arrays = _arrays(PRODUCTS[name])
    names, run, _ = CALLS[kind]
    options = {"product": PRODUCTS[name]} | ({"dtype": "float32"} if kind == "harmonics" else {})
    made = [
        run(GRAPH, *((arrays | {"weights": layer})[n] for n in names), **options)
        for layer in (
            _layer(name, "tf32")["weights"],
            RadialLayer(*rounded.values(), precision="highest"),
        )
    ]
    assert_close(*made, reduction_length=40)
    exact = arrays | _layer(name, "highest")
    assert not np.allclose(made[0], run(GRAPH, *(exact[n] for n in names), **options), rtol=1e-6)


@pytest.mark.costly
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", ["sums", "apart"])
def test_nvrtc_compiles_generated_sources(name, capability):
    for kind in KINDS:
        assert _nvrtc.compiled(source(PRODUCTS[name], kind).text, capability)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A GPU with or without NVRTC, as far as choosing a kernel goes."""

    def pretend(with_nvrtc):
        path = "libnvrtc.so" if with_nvrtc else None
        monkeypatch.setattr(_nvrtc, "nvrtc_path", lambda: path)
        if with_nvrtc:
            monkeypatch.setattr(_nvrtc, "problem", lambda: None)
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


MANY = 2**27  # edges, whose weights take 4 GiB


@pytest.mark.lowers
@pytest.mark.parametrize("edges, recompute", [(43, True), (43, None), (MANY, None), (MANY, False)])
def test_kernels_make_weights_on_request_or_if_all_would_take_much_memory(
    edges, recompute, on_a_gpu
):
    on_a_gpu(with_nvrtc=True)
    widths = {"harmonics": SMALL.irreps_sh.dim, "basis": 20}
    shapes = {
        name: jax.ShapeDtypeStruct((edges, width), "float32") for name, width in widths.items()
    }
    shapes["x"] = jax.ShapeDtypeStruct((5, SMALL.irreps_in.dim), "float32")
    shapes["kernel"] = jax.ShapeDtypeStruct((20, SMALL.num_weights), "float32")

    def run(indptr, indices, arrays):
        graph = CSRGraph(indptr, indices, num_cols=5)
        options = SMALL.arguments | {"recompute_weights": recompute}
        return ops.tensor_product_sum(graph, **arrays, **options)

    of_graph = [jax.ShapeDtypeStruct((size,), "int32") for size in (6, edges)]
    lowered = jax.jit(run).trace(*of_graph, shapes).lower(lowering_platforms=("cuda",)).as_text()
    (program,) = re.findall(r'program = "tensor_product_sum:rows;([^"]+)"', lowered)
    makes = recompute or (recompute is None and edges == MANY)
    assert program.endswith(";20-3-264;" if makes else ";;")
