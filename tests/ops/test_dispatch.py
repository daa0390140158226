"""Choosing implementations: names never fall back, None always works, settings retrace."""

import functools
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxgnn import (
    CBSR,
    CSRGraph,
    Incidence,
    _info,
    default_implementation,
    deterministic,
    ops,
)
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.registry import OPS
from jaxgnn.testing import assert_bit_equal, random_array
from tests.ops._table import BUILT

ROOT = Path(__file__).parent.parent.parent
GRAPH = BUILT["weighted"]
BARE = GRAPH.without_weights()
SMALL = CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 3)
X = random_array((GRAPH.num_cols, 8), "float32", seed=0)
ON_CPU = dispatch.current_platform() == "cpu"


def _targets(function, *args) -> str:
    return jax.jit(function).lower(*args).as_text()


def test_a_named_implementation_is_the_one_that_runs():
    assert "jaxgnn_spmm" not in _targets(lambda x: ops.spmm(GRAPH, x, implementation="xla"), X)
    assert "jaxgnn_spmm" in _targets(lambda x: ops.spmm(GRAPH, x, implementation="ffi"), X)


@pytest.mark.lowers
def test_none_takes_the_compiled_kernel_on_cpu_and_lowers_for_cuda_too():
    from jaxgnn.ops._maxk_spmm.maxk_spmm import FORWARD

    request = dispatch.resolve("test", None)
    for op, target, on_cuda in (
        (lambda x: ops.spmm(GRAPH, x), "jaxgnn_spmm", 'program = "cuda:spmm'),
        (lambda x: FORWARD(request, GRAPH, ops.maxk(x, 1)), "jaxgnn_maxk_spmm", "mosaic_gpu"),
    ):
        traced = jax.jit(op).trace(X)
        assert target in traced.lower(lowering_platforms=("cpu",)).as_text()
        assert on_cuda in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_a_name_without_an_implementation_says_what_it_needs():
    needs = r"mhc_expand\[pallas\]: needs .*xla.*got pallas"
    with pytest.raises(NotImplementedError, match=needs):
        ops.mhc_expand(X, 4, implementation="pallas")


def test_without_mosaic_gpu_the_pallas_kernels_are_passed_over(monkeypatch):
    from jaxgnn.ops._maxk_spmm.maxk_spmm import FORWARD

    dispatch.no_mosaic_gpu.cache_clear()
    monkeypatch.setitem(sys.modules, "pallas_kernels.simt", None)
    try:
        assert "Mosaic GPU" in str(FORWARD.unavailable("pallas", "cuda"))
        assert FORWARD.choose("cuda", GRAPH, ops.maxk(X, 1)) != "pallas"
        assert ops.maxk_spmm(GRAPH, ops.maxk(X, 1)).shape == (GRAPH.num_rows, 8)
    finally:
        dispatch.no_mosaic_gpu.cache_clear()


@pytest.mark.skipif(not ON_CPU, reason="reason: Pallas kernels run on a GPU")
def test_a_name_on_the_wrong_platform_says_what_it_needs():
    with pytest.raises(NotImplementedError, match=r"spmm\[pallas\]: needs platform cuda, got cpu"):
        ops.spmm(GRAPH, X, implementation="pallas")


def test_a_name_with_an_unsupported_dtype_says_what_it_needs():
    needs = "float32 or bfloat16 values, got float16"
    with pytest.raises(NotImplementedError, match=rf"spmm\[ffi\]: needs {needs}"):
        ops.spmm(GRAPH, X.astype(jnp.float16), implementation="ffi")


