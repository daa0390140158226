"""Lowers kernels of a single platform in a program that is lowered for several.

Pallas refuses to lower a Mosaic GPU kernel for several platforms at once, as ``jax.export`` does
with ``platforms=["cpu", "cuda"]``, although the kernel is in the branch of its own platform. The
primitive here holds such a branch, and lowers it as if for a GPU alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir

_ON_A_GPU = Primitive("jaxgnn_on_a_gpu")
_ON_A_GPU.multiple_results = True


def on_a_gpu(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, a function of pytrees of arrays, whose kernels are lowered for a GPU alone."""

    @functools.wraps(run)
    def whole(*args: Any) -> Any:
        jaxpr, shapes = jax.make_jaxpr(run, return_shape=True)(*args)
        leaves = _ON_A_GPU.bind(*jax.tree.leaves(args), jaxpr=jaxpr)
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    return whole


@_ON_A_GPU.def_impl
def _(*arrays, jaxpr):
    return jax.jit(jaxpr_as_fun(jaxpr))(*arrays)


@_ON_A_GPU.def_abstract_eval
def _(*_, jaxpr):
    return jaxpr.out_avals


def _lower(context, *arrays, jaxpr):
    module = context.module_context
    if len(module.platforms) > 1:
        context = context.replace(module_context=module.replace(platforms=("cuda",)))
    return mlir.lower_fun(jaxpr_as_fun(jaxpr), multiple_results=True)(context, *arrays)


mlir.register_lowering(_ON_A_GPU, _lower)


def _batch(arrays, axes, *, jaxpr):
    made = on_a_gpu(jax.vmap(jaxpr_as_fun(jaxpr), in_axes=tuple(axes)))(*arrays)
    return made, [0] * len(made)


batching.primitive_batchers[_ON_A_GPU] = _batch
