"""``jax.export`` for several platforms at once, of ops whose kernels for a GPU are Pallas'."""

import re

import jax
import numpy as np
import pytest
from jax import export

from jaxgnn import Incidence, ops
from jaxgnn._ffi._library import targets
from jaxgnn.graph import CSRGraph
from jaxgnn.testing import random_array

GRAPH = CSRGraph.from_edges([0, 1, 2, 3, 3], [1, 2, 3, 0, 1], 4)
HYPERGRAPH = Incidence.from_hyperedges([{0, 1}, {1, 2, 3}], 4)
KERNEL = random_array((64, 64), "bfloat16", seed=1)
X = random_array((4, 64), "float32", seed=2)
ROWS = random_array((4096, 64), "bfloat16", seed=3)
SCORES = random_array((3, 5, 2), "float32", seed=4)


def _gradient(function):
    return lambda x: jax.vjp(function, x)[1](function(x))[0]


def _softmax(scores):
    return ops.segment_softmax(GRAPH, scores)


def _mlp(x):
    return ops.fused_mlp(x, [KERNEL] * 2, [KERNEL[0]] * 2, activation="relu")


CASES = {
    "maxk": (lambda x: ops.maxk(x, 4), X),
    "todense": (lambda x: ops.todense(ops.maxk(x, 4)), X),
    "maxk_spmm, gradient": (_gradient(lambda x: ops.maxk_spmm(GRAPH, ops.maxk(x, 4))), X),
    "segment_softmax, vmap": (jax.vmap(_softmax), SCORES),
    "segment_softmax, vmap of its gradient": (jax.vmap(_gradient(_softmax)), SCORES),
    "sinkhorn, gradient": (_gradient(ops.sinkhorn), random_array((2048, 4, 4), "float32", seed=5)),
    "fused_linear, MaxK": (lambda x: ops.fused_linear(x, KERNEL, activation=ops.MaxK(8)), ROWS),
    "fused_mlp, gradient": (_gradient(_mlp), ROWS),
    "hypergraph_conv": (
        lambda x: ops.hypergraph_conv(x, HYPERGRAPH),
        random_array((2048, 4, 64), "bfloat16", seed=6),
    ),
}


def _roundings(name: str) -> float:
    """By how much two runs may differ: on a GPU this one gradient adds in any order."""
    in_any_order = jax.default_backend() == "gpu" and name == "maxk_spmm, gradient"
    return 1e-6 if in_any_order else 0.0


@pytest.mark.costly
@pytest.mark.parametrize("name", CASES)
def test_one_export_for_cpu_and_cuda_has_the_kernels_and_runs_here(name):
    function, x = CASES[name]
    checks = [export.DisabledSafetyCheck.custom_call(target) for target in targets()]
    compiled = jax.jit(function)
    exported = export.export(compiled, platforms=["cpu", "cuda"], disabled_checks=checks)(x)
    assert re.search(r"custom_call @mosaic_gpu", exported.mlir_module())
    made, expected = exported.call(x), compiled(x)
    for a, e in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        a, e = (np.asarray(array, np.float32) for array in (a, e))
        np.testing.assert_allclose(a, e, rtol=0, atol=_roundings(name) * np.abs(e).max())