def test_what_a_cuda_kernel_does_not_take_is_told_before_it_is_launched():
    from jaxgnn.ops._graph.spmm import SDDMM, SPMM
    from jaxgnn.ops._maxk.maxk import MAXK
    from jaxgnn.ops._maxk_spmm.maxk_spmm import FORWARD, GRAD_VALUES

    def reason(kernel, *args, **options):
        return kernel.implementations["ffi"].unsupported("cuda", *args, **options)

    exact = {"k": 3, "by": "value", "early_stop": None}
    wide = jnp.zeros((GRAPH.num_cols, 20_000))
    kept = CBSR(wide[:, :3], jnp.zeros((GRAPH.num_cols, 3), jnp.uint16), 20_000)
    assert "at most 1024 columns, got 20000" in reason(MAXK, wide, **exact)
    assert "early_stop None" in reason(MAXK, X, **(exact | {"early_stop": 2}))
    assert "at most 16384 columns, got 20000" in reason(FORWARD, GRAPH, kept)
    assert "at most 16384 columns, got 20000" in reason(GRAD_VALUES, GRAPH, kept, wide)
    assert "at most 16384 columns, got 20000" in reason(SDDMM, GRAPH, wide, wide)
    assert reason(SPMM, GRAPH, wide) is None
    assert reason(MAXK, X, **exact) is None
    cpu = MAXK.implementations["ffi"].unsupported("cpu", wide, **(exact | {"early_stop": 2}))
    assert cpu is None


def test_none_falls_back_to_xla_for_an_unsupported_dtype():
    half = X.astype(jnp.float16)
    y = ops.spmm(GRAPH, half)
    assert y.dtype == jnp.float16
    assert_bit_equal(y, ops.spmm(GRAPH, half, implementation="xla"))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_weights_of_any_dtype_leave_the_kernel_that_the_features_have(dtype):
    with jax.enable_x64(True):
        weights = np.asarray(GRAPH.weights, dtype)
        graph = GRAPH.with_weights(weights)

        def run(x, weights):
            return ops.spmm(graph.with_weights(weights), x)

        assert "jaxgnn_spmm" in _targets(run, X, graph.weights)
        dx, dweights = jax.grad(lambda *args: jnp.sum(run(*args)), argnums=(0, 1))(X, graph.weights)
        assert (dx.dtype, dweights.dtype) == (X.dtype, graph.weights.dtype)
        np.testing.assert_allclose(
            run(X, graph.weights), ops.spmm(graph, X, implementation="xla"), rtol=1e-5, atol=1e-5
        )


def test_float64_runs_in_float64():
    with jax.enable_x64(True):
        wide = X.astype(jnp.float64) * (1 + 1e-12)
        dense = np.zeros(GRAPH.shape)
        np.add.at(dense, (np.asarray(GRAPH.receivers()), GRAPH.indices), np.asarray(GRAPH.weights))
        np.testing.assert_allclose(ops.spmm(GRAPH, wide), dense @ np.asarray(wide), rtol=1e-12)


def test_session_default_applies_and_never_falls_back():
    with default_implementation("xla"):
        assert "jaxgnn_spmm" not in _targets(lambda x: ops.spmm(GRAPH, x), X)
        with default_implementation(None):
            assert "jaxgnn_spmm" in _targets(lambda x: ops.spmm(GRAPH, x), X)
    with default_implementation("pallas"), pytest.raises(NotImplementedError, match="pallas"):
        ops.mhc_expand(X, 4)


def test_an_argument_beats_the_session_default():
    with default_implementation("pallas"):
        ops.spmm(GRAPH, X, implementation="xla")


def test_changing_the_session_default_traces_a_jitted_function_again():
    traces = []

    @jax.jit
    def function(x):
        traces.append(dispatch.resolve("test", None).name)
        return ops.spmm(GRAPH, x)

    function(X)
    with default_implementation("xla"):
        function(X)
        function(X)
    function(X)
    assert traces == [None, "xla"]


def test_deterministic_mode_gives_equal_bits_or_refuses():
    def gradient(x):
        return jax.grad(lambda x: jnp.sum(ops.spmm(GRAPH, x) ** 2))(x)

    with deterministic():
        if ON_CPU:
            first = gradient(X)
            for _ in range(3):
                assert_bit_equal(first, gradient(X))
        else:
            with pytest.raises(NotImplementedError, match="deterministic"):
                ops.spmm(GRAPH, X, implementation="xla")


