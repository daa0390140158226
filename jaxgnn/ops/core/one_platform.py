"""Lowers kernels of a single platform in a program that is lowered for several.

Pallas does not lower a Mosaic GPU kernel for several platforms at once, as ``jax.export`` does
with ``platforms=["cpu", "cuda"]``, although the kernel is in the branch of its own platform. The
primitive here holds such a branch, and lowers it as if for a GPU alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir

from jaxgnn.ops.core import kernel_programs

_ON_A_GPU = Primitive("jaxgnn_on_a_gpu")
_ON_A_GPU.multiple_results = True


@dataclass(frozen=True, eq=False)
class _Program:
    """A traced program, as a parameter that is opaque to JAX.

    Since 0.12 some operations of JAX are primitives of a higher level. If a program is a parameter
    of our primitive, its operations would have to be lowered by a rule whose interface is not
    public. ``jax.jit`` lowers them.
    """

    jaxpr: Any
    identity: str | None

    def __call__(self, *arrays: Any) -> list[Any]:
        return jax.jit(jaxpr_as_fun(self.jaxpr))(*arrays)


def on_a_gpu(
    run: Callable[..., Any], identity: Callable[[Any], str | None] = lambda _: None
) -> Callable[..., Any]:
    """``run``, a function of pytrees of arrays, whose kernels are lowered for a GPU alone.

    Args:
      run: the function.
      identity: returns a text for the structure of the arrays. Calls of equal texts and shapes
        share a program; those of None share none.
    """

    @functools.wraps(run)
    def whole(*args: Any) -> Any:
        jaxpr, shapes = jax.make_jaxpr(run, return_shape=True)(*args)
        leaves, structure = jax.tree.flatten(args)
        leaves = _ON_A_GPU.bind(*leaves, program=_Program(jaxpr, identity(structure)))
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    return whole


@_ON_A_GPU.def_impl
def _(*arrays, program):
    return program(*arrays)


@_ON_A_GPU.def_abstract_eval
def _(*_, program):
    return program.jaxpr.out_avals


def _lower(context, *arrays, program):
    module = context.module_context
    if len(module.platforms) > 1:
        context = context.replace(module_context=module.replace(platforms=("cuda",)))
    elif kernel_programs.are_used(program.jaxpr):
        program = kernel_programs.program_of(program.jaxpr, program.identity).call
    return mlir.lower_fun(program, multiple_results=True)(context, *arrays)


mlir.register_lowering(_ON_A_GPU, _lower)


def _batch(arrays, axes, *, program):
    identity = program.identity and f"{program.identity}\nvmap {axes}"
    made = on_a_gpu(jax.vmap(program, in_axes=tuple(axes)), lambda _: identity)(*arrays)
    return made, [0] * len(made)


batching.primitive_batchers[_ON_A_GPU] = _batch
