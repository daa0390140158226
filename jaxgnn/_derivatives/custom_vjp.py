"""Functions with a backward pass of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

import jax
import numpy as np

from jaxgnn._arrays.eager import run_now
from jaxgnn._derivatives.call import are_known, call, has_tangent, zero_slope
from jaxgnn._derivatives.tangents import tangents_by_transpose


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

        def differentiate(varied, arrays, tangents):
            # The rule of an eager gradient records operations; those of known arrays are run.
            is_known = are_known(jax.tree.leaves(arrays))
            forward = partial(run_now, self._forward) if is_known else self._forward
            result, residuals = forward(*statics, *arrays)
            backward, structure = partial(self._backward, *statics), jax.tree.structure(arrays)
            return result, _tangents(backward, structure, varied, tangents, result, residuals)

        name = getattr(self._function, "__name__", "function")
        return call(name, partial(self._function, *statics), differentiate, arrays)


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
      residuals: the residuals of the forward pass.
    """
    results, structure = jax.tree.flatten(result)
    kept, join = _split_arrays(residuals)
    no_slopes = [None if has_tangent(array) else zero_slope(array) for array in results]
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
    others = [None if is_one else leaf for leaf, is_one in zip(leaves, is_array, strict=True)]

    def join(arrays):
        rest = iter(arrays)
        pairs = zip(others, is_array, strict=True)
        return structure.unflatten(next(rest) if is_one else other for other, is_one in pairs)

    return [leaf for leaf, is_one in zip(leaves, is_array, strict=True) if is_one], join


_NO_SLOPE = object()


def _slopes_of_leaves(returned: Any, structure: Any) -> list[Any]:
    """The gradients that a backward pass returned, or None, for each array of the arguments."""
    marked = jax.tree.map(
        lambda slope: _NO_SLOPE if slope is None else slope,
        tuple(returned),
        is_leaf=lambda slope: slope is None,
    )
    whole = jax.tree.broadcast(marked, structure.unflatten(range(structure.num_leaves)))
    return [None if slope is _NO_SLOPE else slope for slope in jax.tree.leaves(whole)]