def test_the_backward_pass_keeps_the_mode_of_its_forward_pass(monkeypatch):
    from jaxgnn.ops._graph.spmm import SPMM

    seen = []
    original = dispatch.Kernel.choose

    def spy(self, *args, **options):
        if self is SPMM:
            seen.append(dispatch._deterministic.value)
        return original(self, *args, **options)

    monkeypatch.setattr(dispatch.Kernel, "choose", spy)
    if ON_CPU:
        with deterministic():
            _, pull_back = jax.vjp(lambda x: ops.spmm(GRAPH, x), X)
        pull_back(X)
        assert len(seen) >= 4
        assert all(seen)


def test_a_bare_concrete_graph_is_checked_and_planned_once():
    bare = CSRGraph(GRAPH.indptr, GRAPH.indices, GRAPH.weights)
    first = ops.spmm(bare, X)
    plan = bare.prepared().plan
    np.testing.assert_allclose(first, ops.spmm(bare, X), rtol=1e-5, atol=1e-5)
    assert bare.prepared().plan is plan
    outside = CSRGraph(GRAPH.indptr, GRAPH.indices.at[3].set(99))
    for implementation in ("xla", None):
        with pytest.raises(ValueError, match=r"indices\[3\].*99"):
            ops.spmm(outside, X, implementation=implementation)


def test_int64_offsets_give_the_same_values_and_gradients():
    def run(graph, x):
        kept = ops.maxk(x, 3)
        return jax.value_and_grad(
            lambda v: jnp.sum(ops.maxk_spmm(graph, CBSR(v, kept.indices, 8)) ** 2)
        )(kept.values)

    expected = run(GRAPH, X)
    with jax.enable_x64(True):
        wide = CSRGraph(GRAPH.indptr.astype(jnp.int64), GRAPH.indices, GRAPH.weights)
        for graph in (wide, wide.prepared().validate()):
            for actual, oracle in zip(run(graph, X), expected, strict=True):
                np.testing.assert_allclose(actual, oracle, rtol=1e-5, atol=1e-5)


def test_deterministic_mode_refuses_xla_scatters_on_a_gpu():
    from jaxgnn.ops._graph.spmm import SPMM

    with deterministic():
        assert SPMM.unavailable("xla", "cpu") is None
        assert "xla_gpu_deterministic_ops" in SPMM.unavailable("xla", "cuda")
    assert SPMM.unavailable("xla", "cuda") is None


@pytest.mark.parametrize("implementation", ["xla", "ffi"] if ON_CPU else ["xla"])
def test_shard_map_over_features_gives_the_whole_and_sums_weight_gradients(
    implementation, four_devices
):
    mesh = Mesh(four_devices, ("features",))
    spec = PartitionSpec(None, "features")

    def loss(weights, x, wrap):
        def apply(weights, x):
            return ops.spmm(GRAPH.with_weights(weights), x, implementation=implementation)

        return jnp.sum(wrap(apply)(weights, x) ** 2)

    sharded = functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(PartitionSpec(), spec), out_specs=spec
    )
    expected = jax.value_and_grad(loss, argnums=(0, 1))(GRAPH.weights, X, lambda f: f)
    actual = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), static_argnums=2)(
        GRAPH.weights, X, sharded
    )
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", ["xla", "ffi"] if ON_CPU else ["xla"])
def test_shard_map_over_a_batch_of_features_runs_every_op(implementation, four_devices):
    mesh = Mesh(four_devices, ("batch",))
    batch = random_array((4, GRAPH.num_cols, 8), "float32", seed=1)

    def network(x):
        kept = ops.maxk(x, 3, implementation=implementation)
        y = ops.maxk_spmm(GRAPH, kept, implementation=implementation)
        scores = jax.vmap(lambda a: ops.sddmm(BARE, a, a, implementation=implementation))(y)
        attention = jax.vmap(lambda s: ops.segment_softmax(BARE, s, implementation=implementation))(
            scores / 100
        )
        return y + jnp.sum(attention)

    spec = PartitionSpec("batch")
    sharded = jax.shard_map(network, mesh=mesh, in_specs=spec, out_specs=spec)

    def loss(function):
        return lambda x: jnp.sum(function(x) ** 2)

    one_by_one = jax.jit(jax.vmap(lambda x: network(x[None])[0]))
    actual = jax.jit(jax.grad(loss(sharded)))(batch)
    expected = jax.jit(jax.grad(loss(one_by_one)))(batch)
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-2)
    if implementation == "ffi":  # outside of jit too, where absent operands once ended the process
        np.testing.assert_allclose(sharded(batch), one_by_one(batch), rtol=1e-5, atol=1e-4)


