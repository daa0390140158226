"""Programs exported with symbolic sizes: each op at two sizes, against itself, with its gradients.

Sizes are of nodes, edges, tokens and batches; widths are known.
"""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import nn
from jaxgnn._ffi import _library
from jaxgnn.models import MaxKGNN
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.dispatch import current_platform
from jaxgnn.testing import random_array
from tests.ops._calls import EXPORTED, NODES, OFFSETS, TOKENS, Exported, of_graph

pytestmark = pytest.mark.usefixtures("compiled_quickly")

SCOPE = jax.export.SymbolicScope()
SIZES = {"nodes": 3, "edges": 7, "tokens": 2}, {"nodes": 5, "edges": 4, "tokens": 3}


def _layers() -> dict[str, Exported]:
    rngs = nnx.Rngs(0)

    def of(module, run, make):
        graphdef, state = nnx.split(module)
        return make(lambda *given: run(nnx.merge(graphdef, state), *given))

    nodes = lambda run: of_graph(run, (NODES, 8))  # noqa: E731
    tokens = lambda *shape: lambda run: Exported(run, ((TOKENS, *shape),))  # noqa: E731
    call = lambda module, *given: module(*given)  # noqa: E731
    return {
        "SAGEConv": of(nn.SAGEConv(8, 8, activation="maxk", k=3, rngs=rngs), call, nodes),
        "GCNConv": of(nn.GCNConv(8, 8, rngs=rngs), call, nodes),
        "GINConv": of(nn.GINConv(8, 8, rngs=rngs), call, nodes),
        "MaxKGNN": of(MaxKGNN(8, 8, 3, num_layers=2, k=3, dropout=0.0, rngs=rngs), call, nodes),
        "FusedMLP": of(nn.FusedMLP((8, 8, 8), activation="gelu", rngs=rngs), call, tokens(8)),
        "ExpertCoupler": of(nn.ExpertCoupler(8, 4, rngs=rngs), call, tokens(4, 8)),
    }


CASES = EXPORTED | _layers()


def _arguments(case: Exported, sizes: dict[str, int]) -> list[np.ndarray | jax.Array]:
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


def _with_gradients(case: Exported):
    """Value, and gradients to all floating arguments."""
    first = len(case.ids)

    def run(*given):
        ids, arrays = given[:first], given[first:]
        y, pull_back = jax.vjp(lambda *arrays: case.run(*ids, *arrays), *arrays)
        return y, pull_back(jax.tree.map(jnp.sin, y)) if arrays else ()

    return jax.jit(run)


def _exported(case: Exported, run) -> jax.export.Exported:
    arguments = [
        jax.ShapeDtypeStruct(
            jax.export.symbolic_shape(", ".join(map(str, shape)), scope=SCOPE),
            jnp.int32 if i < len(case.ids) else jnp.float32,
        )
        for i, shape in enumerate(case.shapes)
    ]
    # Compiled kernels are of this release, which JAX wants to be told.
    targets = [jax.export.DisabledSafetyCheck.custom_call(name) for name in _library.targets()]
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
