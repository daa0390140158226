"""Programs exported with symbolic sizes: each op at two sizes, against itself, with its gradients.

Sizes are of nodes, edges, tokens and batches; widths are known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import CSRGraph, Incidence, nn, ops
from jaxgnn._ffi import _library
from jaxgnn.models import MaxKGNN
from jaxgnn.ops._core import dispatch
from jaxgnn.ops._core.dispatch import current_platform
from jaxgnn.testing import random_array
from tests.ops.mhc import _mhc

pytestmark = pytest.mark.usefixtures("compiled_quickly")

NODES, EDGES, TOKENS, OFFSETS = "nodes", "edges", "tokens", "nodes + 1"
SCOPE = jax.export.SymbolicScope()
SIZES = {"nodes": 3, "edges": 7, "tokens": 2}, {"nodes": 5, "edges": 4, "tokens": 3}
GRAPH = CSRGraph.from_edges([0, 1, 2, 2], [1, 0, 0, 2], 3)
PHI, ALPHA, BIAS, GAMMA = _mhc.parameters(4, 64)
SQUARE, ROW = random_array((8, 8), "float32", seed=20), random_array((8,), "float32", seed=21)
WIDE = random_array((16, 8), "float32", seed=22)


class Case(NamedTuple):
    """A function of arrays, and their shapes; those named are of ids."""

    run: Callable[..., Any]
    shapes: tuple[tuple[Any, ...], ...]
    ids: tuple[str, ...] = ()


def _of_graph(run, *shapes) -> Case:
    """``run(graph, …)``, where rows, columns and edges have any number."""
    made = lambda indptr, indices, *given: run(CSRGraph(indptr, indices), *given)  # noqa: E731
    return Case(made, ((OFFSETS,), (EDGES,), *shapes), ("indptr", "nodes"))


def _of_hypergraph(nodes: int, **options) -> Case:
    parts = [list(range(0, nodes // 2)), list(range(nodes // 2 - 1, nodes))]
    hypergraph = Incidence.from_hyperedges(parts, nodes)
    if "attention" in options:
        options["attributes"] = jnp.ones((2, 8))
    run = functools.partial(ops.hypergraph_conv, incidence=hypergraph, kernel=SQUARE, **options)
    return Case(lambda x: run(x), ((TOKENS, nodes, 8),))


def _incidences(**options) -> Case:
    def run(nodes, hyperedges, x):
        return ops.hypergraph_conv(x, Incidence(nodes, hyperedges, 6, 3), **options)

    return Case(run, ((EDGES,), (EDGES,), (6, 8)), ("three", "three"))


def _messages(graph, x):
    params = ops.EdgeMLPParams((WIDE, SQUARE), (ROW, None))
    return ops.edge_mlp_aggregate(graph, x, params)


STREAMS = (TOKENS, 4, 64)
OUTPUTS = STREAMS, (TOKENS, 64), (TOKENS, 4), (TOKENS, 4, 4)
CASES = {
    "maxk": Case(lambda x: ops.maxk(x, 3).values, ((NODES, 8),)),
    "maxk by magnitude": Case(lambda x: ops.maxk(x, 3, by="magnitude").values, ((NODES, 8),)),
    "todense": Case(lambda x: ops.todense(ops.maxk(x, 3)), ((NODES, 8),)),
    "CBSR.todense": Case(lambda x: ops.maxk(x, 3).todense(), ((NODES, 8),)),
    "spmm": _of_graph(ops.spmm, (NODES, 8)),
    "spmm with weights": _of_graph(
        lambda graph, weights, x: ops.spmm(graph.with_weights(weights), x), (EDGES,), (NODES, 8)
    ),
    "spmm of heads": _of_graph(
        lambda graph, weights, x: ops.spmm(graph.with_weights(weights), x),
        (EDGES, 2),
        (NODES, 2, 4),
    ),
    "spmm of a mean": _of_graph(lambda g, x: ops.spmm(g.normalized("mean"), x), (NODES, 8)),
    "spmm, a batch": Case(lambda x: ops.spmm(GRAPH, x), ((TOKENS, 3, 8),)),
    "spmm, any width": Case(lambda x: ops.spmm(GRAPH, x), ((3, NODES),)),
    "maxk_spmm": _of_graph(lambda graph, x: ops.maxk_spmm(graph, ops.maxk(x, 3)), (NODES, 8)),
    "sddmm": _of_graph(ops.sddmm, (NODES, 8), (NODES, 8)),
    "sddmm, a batch": Case(lambda x: ops.sddmm(GRAPH, x, x), ((TOKENS, 3, 8),)),
    "segment_softmax": _of_graph(ops.segment_softmax, (EDGES, 2)),
    "segment_softmax, any heads": Case(lambda x: ops.segment_softmax(GRAPH, x), ((4, TOKENS),)),
    "aggregate": _of_graph(
        lambda graph, x: ops.aggregate(graph, x, ("max", "std", "softmax")), (EDGES, 8)
    ),
    "neighbour_reduce": _of_graph(
        lambda graph, x: ops.neighbour_reduce(graph, x, ("min", "mean"), ties="first"), (NODES, 8)
    ),
    "edge_mlp_aggregate": _of_graph(_messages, (NODES, 8)),
    "edge_mlp_aggregate, a batch": Case(lambda x: _messages(GRAPH, x), ((TOKENS, 3, 8),)),
    "fused_linear": Case(
        lambda x: ops.fused_linear(x, SQUARE, ROW, activation="gelu"), ((TOKENS, 8),)
    ),
    "fused_linear with maxk": Case(
        lambda x: ops.fused_linear(x, SQUARE, activation=ops.MaxK(3)).values, ((TOKENS, 8),)
    ),
    "fused_mlp": Case(
        lambda x: ops.fused_mlp(x, [SQUARE, SQUARE], [ROW, None], activation="silu"),
        ((TOKENS, NODES, 8),),
    ),
    "permutation_mixture": Case(ops.permutation_mixture, ((TOKENS, 6),)),
    "mhc_pre": Case(lambda x: ops.mhc_pre(x, PHI, ALPHA, BIAS, GAMMA), (STREAMS,)),
    "mhc_pre, static": Case(lambda x: ops.mhc_pre(x, None, None, BIAS), (STREAMS,)),
    "mhc_post": Case(ops.mhc_post, OUTPUTS),
    "mhc_post_pre": Case(lambda *given: ops.mhc_post_pre(*given, PHI, ALPHA, BIAS, GAMMA), OUTPUTS),
    "mhc_layer": Case(lambda x: ops.mhc_layer(jnp.tanh, x, PHI, ALPHA, BIAS, GAMMA), (STREAMS,)),
    "mhc_head": Case(lambda x: ops.mhc_head(x, PHI[:4], ALPHA[0], BIAS[:4], GAMMA), (STREAMS,)),
    "mhc_expand": Case(lambda x: ops.mhc_expand(x, 4), ((TOKENS, 64),)),
    "hypergraph_conv, 8 nodes": _of_hypergraph(8, activation="gelu"),
    "hypergraph_conv, 20 nodes": _of_hypergraph(20),
    "hypergraph_conv, 200 nodes": _of_hypergraph(200),
    "hypergraph_conv with attention": _of_hypergraph(8, attention=jnp.ones((2, 8))),
    "hypergraph_conv with attention, sums": _of_hypergraph(
        8, attention=jnp.ones((2, 8)), path="sums"
    ),
    "hypergraph_conv, any incidences": _incidences(),
    "hypergraph_conv, any incidences, sums": _incidences(path="sums"),
    "Incidence.todense": Case(
        lambda *ids: Incidence(*ids, 6, 3).todense(), ((EDGES,), (EDGES,)), ("three", "three")
    ),
    **{
        f"sinkhorn, n = {n}, {gradient}": Case(
            functools.partial(ops.sinkhorn, gradient=gradient), ((TOKENS, n, n),)
        )
        for n in (1, 4, 5)
        for gradient in ("exact", "implicit")
    },
}


def _layers() -> dict[str, Case]:
    rngs = nnx.Rngs(0)

    def of(module, run, make):
        graphdef, state = nnx.split(module)
        return make(lambda *given: run(nnx.merge(graphdef, state), *given))

    nodes = lambda run: _of_graph(run, (NODES, 8))  # noqa: E731
    tokens = lambda *shape: lambda run: Case(run, ((TOKENS, *shape),))  # noqa: E731
    call = lambda module, *given: module(*given)  # noqa: E731
    return {
        "SAGEConv": of(nn.SAGEConv(8, 8, activation="maxk", k=3, rngs=rngs), call, nodes),
        "GCNConv": of(nn.GCNConv(8, 8, rngs=rngs), call, nodes),
        "GINConv": of(nn.GINConv(8, 8, rngs=rngs), call, nodes),
        "MaxKGNN": of(MaxKGNN(8, 8, 3, num_layers=2, k=3, dropout=0.0, rngs=rngs), call, nodes),
        "FusedMLP": of(nn.FusedMLP((8, 8, 8), activation="gelu", rngs=rngs), call, tokens(8)),
        "ExpertCoupler": of(nn.ExpertCoupler(8, 4, rngs=rngs), call, tokens(4, 8)),
    }


CASES |= _layers()


def _arguments(case: Case, sizes: dict[str, int]) -> list[np.ndarray | jax.Array]:
    """Of these sizes; every second row of a graph has the edges."""
    made = []
    for i, shape in enumerate(case.shapes):
        known = tuple({**sizes, OFFSETS: sizes[NODES] + 1}.get(size, size) for size in shape)
        kind = case.ids[i] if i < len(case.ids) else None
        rng = np.random.default_rng(i)
        if kind == "indptr":
            offsets = np.minimum(3 * np.arange(known[0]), sizes["edges"])
            made.append(offsets.astype(np.int32))
        elif kind is not None:
            most = sizes["nodes"] if kind == "nodes" else 3
            made.append(rng.integers(0, most, known).astype(np.int32))
        else:
            made.append(random_array(known, "float32", seed=i))
    return made


def _with_gradients(case: Case):
    """Value, and gradients to all floating arguments."""
    first = len(case.ids)

    def run(*given):
        ids, arrays = given[:first], given[first:]
        y, pull_back = jax.vjp(lambda *arrays: case.run(*ids, *arrays), *arrays)
        return y, pull_back(jax.tree.map(jnp.sin, y)) if arrays else ()

    return jax.jit(run)


def _exported(case: Case, run) -> jax.export.Exported:
    arguments = [
        jax.ShapeDtypeStruct(
            jax.export.symbolic_shape(", ".join(map(str, shape)), scope=SCOPE),
            jnp.int32 if i < len(case.ids) else jnp.float32,
        )
        for i, shape in enumerate(case.shapes)
    ]
    # Compiled kernels are of this release, which JAX wants to be told.
    targets = [jax.export.DisabledSafetyCheck.custom_call(name) for name in _library.TARGETS]
    return jax.export.export(run, disabled_checks=targets)(*arguments)


@pytest.mark.costly
@pytest.mark.parametrize("name", CASES)
def test_an_exported_program_is_the_op_at_each_size(name):
    case = CASES[name]
    run = _with_gradients(case)
    exported = _exported(case, run)
    for sizes in SIZES:
        given = _arguments(case, sizes)
        made, expected = (jax.tree.leaves(f(*given)) for f in (exported.call, run))
        for a, e in zip(made, expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["maxk", "todense", "spmm", "sddmm", "maxk_spmm", "segment_softmax"]
)
def test_plain_jax_is_exported_without_custom_calls(name):
    case = CASES[name]
    with jaxgnn.default_implementation("xla"):
        exported = _exported(case, jax.jit(case.run))
    assert "jaxgnn_" not in exported.mlir_module()


@pytest.mark.parametrize("name", ["spmm", "spmm, any width", "segment_softmax", "maxk_spmm"])
def test_a_named_kernel_says_that_it_needs_the_sizes(name):
    if name == "segment_softmax" and current_platform() == "cuda":
        pytest.skip("reason: segment_softmax has no compiled kernel for a GPU")
    needs = r"\[ffi\]: needs sizes that are known when it is traced, got \[.*(nodes|edges)"
    with jaxgnn.default_implementation("ffi"), pytest.raises(NotImplementedError, match=needs):
        _exported(CASES[name], jax.jit(CASES[name].run))


@pytest.mark.parametrize("name", ["maxk", "sinkhorn, n = 4, exact", "mhc_post", "fused_mlp"])
def test_gpu_kernels_say_that_they_need_the_sizes(name, monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    needs = r"\[pallas\]: needs sizes that are known when it is traced, got \[.*(nodes|tokens)"
    with jaxgnn.default_implementation("pallas"), pytest.raises(NotImplementedError, match=needs):
        _exported(CASES[name], jax.jit(CASES[name].run))