def test_numpy_arrays_are_of_the_dtype_that_jax_gives_them():
    """Of float64, without x64, that is float32, which is what parameters then are."""
    x, kernel, bias = (
        np.random.default_rng(i).normal(size=s) for i, s in enumerate(((3, 4), (4, 2), 2))
    )
    narrow = [jnp.asarray(array, jnp.float32) for array in (x, kernel, bias)]
    hypergraph = Incidence.from_hyperedges([{0, 1}, {1, 2}], 3)
    pairs = [jnp.concatenate([k, k]) for k in (kernel, narrow[1])]
    for implementation in (None, "xla"):
        named = {"implementation": implementation}

        def results(x, kernel, bias, pair, named=named):
            return (
                ops.fused_linear(x, kernel, bias, **named),
                ops.fused_mlp(x, [kernel], [bias], activation=None, **named),
                ops.sddmm(SMALL, x, x, **named),
                ops.hypergraph_conv(x, hypergraph, kernel=kernel, bias=bias, **named),
                ops.edge_mlp_aggregate(SMALL, x, ops.EdgeMLPParams((pair,), (bias,)), **named),
                ops.mhc_post(
                    x, x[0], np.ones((3,), np.float32), np.eye(3, dtype=np.float32), **named
                ),
            )

        actual, expected = results(x, kernel, bias, pairs[0]), results(*narrow, pairs[1])
        for a, e in zip(actual, expected, strict=True):
            assert a.dtype == jnp.float32
            np.testing.assert_array_equal(a, e)
        # The features alone, beside parameters of JAX.
        assert ops.fused_linear(x, narrow[1], **named).dtype == jnp.float32


def test_info_names_every_op_of_the_docs():
    table = re.findall(r"^\|.*$", (ROOT / "docs/ops/index.md").read_text(), re.M)
    named = set(re.findall(r"\((\w+)\.md\)", "\n".join(table)))
    assert named == {op.name for op in OPS}
    known = {kernel.name.partition(".")[0] for kernel in _info.kernels()}
    assert {name for op in OPS for name in op.functions} <= known
    assert "hypergraph_conv               ffi     that of spmm" in _info.report()


def test_info_tells_of_every_implementation_in_the_tables_of_the_ops():
    tables = [
        (module.__name__, table)
        for name, module in list(sys.modules.items())
        if name.startswith("jaxgnn.")
        for table in vars(module).values()
        if isinstance(table, dispatch.Kernel)
    ]
    rows = dict(re.findall(r"^  (\S+ +\w+) +(.+)$", _info.report(), re.M))
    rows = {tuple(key.split()): told for key, told in rows.items()}
    for where, table in tables:
        for name in table.implementations:
            told = rows[table.name, name]
            reason = table.unavailable(name, dispatch.current_platform())
            assert told == ("usable" if reason is None else reason), (where, table.name, name)
    for op in ("fused_linear", "fused_mlp", "edge_mlp_aggregate"):
        assert "not in this release" not in rows[op, "pallas"]
    assert {name for name, _ in rows} == {table.name for _, table in tables}


def test_graph_is_a_pytree_that_jit_takes_without_retracing_for_other_edges():
    traces = []

    @jax.jit
    def function(graph, x):
        traces.append(graph.shape)
        return ops.spmm(graph, x)

    for seed in range(3):
        rng = np.random.default_rng(seed)
        mask = rng.random(100) < 0.7
        graph = CSRGraph.from_edges(
            rng.integers(0, 20, 100), rng.integers(0, 20, 100), 20, edge_mask=mask
        )
        function(graph, jnp.ones((20, 3)))
    assert traces == [(20, 20)]
