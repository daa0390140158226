"""Activations of dense layers in kernels of warps: the formulae of ``_dense_activations``.

They are written for arrays; here each of their equations becomes an instruction of every lane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels._dense_activations import ACTIVATIONS
from pallas_kernels._values import Value
from pallas_kernels._warp import Warp

_Operand = Value | float


def activate(warp: Warp, name: str | None, z: Value) -> Value:
    """The activation of a preactivation."""
    return z if name is None else _record(warp, ACTIVATIONS[name].value, z)


def pull_back(warp: Warp, name: str | None, z: Value, dy: Value) -> Value:
    """The gradient to a preactivation, from that to its activation.

    A unit that is off passes nothing on, not even what is not finite.
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
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    program = jax.make_jaxpr(function)(*[scalar] * len(values))
    (made,) = _run(warp, program.jaxpr, program.consts, values)
    assert isinstance(made, Value)
    return made


def _run(warp: Warp, program: Any, constants: Any, values: Any) -> list[_Operand]:
    """What a jaxpr of scalars makes of ``values``."""
    known: dict[Any, _Operand] = dict(zip(program.constvars, map(float, constants), strict=True))
    known.update(zip(program.invars, values, strict=True))

    def operand(atom: Any) -> _Operand:
        return float(atom.val) if hasattr(atom, "val") else known[atom]

    for equation in program.eqns:
        operands, name = [operand(atom) for atom in equation.invars], equation.primitive.name
        inner = equation.params.get("jaxpr")
        if inner is not None:
            made = _run(warp, inner.jaxpr, inner.consts, operands)
        elif name in _INSTRUCTIONS:
            made = [_INSTRUCTIONS[name](warp, *operands)]
        else:
            raise NotImplementedError(f"an activation has the operation {name}")
        known.update(zip(equation.outvars, made, strict=True))
    return [operand(atom) for atom in program.outvars]


def _most(warp: Warp, a: Any, b: Any) -> Value:
    """The greater of two numbers; NaN if the first is."""
    a, b = warp.alike(a, b)
    return warp.select(a < b, b, a)


def _least(warp: Warp, a: Any, b: Any) -> Value:
    """The lesser of two numbers; NaN if the first is."""
    a, b = warp.alike(a, b)
    return warp.select(a > b, b, a)


# Of the operations on arrays that the formulae have; an operand may be a number.
_INSTRUCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": lambda warp, a, b: a + b,
        "sub": lambda warp, a, b: a - b,
        "mul": lambda warp, a, b: a * b,
        "neg": lambda warp, a: a * -1.0,
        "max": _most,
        "min": _least,
        "lt": lambda warp, a, b: a < b,
        "gt": lambda warp, a, b: a > b,
        "eq": lambda warp, a, b: a == b,
        "select_n": lambda warp, which, other, chosen: warp.select(which, chosen, other),
        "exp2": lambda warp, a: warp.special("any_ex2", a),
        "rsqrt": lambda warp, a: warp.rsqrt(a),
        "sqrt": lambda warp, a: a * warp.rsqrt(a),  # of zero NaN, which nothing takes
        "convert_element_type": lambda warp, a: a,
        "copy": lambda warp, a: a,
    }
)
