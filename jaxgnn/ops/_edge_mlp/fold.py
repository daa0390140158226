"""``jax.vmap`` over nodes of a shared graph as more of the batch that layers of edges have.

By itself ``jax.vmap`` would map the program of an op, and a kernel on a GPU would have tiles of
each member's own: half empty for a small graph. What is here is a primitive that, mapped over nodes
or over numbers of edges, is the same primitive of a larger batch. Its gradients are those of that
batch: of parameters that all members share there is one sum, as of leading axes. Where members have
structures or parameters of their own, or each its own gradient of the parameters, there is nothing
to fold, and JAX maps the program.
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
from jaxgnn.ops._core.eager import runs_now
from jaxgnn.ops._edge_mlp.reference.edge_reduce import EdgeOperands


def folded_by_vmap(name: str, function: Callable[..., Array]) -> Callable[..., Array]:
    """``function``, which takes a batch, so that ``jax.vmap`` of it makes the batch larger.

    Args:
      name: of the primitive.
      function: ``function(*static, structure, operands)`` with ``EdgeOperands``, two static
        arguments and one array as its result, which has the batch axis of the nodes; differentiable
        by a ``custom_vjp``, whose passes may call the result of this.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    def call(*arguments):
        *static, structure, operands = arguments
        leaves, tree = jax.tree.flatten((structure, operands))
        run = partial(_of_leaves, partial(function, *static), tree)
        if runs_now() and is_concrete(*leaves):
            return run(*leaves)[0]
        jaxpr = jax.make_jaxpr(run)(*leaves)
        return primitive.bind(*leaves, jaxpr=jaxpr, run=run, again=partial(call, *static))[0]

    primitive.def_abstract_eval(_result)
    primitive.def_impl(_evaluate_now)
    mlir.register_lowering(primitive, mlir.lower_fun(_evaluate, multiple_results=True))
    ad.primitive_jvps[primitive] = _push_forward
    batching.primitive_batchers[primitive] = _map
    return call


def _of_leaves(function: Callable[..., Array], tree: Any, *leaves: Array) -> list[Array]:
    return [function(*tree.unflatten(leaves))]


def _result(*avals, jaxpr, **others):
    # Only verification has effects, under which nothing is folded.
    del avals, others
    return jaxpr.out_avals


def _evaluate(*leaves, jaxpr, **others):
    del others
    return jaxpr_as_fun(jaxpr)(*leaves)


def _evaluate_now(*leaves, run, **others):
    # Not by the jaxpr, which is another one at each call, and so would be its programs.
    del others
    return run(*leaves)


def _push_forward(leaves, tangents, *, run, **others):
    """Of those that have a tangent."""
    del others
    varied = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def of_varied(*values):
        given = list(leaves)
        for i, value in zip(varied, values, strict=True):
            given[i] = value
        return run(*given)

    return jax.jvp(of_varied, [leaves[i] for i in varied], [tangents[i] for i in varied])


def _map(leaves, axes, *, run, again, **others):
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
    y = again(structure, _folded(size, operands, own))
    return [y.reshape(size, -1, *y.shape[1:])], [0]


def _folded(size: int, operands: EdgeOperands, own: Any) -> EdgeOperands:
    """With one batch for two; ``own``, in its form, tells what has a leading axis of ``size``."""
    batch = operands.receivers.shape[1 if own.receivers else 0]

    def fold(x: Array, is_own: bool, batch: int) -> Array:
        x = x if is_own else x[None]
        x = jnp.broadcast_to(x, (size, batch, *x.shape[2:]))
        return x.reshape(size * batch, *x.shape[2:])

    def fold_of_edges(x: Array | None, is_own: bool | None) -> Array | None:
        """What is shared by all remains so."""
        if x is None or (not is_own and x.shape[0] == 1):
            return x
        return fold(x, bool(is_own), batch)

    return operands._replace(
        receivers=fold(operands.receivers, own.receivers, batch),
        senders=fold(operands.senders, own.senders, batch),
        features=fold_of_edges(operands.features, own.features),
        weights=fold_of_edges(operands.weights, own.weights),
    )
