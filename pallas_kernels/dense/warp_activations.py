"""Activations of dense layers in SIMT code: the formulae of ``dense.activations``.

They are written for arrays. Here they are traced to a jaxpr, and each equation becomes an
instruction; a product that is only added to something becomes part of an fma.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.dense.activations import ACTIVATIONS
from pallas_kernels.simt.values import Value
from pallas_kernels.simt.warp import Warp

_Operand = Value | float


def activate(warp: Warp, name: str | None, z: Value) -> Value:
    """Applies an activation, by its name or None, to a preactivation."""
    return z if name is None else _record(warp, ACTIVATIONS[name].value, z)


def pull_back(warp: Warp, name: str | None, z: Value, dy: Value) -> Value:
    """Returns the gradient to a preactivation from the gradient ``dy`` to its activation.

    Where the derivative is zero the gradient is zero, even if ``dy`` is not finite.
    """
    if name is None:
        return dy
    activation = ACTIVATIONS[name]

    def gradient(z, dy):
        if activation.of_output:
            return activation.pull_back(activation.value(z), dy)
        return activation.pull_back(activation.value_and_slope(z)[1], dy)

    return _record(warp, gradient, z, dy)


def _record(warp: Warp, function: Callable[..., jax.Array], *values: Value) -> Value:
    """Traces a function of scalars, and records its jaxpr for these values."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    program = jax.make_jaxpr(function)(*[scalar] * len(values))
    (made,) = _interpret(warp, program.jaxpr, program.consts, values)
    assert isinstance(made, Value)
    return made


class _Product(NamedTuple):
    """A product of two operands that has not been computed yet, since it may become an fma."""

    a: Any
    b: Any


def _interpret(warp: Warp, program: Any, constants: Any, values: Any) -> list[_Operand]:
    """Records a jaxpr of scalars as instructions, and returns its results."""
    known: dict[Any, Any] = dict(zip(program.constvars, map(float, constants), strict=True))
    known.update(zip(program.invars, values, strict=True))
    summed = _used_once_by_a_sum(program)

    def operand(atom: Any) -> Any:
        return float(atom.val) if _is_literal(atom) else known[atom]

    for equation in program.eqns:
        operands, name = [operand(atom) for atom in equation.invars], equation.primitive.name
        inner = equation.params.get("jaxpr")
        if inner is not None:
            made = _interpret(warp, inner.jaxpr, inner.consts, operands)
        elif name == "mul" and equation.outvars[0] in summed:
            made = [_Product(*operands)]
        elif name in _INSTRUCTIONS:
            made = [_INSTRUCTIONS[name](warp, *operands)]
        else:
            raise NotImplementedError(f"an activation has the operation {name}")
        known.update(zip(equation.outvars, made, strict=True))
    return [operand(atom) for atom in program.outvars]


def _used_once_by_a_sum(program: Any) -> set[Any]:
    """Returns the variables that only one sum or difference uses."""
    uses = [(equation, atom) for equation in program.eqns for atom in equation.invars]
    taken = [atom for _, atom in uses if not _is_literal(atom)]
    taken += [atom for atom in program.outvars if not _is_literal(atom)]
    by_sums = [atom for e, atom in uses if e.primitive.name == "add"]
    by_sums += [e.invars[1] for e, _ in uses if e.primitive.name == "sub"]
    return {atom for atom in by_sums if not _is_literal(atom) and taken.count(atom) == 1}


def _is_literal(atom: Any) -> bool:
    return hasattr(atom, "val")


def _add(warp: Warp, a: Any, b: Any) -> Value:
    if isinstance(a, _Product):
        a, b = b, a
    if not isinstance(b, _Product):
        return a + b
    a = _value(warp, a if not isinstance(a, _Product) else a.a * a.b)
    return warp.fma(_value(warp, b.a), _value(warp, b.b), a)


def _subtract(warp: Warp, a: Any, b: Any) -> Value:
    if isinstance(b, _Product):
        return _add(warp, a, _Product(b.a * -1.0, b.b))
    return a - b


def _value(warp: Warp, x: Any) -> Value:
    return x if isinstance(x, Value) else warp.f32(x)


def _binary(name: str) -> Callable[..., Value]:
    return lambda warp, a, b: warp.binary(name, *warp.promote(a, b))


# The instructions of each operation on arrays that the formulae use; operands may be numbers.
_INSTRUCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": _add,
        "sub": _subtract,
        "mul": lambda warp, a, b: a * b,
        "neg": lambda warp, a: a * -1.0,
        "max": _binary("maximum"),
        "min": _binary("minimum"),
        "lt": lambda warp, a, b: a < b,
        "gt": lambda warp, a, b: a > b,
        "eq": lambda warp, a, b: a == b,
        "select_n": lambda warp, which, other, chosen: warp.select(which, chosen, other),
        "exp2": lambda warp, a: warp.special("any_ex2", a),
        "rsqrt": lambda warp, a: warp.special("normal_rsqrt", a),
        "sqrt": lambda warp, a: a * warp.rsqrt(a),  # NaN at zero, which no formula uses
        "convert_element_type": lambda warp, a: a,
        "copy": lambda warp, a: a,
    }
)
