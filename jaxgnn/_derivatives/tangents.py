"""Linear functions with a transpose of their own: the tangents of functions with own gradients.

``jax.grad`` of a function with a ``jax.custom_jvp`` rule transposes the tangents of that rule. Here
the tangents are one operation, and its transpose is a given backward pass: reverse mode runs that
pass and nothing else. Its value is needed in forward mode alone, and nothing of it is traced
before. It is derived from the same backward pass, so no op has to define it: the backward pass is a
linear function from slopes of the results to slopes of the arguments. The transpose of this linear
function maps tangents of the arguments to tangents of the results, and JAX derives it if the
backward pass has a derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxgnn._derivatives.lifetime import lifetime

Backward = Callable[[list[Any], list[Any]], list[Any]]
"""``backward(residuals, slopes)``: a slope for each tangent. Linear in the slopes of the results,
one for each result."""

_TANGENTS = Primitive("jaxgnn_tangents")
_TANGENTS.multiple_results = True


@dataclass(frozen=True, eq=False)
class _Rule:
    """The static part of the operation.

    Attributes:
      backward: the transpose.
      residuals: the number of residuals, the first operands.
      kinds: types of the tangents of the results.
    """

    backward: Backward
    residuals: int
    kinds: tuple[Any, ...]

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The residuals and the tangents among these."""
        return list(operands[: self.residuals]), list(operands[self.residuals :])


def tangents_by_transpose(
    backward: Backward, residuals: Sequence[Any], tangents: Sequence[Any], results: Sequence[Any]
) -> list[Any]:
    """The tangents of results, by the function whose transpose is ``backward``.

    Args:
      backward: the backward pass, which has a derivative.
      residuals: arrays that ``backward`` gets.
      tangents: arrays, one for each slope that ``backward`` returns.
      results: arrays of real numbers. Their tangents have the same types.
    """
    kinds = tuple(jax.typeof(result).to_tangent_aval() for result in results)
    return _bind(_Rule(backward, len(residuals), kinds), residuals, tangents)


def _bind(rule, residuals, tangents):
    return _TANGENTS.bind(*residuals, *tangents, rule=rule, lifetime=lifetime())


def _evaluate(*operands, rule, **_):
    residuals, tangents = rule.split(operands)
    # A backward pass may skip rows whose slopes are all zero, where it is not linear.
    slopes = [_ones(kind) for kind in rule.kinds]
    cotangents, transposed = jax.vjp(lambda slopes: rule.backward(residuals, slopes), slopes)
    # The results do not depend on arguments without slopes.
    along = [
        None if of is None else tangent for of, tangent in zip(cotangents, tangents, strict=True)
    ]
    return transposed(along)[0]


def _ones(kind):
    ones, varying = jnp.ones(kind.shape, kind.dtype), tuple(kind.mat.varying)
    return jax.lax.pcast(ones, varying, to="varying") if varying else ones


_TANGENTS.def_impl(_evaluate)
_TANGENTS.def_abstract_eval(lambda *_, rule, **others: list(rule.kinds))


def _evaluate_compiled(*operands, rule, **_):
    # jax.jit lowers operations of JAX that are primitives of a higher level.
    return jax.jit(lambda *operands: _evaluate(*operands, rule=rule), inline=True)(*operands)


mlir.register_lowering(_TANGENTS, mlir.lower_fun(_evaluate_compiled, multiple_results=True))


def _transpose(slopes, *operands, rule, **_):
    residuals, tangents = rule.split(operands)
    slopes = [ad.instantiate_zeros(slope) for slope in slopes]
    returned = rule.backward(residuals, slopes)
    asked = [ad.is_undefined_primal(tangent) for tangent in tangents]
    returned = [slope if ask else None for slope, ask in zip(returned, asked, strict=True)]
    return [None] * len(residuals) + returned


ad.primitive_transposes[_TANGENTS] = _transpose


def _differentiate(operands, changes, *, rule, **_):
    """Sums the derivative by the tangents, which is the function itself, and by the residuals."""
    residuals, tangents = rule.split(operands)
    of_residuals, of_tangents = rule.split(changes)
    results = _bind(rule, residuals, tangents)
    parts = []
    if not all(isinstance(change, ad.Zero) for change in of_tangents):
        of_tangents = [ad.instantiate_zeros(change) for change in of_tangents]
        parts.append(_bind(rule, residuals, of_tangents))
    varied = [i for i, change in enumerate(of_residuals) if not isinstance(change, ad.Zero)]
    if varied:

        def evaluate_varied(values):
            whole = list(residuals)
            for i, value in zip(varied, values, strict=True):
                whole[i] = value
            return _evaluate(*whole, *tangents, rule=rule)

        point, tangent = [residuals[i] for i in varied], [of_residuals[i] for i in varied]
        parts.append(jax.jvp(evaluate_varied, (point,), (tangent,))[1])
    return results, [sum(part[1:], start=part[0]) for part in zip(*parts, strict=True)]


ad.primitive_jvps[_TANGENTS] = _differentiate


def _batch(operands, axes, *, rule, **_):
    (size,) = {x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None}
    residuals, tangents = rule.split(operands)
    of_residuals, of_tangents = rule.split(axes)
    # The slope of a tangent that all members share is the sum of theirs: the transpose of this.
    tangents = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(tangents, of_tangents, strict=True)
    ]
    backward = jax.vmap(rule.backward, in_axes=(of_residuals, 0), axis_size=size)
    kinds = tuple(kind.update(shape=(size, *kind.shape)) for kind in rule.kinds)
    results = _bind(_Rule(backward, rule.residuals, kinds), residuals, tangents)
    return results, [0] * len(results)


batching.primitive_batchers[_TANGENTS] = _batch
