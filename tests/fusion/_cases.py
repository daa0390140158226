"""Functions of plain JAX that the tests rewrite, and how results are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgnn
from jaxgnn.testing import assert_close

NODES, EDGES = 7, 40
_rng = np.random.default_rng(0)
# Repeated edges, in any order; node 6 has no edges.
SENDERS = jnp.asarray(_rng.integers(0, NODES - 1, EDGES), jnp.int32)
RECEIVERS = jnp.asarray(_rng.integers(0, NODES - 1, EDGES), jnp.int32)


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[jax.Array]:
    """Normal numbers in float32 of these shapes."""
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def fuse(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``jaxgnn.fuse`` of whatever is sound, however small it is."""
    return jaxgnn.fuse(fn, only_if_faster=False, **options)


def applied(fused: Callable[..., Any], *args: Any) -> list[str]:
    """The ops of the rewrites of a call, in order: what stands behind the arrow of each note.

    An op that refuses what a rule hands it is a condition that the rule lacks.
    """
    findings = jaxgnn.fuse.explain(fused, *args, measure=False).findings
    assert not [one for one in findings.refused if one.reason.startswith("the op refuses")]
    return [one.note.rpartition("-> ")[2] for one in findings.applied]


def refused(fused: Callable[..., Any], *args: Any) -> str:
    """Why rules were not applied in a call."""
    explanation = jaxgnn.fuse.explain(fused, *args, measure=False)
    return "; ".join(one.reason for one in explanation.findings.refused)


def _with_gradients(fn: Callable[..., Any], args: Any) -> Callable[..., Any]:
    """The results, and the gradients of a number on which every finite result has its own slope."""

    def loss(*args):
        results, total = fn(*args), jnp.float32(0)
        for leaf in jax.tree.leaves(results):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                slopes = 1 + jnp.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape) / leaf.size
                finite = jnp.where(jnp.isfinite(leaf), leaf, 0)
                total += jnp.sum(finite * slopes).astype(jnp.float32)
        return total, results

    floats = tuple(i for i, a in enumerate(args) if jnp.issubdtype(a.dtype, jnp.floating))
    return jax.jit(jax.grad(loss, argnums=floats, has_aux=True))


def assert_same(fn: Callable[..., Any], fused: Callable[..., Any], *args: Any) -> None:
    """Asserts that two functions have the same results and gradients, up to rounding."""
    _assert_trees_close(_with_gradients(fused, args)(*args), _with_gradients(fn, args)(*args))


def _assert_trees_close(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        if jnp.issubdtype(a.dtype, jnp.floating):
            assert_close(a, e, reduction_length=16 * EDGES, largest_term=1.0)
        else:
            np.testing.assert_array_equal(a, e)
