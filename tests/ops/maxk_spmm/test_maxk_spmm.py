"""maxk_spmm against the dense product of the expanded features."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import _ffi, deterministic, ops
from jaxgnn.graph import CBSR, CSRGraph, column_dtype
from jaxgnn.graph.csr import rows as _rows
from jaxgnn.graph.plan import built_parts as _parts
from jaxgnn.graph.plan import edge_blocks as _edge_blocks
from jaxgnn.ops._maxk_spmm.maxk_spmm import (
    BREAK_EVEN,
    FORWARD,
    GRAD_VALUES,
    BreakEven,
    break_even,
    is_worth_it,
    plan_kernels,
)
from jaxgnn.ops._maxk_spmm.reference import maxk_spmm as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.dispatch import Plan, current_platform, resolve
from jaxgnn.testing import (
    DTYPES,
    MAXK_SHAPES,
    assert_bit_equal,
    check_against_float64,
    check_numerical_gradients,
    random_array,
)
from tests.ops._table import BUILT, longest_row, usable

IMPLEMENTATIONS = usable(FORWARD)


def _kept(num_nodes, dim, k, dtype, seed=0) -> CBSR:
    return ops.maxk(random_array((num_nodes, dim), dtype, seed=seed, scale=3.0), k)


@functools.cache
def _longest_row(name):
    return longest_row(BUILT[name])


@functools.cache
def _columns(num_nodes, dim, k, dtype):
    return _kept(num_nodes, dim, k, dtype)


def _arguments(name, kept, weights, values):
    graph = BUILT[name]
    weighted = graph if graph.weights is None else graph.with_weights(weights)
    return weighted, CBSR(values, kept.indices, kept.dim)


@functools.cache  # one function for each case, so that it is compiled once
def _reference(name, dim, k, dtype):
    kept = _columns(BUILT[name].num_cols, dim, k, dtype)
    return lambda weights, values: reference.maxk_spmm(*_arguments(name, kept, weights, values))


def _check(name, dim, k, dtype, implementation):
    graph = BUILT[name]
    kept = _columns(graph.num_cols, dim, k, dtype)
    check_against_float64(
        lambda w, v: ops.maxk_spmm(*_arguments(name, kept, w, v), implementation=implementation),
        _reference(name, dim, k, dtype),
        jnp.zeros(()) if graph.weights is None else graph.weights,
        kept.values,
        reduction_length=max(_longest_row(name), dim),
    )


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
@pytest.mark.parametrize("name", BUILT)
def test_value_and_gradients_equal_float64_on_every_graph(name, implementation):
    _check(name, 24, 5, "float32", implementation)


@pytest.mark.costly
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "k"), MAXK_SHAPES)
def test_value_and_gradients_equal_float64_at_every_k(dim, k, dtype, implementation):
    _check("padding_edges", dim, k, dtype, implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bfloat16_is_accumulated_in_float32(implementation):
    graph = BUILT["one_row_has_all_edges"]
    kept = _kept(graph.num_cols, 32, 8, "bfloat16")
    y = ops.maxk_spmm(graph, kept, implementation=implementation)
    with jax.enable_x64(True):
        wide = CBSR(kept.values.astype(jnp.float64), kept.indices, 32)
        exact = np.asarray(reference.maxk_spmm(graph, wide))
    # 700 terms summed in bfloat16 would be off by several per cent.
    error = np.linalg.norm(np.asarray(y).astype(np.float64) - exact) / np.linalg.norm(exact)
    assert error < 3e-3


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_agree_with_finite_differences(implementation):
    graph = BUILT["repeated_edges"].with_weights(random_array((12,), "float32", seed=3))
    kept = _kept(3, 6, 2, "float32")
    check_numerical_gradients(
        lambda w, v: ops.maxk_spmm(
            graph.with_weights(w), CBSR(v, kept.indices, 6), implementation=implementation
        ),
        graph.weights,
        kept.values,
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_leading_axes_share_the_graph(implementation):
    graph = BUILT["weighted"]
    x = random_array((2, 2, graph.num_cols, 12), "float32", seed=6)
    kept = ops.maxk(x, 4)
    batched = ops.maxk_spmm(graph, kept, implementation=implementation)
    for i in range(2):
        for j in range(2):
            alone = ops.maxk_spmm(graph, ops.maxk(x[i, j], 4), implementation=implementation)
            np.testing.assert_allclose(batched[i, j], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_vmap_of_grad_equals_one_by_one(implementation):
    graph = BUILT["sym_weighted"]
    x = random_array((3, graph.num_cols, 12), "float32", seed=7)

    def gradients(x):
        def loss(weights, x):
            kept = ops.maxk(x, 4)
            y = ops.maxk_spmm(graph.with_weights(weights), kept, implementation=implementation)
            return jnp.sum(y**2)

        return jax.grad(loss, argnums=(0, 1))(graph.weights, x)

    batched = jax.jit(jax.vmap(gradients))(x)
    for i in range(3):
        for together, alone in zip(batched, gradients(x[i]), strict=True):
            np.testing.assert_allclose(together[i], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("forward", IMPLEMENTATIONS)
def test_repeated_runs_are_equal_to_the_bit(forward):
    if current_platform() != "cpu":
        pytest.skip("reason: on a GPU only jaxgnn.deterministic() promises this, see test_dispatch")
    graph = BUILT["hub_row_spans_tasks"]
    kept = _kept(graph.num_cols, 32, 4, "float32")

    def run():
        def loss(values):
            y = ops.maxk_spmm(graph, CBSR(values, kept.indices, 32), implementation=forward)
            return jnp.sum(jnp.sin(y))

        return jax.value_and_grad(loss)(kept.values)

    first = run()
    for _ in range(3):
        assert_bit_equal(first, run())


# What None takes of maxk_spmm and of spmm, where there are a library and NVRTC.
COMPILED = {"cpu": ("ffi", "ffi"), "cuda": ("pallas", "ffi")}


@pytest.fixture
def called(monkeypatch):
    """The kernels that ops ask for, and which implementation ``None`` takes here of each."""
    chosen, call = {}, Plan.__call__

    def record(plan, *args):
        chosen[plan.kernel.name] = plan.here
        return call(plan, *args)

    monkeypatch.setattr(Plan, "__call__", record)
    return chosen


def test_none_falls_through_to_dense_spmm_beyond_the_break_even(called):
    graph = BUILT["weighted"]
    dim = 128
    limit = break_even(current_platform(), "float32", graph.num_cols, dim, degree=0)

    def kernels(k):
        called.clear()
        kept = _kept(graph.num_cols, dim, k, "float32")
        jax.jit(lambda kept: ops.maxk_spmm(graph, kept)).trace(kept)
        return called.get("maxk_spmm"), called.get("spmm")

    sparse, dense = COMPILED[current_platform()]
    assert kernels(int(limit * dim)) == (sparse, None)
    assert kernels(int(limit * dim) + 1) == (None, dense)


@pytest.mark.parametrize(
    "many_edges, dtype, faster",
    [(True, "float32", "pallas"), (False, "float32", "ffi"), (False, "bfloat16", "pallas")],
)
@pytest.mark.parametrize("is_built", [True, False])
def test_none_takes_the_gradient_that_was_faster_on_a_gpu(
    many_edges, dtype, faster, is_built, monkeypatch
):
    if GRAD_VALUES.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {GRAD_VALUES.unavailable('pallas', 'cuda')}")
    missing = None if is_built else "needs the compiled library"
    entry = GRAD_VALUES.implementations["ffi"]
    entry = dataclasses.replace(entry, missing=lambda platform: missing)
    monkeypatch.setitem(GRAD_VALUES.implementations, "ffi", entry)
    monkeypatch.setattr(_ffi, "why_missing", lambda platform: missing)
    monkeypatch.setattr(_parts, "on_gpu", lambda: True)
    if many_edges:
        monkeypatch.setattr(_edge_blocks, "_rows_of_blocks", lambda *sizes: ((208, 416), True))
    graph = dataclasses.replace(BUILT["weighted"], plan=None).prepared()
    kept = _kept(graph.num_cols, 128, 4, dtype)
    dy = jnp.zeros((graph.num_rows, 128), dtype)
    assert GRAD_VALUES.choose("cuda", graph, kept, dy) == (faster if is_built else "pallas")
    with deterministic():
        assert GRAD_VALUES.choose("cuda", graph, kept, dy) == "pallas"


def test_a_traced_graph_is_not_planned_to_choose_its_gradient(monkeypatch):
    monkeypatch.setattr(_ffi, "why_missing", lambda platform: None)
    monkeypatch.setattr(
        _rows, "make_traced_plan", lambda *arrays, **options: pytest.fail("planned")
    )
    not_worth = GRAD_VALUES.implementations["pallas"].not_worth
    graph, kept = BUILT["weighted"], _kept(BUILT["weighted"].num_cols, 128, 4, "float32")

    def reason(indptr, indices):
        traced = CSRGraph(indptr, indices, None, num_cols=graph.num_cols)
        assert "unless there are blocks" in not_worth(
            traced, kept, jnp.zeros((len(indptr) - 1, 128))
        )

    jax.eval_shape(reason, graph.indptr, graph.indices)


def test_none_takes_the_dense_product_where_no_k_sparse_kernel_runs(monkeypatch, called):
    graph = BUILT["weighted"]
    kept = _kept(graph.num_cols, 128, 1, "float32")
    monkeypatch.setattr(type(FORWARD), "why_not", _refuse(type(FORWARD).why_not))
    called.clear()
    jax.jit(lambda kept: ops.maxk_spmm(graph, kept)).trace(kept)
    assert "maxk_spmm" not in called
    assert called["spmm"] == COMPILED[current_platform()][1]


def _refuse(original):
    """``why_not`` as it would be without the kernels of ``FORWARD``."""

    def why_not(self, name, *args, **options):
        if self is FORWARD and name != "xla":
            return "does not run here"
        return original(self, name, *args, **options)

    return why_not


def test_break_even_takes_the_first_row_that_fits_and_is_zero_for_unknown_dtypes(monkeypatch):
    rows = (
        BreakEven("float32", dim=128, mib=1, degree=50, ratio=0.75),
        BreakEven("float32", dim=128, mib=1, degree=0, ratio=0.5),
        BreakEven("float32", dim=128, mib=0, degree=0, ratio=0.25),
        BreakEven("float32", dim=1, mib=0, degree=0, ratio=0.125),
    )
    monkeypatch.setitem(BREAK_EVEN, "cpu", rows)
    mib = 2**20 // (4 * 128)  # rows of 128 floats
    assert break_even("cpu", "float32", mib, 128, 50.0) == 0.75
    assert break_even("cpu", "float32", mib, 128, 49.9) == 0.5
    assert break_even("cpu", "float32", mib - 1, 128, 50.0) == 0.25
    assert break_even("cpu", "float32", 10 * mib, 127, 50.0) == 0.125
    assert break_even("cpu", "float16", mib, 128, 50.0) == 0.0
    for platform in ("cpu", "cuda"):
        assert break_even(platform, "float16", mib, 256, 50.0) == 0.0


@pytest.mark.parametrize(
    "dtype, degree, narrow, wide, otherwise",
    [
        ("float32", 50, 0.5, 0.5, 0.25),
        ("float32", 49, 0.5, 0.375, 0.25),
        ("float32", 9, 0.25, 0.25, 0.25),
        ("bfloat16", 50, 0.25, 0.25, 0.125),
        ("bfloat16", 49, 0.25, 0.125, 0.125),
        ("bfloat16", 9, 0.125, 0.125, 0.125),
    ],
)
def test_none_takes_larger_k_on_a_gpu_where_rows_have_many_edges_in_blocks(
    monkeypatch, dtype, degree, narrow, wide, otherwise
):
    monkeypatch.setattr(_parts, "on_gpu", lambda: True)
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    nodes = 20
    senders = np.arange(nodes * degree) % nodes
    graph = CSRGraph.from_edges(senders, np.sort(senders), nodes)
    prepared = dataclasses.replace(graph, plan=None).prepared()
    row_by_row = dataclasses.replace(prepared.made_plan(), edge_blocks=())

    def takes_k_sparse(graph, dim, k):
        values, columns = jnp.zeros((nodes, k), dtype), jnp.zeros((nodes, k), column_dtype(dim))
        return _takes_k_sparse(graph, CBSR(values, columns, dim))

    def check(graph, dim, ratio):
        assert takes_k_sparse(graph, dim, int(ratio * dim))
        assert not takes_k_sparse(graph, dim, int(ratio * dim) + 1)

    check(prepared, 64, narrow)
    check(prepared, 72, wide)
    check(prepared, 256, wide)
    check(prepared, 264, otherwise)
    check(dataclasses.replace(prepared, plan=row_by_row), 64, otherwise)
    with deterministic():
        check(prepared, 64, otherwise)


def _takes_k_sparse(graph, kept):
    return is_worth_it(plan_kernels(resolve("maxk_spmm", None), graph, kept), graph, kept)


@pytest.mark.parametrize("platform, dtype", [("cpu", "float32"), ("cuda", "float16")])
def test_no_plan_is_made_to_choose_where_none_is_needed(monkeypatch, platform, dtype):
    monkeypatch.setattr(dispatch, "current_platform", lambda: platform)
    monkeypatch.setattr(CSRGraph, "made_plan", lambda self: pytest.fail("planned"))
    graph = CSRGraph.from_edges([0, 1], [1, 0], 2)
    kept = CBSR(jnp.zeros((2, 1), dtype), jnp.zeros((2, 1), jnp.uint8), 64)
    assert _takes_k_sparse(graph, kept) == (platform == "cpu" and "ffi" in IMPLEMENTATIONS)


def test_rows_without_edges_are_zero_not_left_over_memory():
    graph = CSRGraph.from_edges([0], [1], 600)
    kept = _kept(600, 256, 32, "float32")
    for implementation in IMPLEMENTATIONS:
        for _ in range(3):  # a fresh buffer may hold anything
            jnp.full((600, 256), jnp.nan).block_until_ready()
            y = np.asarray(ops.maxk_spmm(graph, kept, implementation=implementation))
            assert not np.delete(y, 1, axis=0).any()
