"""Custom gradients: functions with a backward pass of their own, which has derivatives again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.ops.core.differentiable_call import Call, has_tangent
from jaxgnn.ops.core.eager import runs_now
from jaxgnn.ops.core.tangents import tangents_by_transpose


class custom_vjp:
    """A function with its own gradient, like ``jax.custom_vjp``, which also has forward mode.

    ``jax.grad`` runs the given forward and backward passes and stores their residuals, as with
    ``jax.custom_vjp``. ``jax.jvp``, ``jax.jacfwd`` and ``jax.linearize`` run the forward pass. They
    compute tangents by the derivative of the backward pass (``tangents``), so derivatives of both
    modes agree, and an op needs no rule for forward mode.
    """

    def __init__(self, function: Callable[..., Any], nondiff_argnums: tuple[int, ...] = ()):
        """Stores the decorated function.

        Args:
          function: the function of arrays and of static arguments.
          nondiff_argnums: positions of the static arguments, which are the first ones.
        """
        assert tuple(nondiff_argnums) == tuple(range(len(nondiff_argnums)))
        update_wrapper(self, function)
        self._function, self._statics = function, len(nondiff_argnums)

    def defvjp(
        self, fwd: Callable[..., tuple[Any, Any]], bwd: Callable[..., tuple[Any, ...]]
    ) -> None:
        """Sets the forward pass and the backward pass, as ``jax.custom_vjp.defvjp`` does.

        Args:
          fwd: returns the result and the residuals.
          bwd: returns a gradient, or None for zeros, for each argument that is not static. It has
            to be differentiable by the gradient of the result.
        """
        self._forward, self._backward = fwd, bwd

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function, with its custom gradient."""
        if kwargs:
            args = inspect.signature(self._function).bind(*args, **kwargs).args
        statics, arrays = args[: self._statics], args[self._statics :]
        leaves, structure = jax.tree.flatten(arrays)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves) and runs_now():
            return self._function(*args)
        made: list[Any] = []

        def run(*leaves):
            result = self._function(*statics, *structure.unflatten(leaves))
            leaves, made[:] = _flat(result)
            return leaves

        def differentiate(varied, leaves, tangents):
            result, residuals = self._forward(*statics, *structure.unflatten(leaves))
            results, made[:] = _flat(result)
            backward = partial(self._backward, *statics)
            return results, _tangents(backward, structure, varied, tangents, result, residuals)

        results = Call(self.__name__, run, differentiate)(*leaves)
        return made[0].unflatten(results)


def _flat(tree: Any) -> tuple[list[Any], list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return [jnp.asarray(leaf) for leaf in leaves], [structure]


def _tangents(
    backward: Callable[..., Any],
    arguments: Any,
    varied: tuple[int, ...],
    tangents: list[Any],
    result: Any,
    residuals: Any,
) -> list[Any]:
    """The tangents of the arrays of real numbers in the result.

    Args:
      backward: ``backward(residuals, slopes)`` of pytrees.
      arguments: the structure of the arguments that are not static.
      varied: positions of the arrays of the arguments that have tangents.
      tangents: their tangents.
      result: the result of the forward pass.
      residuals: its residuals.
    """
    results, structure = jax.tree.flatten(result)
    kept, join = _split_arrays(residuals)
    no_slopes = [
        None if has_tangent(array) else np.zeros(array.shape, jax.dtypes.float0)
        for array in results
    ]
    dtypes = [tangent.dtype for tangent in tangents]

    def backward_of_varied(kept, slopes):
        rest = iter(slopes)
        whole = [next(rest) if slope is None else slope for slope in no_slopes]
        returned = backward(join(kept), structure.unflatten(whole))
        slopes = _slopes_of_leaves(returned, arguments)
        pairs = zip(varied, dtypes, strict=True)
        return [None if slopes[i] is None else slopes[i].astype(dtype) for i, dtype in pairs]

    real = [array for array in results if has_tangent(array)]
    return tangents_by_transpose(backward_of_varied, kept, tangents, real)


def _split_arrays(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The arrays of a tree, and the function that puts them back; other leaves are static."""
    leaves, structure = jax.tree.flatten(tree)
    is_array = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
    others = [None if own else leaf for leaf, own in zip(leaves, is_array, strict=True)]

    def join(arrays):
        rest = iter(arrays)
        pairs = zip(others, is_array, strict=True)
        return structure.unflatten(next(rest) if own else other for other, own in pairs)

    return [leaf for leaf, own in zip(leaves, is_array, strict=True) if own], join


_NO_SLOPE = object()


def _slopes_of_leaves(returned: Any, structure: Any) -> list[Any]:
    """The gradients that a backward pass returned, or None, for each array of the arguments."""
    is_none = lambda slope: slope is None  # noqa: E731
    marked = jax.tree.map(
        lambda slope: _NO_SLOPE if slope is None else slope, tuple(returned), is_leaf=is_none
    )
    whole = jax.tree.broadcast(marked, structure.unflatten(range(structure.num_leaves)))
    return [None if slope is _NO_SLOPE else slope for slope in jax.tree.leaves(whole)]


def set_gradient(function: custom_vjp, gradient: Callable[..., Any], statics: int = 0) -> None:
    """Gives ``function`` its gradient, which is a function of the arguments of the call.

    Args:
      function: a function whose first ``statics`` arguments are static.
      gradient: ``gradient(*arguments, slope)``, with the slope of the result, returns a gradient or
        None for each argument that is not static.
      statics: the number of static arguments.
    """

    def forward(*arguments):
        return function(*arguments), arguments[statics:]

    def backward(*arguments):
        *static, arrays, slope = arguments
        return gradient(*static, *arrays, slope)

    function.defvjp(forward, backward)


def differentiable_again(
    gradient: Callable[..., Any], plain: Callable[..., Any]
) -> Callable[..., Any]:
    """Makes a gradient differentiable, by a plain function with the same result.

    Second derivatives are rare enough to need no kernels of their own, and JAX can not
    differentiate a compiled kernel.

    Args:
      gradient: ``gradient(static, *arrays)``, the kernels, where ``static`` has a hash.
      plain: the same function in plain JAX, or in ops that can be differentiated twice.

    Returns:
      ``gradient``, differentiable by the formula of ``plain``.
    """

    @partial(custom_vjp, nondiff_argnums=(0,))
    def run(static, *arrays):
        return gradient(static, *arrays)

    def forward(static, *arrays):
        return run(static, *arrays), arrays

    def backward(static, arrays, slopes):
        return jax.vjp(partial(plain, static), *arrays)[1](slopes)

    run.defvjp(forward, backward)
    return run


reverse_vjp = custom_vjp
