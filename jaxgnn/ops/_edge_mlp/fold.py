"""``jax.vmap`` over a shared graph as a larger batch axis of the layers of edges.

Otherwise ``jax.vmap`` would map the program of an op, and a kernel on a GPU would have separate
tiles for each member, half empty for a small graph. The primitive of this module, mapped over
features of nodes or of edges, is the same primitive with a larger batch. Its gradients to
parameters that all members share are one sum. If members have their own structures, parameters or
gradients of parameters, JAX maps the program as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from jaxgnn.graph import is_concrete
from jaxgnn.ops._edge_mlp.reference.edge_mlp_aggregate import EdgeOperands
from jaxgnn.ops.core.eager import runs_now


def folded_by_vmap(name: str, function: Callable[..., Array]) -> Callable[..., Array]:
    """Makes ``jax.vmap`` of ``function``, which takes a batch, enlarge that batch.

    Args:
      name: name of the primitive.
      function: ``function(*static, structure, operands)`` with ``EdgeOperands``, two static
        arguments and one array as its result, which has the batch axis of the nodes. It is
        differentiable by a ``custom_vjp``, whose passes may call the function returned here.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    def call(*arguments):
        *static, structure, operands = arguments
        leaves, tree = jax.tree.flatten((structure, operands))
        run = partial(_run_on_leaves, partial(function, *static), tree)
        if runs_now() and is_concrete(*leaves):
            return run(*leaves)[0]
        jaxpr = jax.make_jaxpr(run)(*leaves)
        return primitive.bind(*leaves, jaxpr=jaxpr, run=run, again=partial(call, *static))[0]

    primitive.def_abstract_eval(_abstract_result)
    primitive.def_impl(_evaluate_now)
    mlir.register_lowering(primitive, mlir.lower_fun(_evaluate, multiple_results=True))
    ad.primitive_jvps[primitive] = _jvp_rule
    batching.primitive_batchers[primitive] = _batching_rule
    return call


def _run_on_leaves(function: Callable[..., Array], tree: Any, *leaves: Array) -> list[Array]:
    return [function(*tree.unflatten(leaves))]


def _abstract_result(*avals, jaxpr, **others):
    # The result has no effects: only verification has effects, and it does not use this primitive.
    del avals, others
    return jaxpr.out_avals


def _evaluate(*leaves, jaxpr, **others):
    del others
    return jaxpr_as_fun(jaxpr)(*leaves)


def _evaluate_now(*leaves, run, **others):
    # The jaxpr is new at each call, so running it would compile a new program each time.
    del others
    return run(*leaves)


def _jvp_rule(leaves, tangents, *, run, **others):
    """The rule of ``jax.jvp``, which differentiates only leaves that have a tangent."""
    del others
    varied = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def run_on_varied(*values):
        given = list(leaves)
        for i, value in zip(varied, values, strict=True):
            given[i] = value
        return run(*given)

    return jax.jvp(run_on_varied, [leaves[i] for i in varied], [tangents[i] for i in varied])


def _batching_rule(leaves, axes, *, run, again, **others):
    """The rule of ``jax.vmap``."""
    del others
    mapped = [axis is not None for axis in axes]
    (size,) = {x.shape[a] for x, a, own in zip(leaves, axes, mapped, strict=True) if own}
    leaves = [
        jnp.moveaxis(x, axis, 0) if own else x
        for x, axis, own in zip(leaves, axes, mapped, strict=True)
    ]
    _, tree = run.args
    structure, operands = tree.unflatten(leaves)
    own_structure, own = tree.unflatten(mapped)
    own_parameters = own.feature_kernel, own.kernels, own.biases
    if size == 0 or any(jax.tree.leaves((own_structure, own_parameters))):
        in_axes = [0 if is_own else None for is_own in mapped]
        return jax.vmap(run, in_axes)(*leaves), [0]
    y = again(structure, _merge_batches(size, operands, own))
    return [y.reshape(size, -1, *y.shape[1:])], [0]


def _merge_batches(size: int, operands: EdgeOperands, own: Any) -> EdgeOperands:
    """Merges a leading axis of ``size`` into the batch axis.

    ``own`` has the structure of ``operands`` and marks those with that leading axis.
    """
    batch = operands.receivers.shape[1 if own.receivers else 0]

    def fold(x: Array, is_own: bool, batch: int) -> Array:
        x = x if is_own else x[None]
        x = jnp.broadcast_to(x, (size, batch, *x.shape[2:]))
        return x.reshape(size * batch, *x.shape[2:])

    def fold_of_edges(x: Array | None, is_own: bool | None) -> Array | None:
        """Merges the axes, but does not change an array that all members share."""
        if x is None or (not is_own and x.shape[0] == 1):
            return x
        return fold(x, bool(is_own), batch)

    return operands._replace(
        receivers=fold(operands.receivers, own.receivers, batch),
        senders=fold(operands.senders, own.senders, batch),
        features=fold_of_edges(operands.features, own.features),
        weights=fold_of_edges(operands.weights, own.weights),
    )
