"""Multilinear ops: gradients of any order and tangents from one description.

A number T is linear in each of several arrays, such as the sum over edges

    T(x, dy, w) = Σ_e Σ_c  x[sender(e), c] · dy[receiver(e), c] · w[e, c]

Its gradient to ``dy`` is the op itself, here a filtered sum of neighbours. The gradient to each
array is a function of all others, so the gradients of these functions belong to T again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient
from jaxgnn.ops.core.dispatch import Request

Run = Callable[..., Array]
"""``run(request, *shared, *arrays, **options)``, such as a ``dispatch.Kernel``."""


@dataclass(frozen=True, eq=False)
class Multilinear:
    """A number that is linear in each of its arrays, by the gradients to them.

    Attributes:
      operands: names of the arrays.
      gradients: for each name the function that computes the gradient to that array. It takes the
        shared arguments, then the other arrays in the order of ``operands``.
      tangents: for some names the derivative of that gradient in the direction of tangents of the
        other arrays, except for ``result``. It takes each array followed by its tangent.
      result: the array whose gradient is the op.
      shaped: for some names the options, among ``"width"`` and ``"dtype"``, by which the function
        gets the size of the last axis and the dtype of the array.
    """

    operands: tuple[str, ...]
    gradients: Mapping[str, Run]
    tangents: Mapping[str, Run] = field(default_factory=dict)
    result: str = "dy"
    shaped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __call__(
        self, request: Request, shared: tuple[Any, ...], /, *arrays: Array, **options: Any
    ) -> Array:
        """Returns the gradient to ``result``, differentiable any number of times.

        Args:
          request: options of the op's call.
          shared: graphs and orders of edges, which have no gradient.
          *arrays: the other arrays, in the order of ``operands``.
          **options: static options of all functions.
        """
        names = [name for name in self.operands if name != self.result]
        call = _Call(self, request, tuple(sorted(options.items())))
        return _gradient(_Target(call, self.result), shared, dict(zip(names, arrays, strict=True)))


class _Call(NamedTuple):
    """The static part of a call.

    Attributes:
      form: the number.
      request: options of the op's call.
      options: static options of all functions, sorted by name.
    """

    form: Multilinear
    request: Request
    options: tuple[tuple[str, Any], ...]

    def gradient(self, to: str, shared: Any, arrays: Mapping[str, Array], like: Array) -> Array:
        """The gradient to one array, which has the shape and dtype of ``like``."""
        others = {name: array for name, array in arrays.items() if name != to}
        target = _Target(self, to, like.shape[-1], like.dtype.name)
        return _gradient(target, shared, others).astype(like.dtype)


class _Target(NamedTuple):
    """A call, and the array to which a gradient is computed.

    Attributes:
      call: the static part of the call.
      to: name of the array.
      width: size of its last axis, 0 for the result of the op.
      dtype: name of its dtype, empty for the result of the op.
    """

    call: _Call
    to: str
    width: int = 0
    dtype: str = ""

    def run(self, functions: Mapping[str, Run], shared: Any, arrays: list[Array]) -> Array:
        """Calls the function of this array."""
        sizes = {"width": self.width, "dtype": self.dtype}
        names = self.call.form.shaped.get(self.to, ())
        options = dict(self.call.options) | {name: sizes[name] for name in names}
        return functions[self.to](self.call.request, *shared, *arrays, **options)


@partial(custom_vjp, nondiff_argnums=(0,))
def _gradient(target: _Target, shared: Any, arrays: dict[str, Array]) -> Array:
    form = target.call.form
    ordered = [arrays[name] for name in form.operands if name != target.to]
    return target.run(form.gradients, shared, ordered)


def _gradient_of_gradient(target, shared, arrays, slope):
    call, whole = target.call, arrays | {target.to: slope}
    if target.to == call.form.result and call.form.tangents:
        return None, _all_gradients(call, shared, whole)
    return None, {name: call.gradient(name, shared, whole, like) for name, like in arrays.items()}


set_gradient(_gradient, _gradient_of_gradient, 1)


@partial(custom_vjp, nondiff_argnums=(0,))
def _all_gradients(call: _Call, shared: Any, arrays: dict[str, Array]) -> dict[str, Array]:
    """The gradients to all arrays but the result, whose own gradients are tangents."""
    likes = {name: like for name, like in arrays.items() if name != call.form.result}
    return {name: call.gradient(name, shared, arrays, like) for name, like in likes.items()}


def _gradients_of_all(call, shared, arrays, along):
    return None, {
        name: _tangent(
            _Target(call, name, like.shape[-1], like.dtype.name),
            shared,
            {other: array for other, array in arrays.items() if other != name},
            {other: tangent for other, tangent in along.items() if other != name},
        ).astype(like.dtype)
        for name, like in arrays.items()
    }


set_gradient(_all_gradients, _gradients_of_all, 1)


@partial(custom_vjp, nondiff_argnums=(0,))
def _tangent(
    target: _Target, shared: Any, arrays: dict[str, Array], along: dict[str, Array]
) -> Array:
    """The derivative of the gradient to one array in the direction ``along`` of others."""
    form = target.call.form
    if target.to not in form.tangents:
        return _tangent_by_gradients(target, shared, arrays, along)
    ordered = []
    for name in form.operands:
        ordered += [arrays[name]] if name in arrays else []
        ordered += [along[name]] if name in along else []
    return target.run(form.tangents, shared, ordered)


def _tangent_by_gradients(target, shared, arrays, along):
    """The same as a sum of gradients, each with a tangent in the place of its array."""
    terms = [_gradient(target, shared, arrays | {name: along[name]}) for name in along]
    return sum(terms[1:], start=terms[0])


def _gradient_of_tangent(target, shared, arrays, along, slope):
    # Third derivatives take the terms one by one.
    terms = partial(_tangent_by_gradients, target, shared)
    return None, *jax.vjp(terms, arrays, along)[1](slope)


set_gradient(_tangent, _gradient_of_tangent, 1)
