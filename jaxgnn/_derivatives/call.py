"""A call of a function with derivatives of its own, as one operation of JAX.

``jax.custom_vjp`` has no forward mode. ``jax.custom_jvp`` loses the rule in a second derivative of
``lax.scan``: where JAX moves constant parts out of the body, it replaces the call by the operations
of the function (0.11.2), and a compiled kernel has no derivative. An operation keeps its rule in
every transformation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from jaxgnn._arrays.eager import runs_now
from jaxgnn._derivatives.lifetime import lifetime

_CALL = Primitive("jaxgnn_call")
_CALL.multiple_results = True


def call(
    name: str,
    function: Callable[..., Any],
    differentiate: Callable[[tuple[int, ...], Any, list[Any]], tuple[Any, list[Any]]],
    arrays: tuple[Any, ...],
    *,
    is_kernel: bool = False,
) -> Any:
    """``function(*arrays)``, with derivatives by a rule.

    Args:
      name: name of the function in a traced program.
      function: a function of pytrees of arrays.
      differentiate: the rule: ``differentiate(varied, arrays, tangents)`` returns the result, and
        the tangents of its arrays of real numbers. ``varied`` are the positions of the arrays, in
        the order of the pytrees, to which the tangents belong.
      arrays: the arguments.
      is_kernel: whether all effects of the function, which are writes to its own memory, end in it.
    """
    leaves, structure = jax.tree.flatten(arrays)
    if are_known(leaves):
        return function(*arrays)
    structures: list[Any] = []

    def flat(result):
        leaves, structures[:] = jax.tree.leaves(result), [jax.tree.structure(result)]
        return [jnp.asarray(leaf) for leaf in leaves]

    def run(*leaves):
        return flat(function(*structure.unflatten(leaves)))

    def differentiate_leaves(varied, leaves, tangents):
        result, along = differentiate(varied, structure.unflatten(leaves), tangents)
        return flat(result), along

    results = _Call(name, run, differentiate_leaves, is_kernel).bind(*leaves)
    return structures[0].unflatten(results)


def with_derivative_of(
    formula: Callable[..., Any], run: Callable[..., Any], name: str
) -> Callable[..., Any]:
    """Gives ``run``, a function of pytrees of arrays, the derivatives of ``formula``.

    Args:
      formula: a function of the same arguments, with the same result, in plain JAX.
      run: the function that runs, such as a kernel, which JAX can not differentiate.
      name: name of the function in a traced program.
    """

    def differentiate(varied, arrays, tangents):
        leaves, structure = jax.tree.flatten(arrays)

        def evaluate_varied(*values):
            values_of_leaves = list(leaves)
            for i, value in zip(varied, values, strict=True):
                values_of_leaves[i] = value
            results = jax.tree.leaves(formula(*structure.unflatten(values_of_leaves)))
            return [result for result in results if has_tangent(result)]

        _, along = jax.jvp(evaluate_varied, [leaves[i] for i in varied], tangents)
        return run(*arrays), along

    return lambda *arrays: call(name, run, differentiate, arrays, is_kernel=True)


def are_known(leaves: Sequence[Any]) -> bool:
    """Returns whether operations on these arrays run when they are called."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves) and runs_now()


@dataclass(frozen=True, eq=False, repr=False)
class _Call:
    """The static part of the operation, as functions of its operands.

    Attributes:
      name: name of the function.
      run: returns the results.
      differentiate: the rule, as ``call`` takes it.
      is_kernel: whether all effects end in it.
    """

    name: str
    run: Callable[..., list[Any]]
    differentiate: Callable[[tuple[int, ...], list[Any], list[Any]], tuple[list[Any], list[Any]]]
    is_kernel: bool
    _programs: dict[Any, Any] = field(default_factory=dict)

    def bind(self, *operands: Any) -> list[Any]:
        """Binds the operation to its operands, and returns the results of the function."""
        return _CALL.bind(*operands, call=self, lifetime=lifetime())

    def __repr__(self) -> str:
        """The name, and the program as it was traced."""
        return "\n".join((self.name, *map(str, self._programs.values())))

    def program(self, kinds: Sequence[Any]) -> Any:
        """The traced function for operands of these types."""
        kinds = tuple(kinds)
        if kinds not in self._programs:
            self._programs[kinds] = jax.make_jaxpr(self.run)(*kinds)
        return self._programs[kinds]


def has_tangent(array: Any) -> bool:
    """Returns whether the values of an array are real or complex numbers."""
    return jax.typeof(array).to_tangent_aval().dtype != jax.dtypes.float0


def zero_slope(array: Any) -> Any:
    """The gradient to a result that is not differentiable, with no information."""
    return ad.instantiate_zeros(_no_tangent(array))


def _no_tangent(array):
    return ad.Zero(jax.typeof(array).to_tangent_aval())


@_CALL.def_impl
def _(*operands, call, **_):
    return call.run(*operands)


@_CALL.def_effectful_abstract_eval
def _(*kinds, call, **_):
    program = call.program(kinds)
    return program.out_avals, set() if call.is_kernel else program.effects


def _lower(context, *operands, call, **_):
    # jax.jit lowers operations of JAX that are primitives of a higher level.
    run = jax.jit(jaxpr_as_fun(call.program(context.avals_in)), inline=True)
    return mlir.lower_fun(run, multiple_results=True)(context, *operands)


mlir.register_lowering(_CALL, _lower)


def _differentiate(operands, tangents, *, call, **_):
    varied = tuple(i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero))
    nonzero_tangents = [tangents[i] for i in varied]
    results, result_tangents = call.differentiate(varied, list(operands), nonzero_tangents)
    rest = iter(result_tangents)
    return results, [
        next(rest) if has_tangent(result) else _no_tangent(result) for result in results
    ]


ad.primitive_jvps[_CALL] = _differentiate


def _batch(operands, axes, *, call, **_):
    def differentiate(varied, operands, tangents):
        of_tangents = [axes[i] for i in varied]
        rule = jax.vmap(lambda *arrays: call.differentiate(varied, *arrays), (axes, of_tangents))
        return rule(operands, tangents)

    axes = list(axes)
    batched = _Call(
        call.name, jax.vmap(call.run, in_axes=tuple(axes)), differentiate, call.is_kernel
    )
    results = batched.bind(*operands)
    return results, [0] * len(results)


batching.primitive_batchers[_CALL] = _batch
