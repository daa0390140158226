"""Recognises functions of one array by their whole programs, and layers of networks.

Layers are products with a bias, and activations by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxgnn import ops
from jaxgnn.fusion.graphs.static_graphs import digest
from jaxgnn.fusion.program.matching import NoMatch, need, or_none, required
from jaxgnn.fusion.program.program import (
    Atom,
    Equation,
    Program,
    Values,
    is_variable,
    key_of_param,
    reads_the_same,
)
from jaxgnn.fusion.program.variables import View, is_plain
from jaxgnn.graph import is_concrete


def argument_of(view: View, atom: Atom, template: Program) -> Atom | None:
    """Matches an atom with a template; returns the atom at the template's input, or None.

    A template is the program of a function of one array, with one result.
    """
    makers = {v: e for e in template.equations for v in e.outvars}
    matched: dict[Any, Atom] = {}

    def matches(pattern: Atom, actual: Atom) -> bool:
        if not is_variable(pattern):
            return not is_variable(actual) and _same_literal(pattern, actual)
        if pattern in matched:
            return matched[pattern] is actual
        if not is_variable(actual):
            return False
        wanted, equation = makers.get(pattern), view.producer(actual)
        matched[pattern] = actual
        if wanted is None:
            return pattern.aval.shape == actual.aval.shape
        return (
            equation is not None
            and equation.primitive is wanted.primitive
            and equation.outvars.index(actual) == wanted.outvars.index(pattern)
            and len(equation.invars) == len(wanted.invars)
            and _does_the_same(equation, wanted)
            and all(map(matches, wanted.invars, equation.invars))
        )

    return matched.get(template.inputs[0]) if matches(template.outputs[0], atom) else None


@functools.lru_cache(maxsize=1024)
def template(
    function: Callable[..., Any], shape: tuple[int, ...], dtype: str, *options: Any
) -> Program:
    """Returns the program of a function of an array of this type and of options."""
    like = jax.ShapeDtypeStruct(shape, dtype)
    return Program.from_jaxpr(jax.make_jaxpr(lambda x: function(x, *options))(like))


def form_of(
    view: View, atom: Atom, forms: Sequence[Callable[..., Any]], *options: Any
) -> tuple[Atom, int] | None:
    """Returns the argument of the form that computes an atom, and the form's position; or None."""
    for i, form in enumerate(forms):
        wanted = template(form, tuple(atom.aval.shape), str(atom.aval.dtype), *options)
        argument = argument_of(view, atom, wanted)
        if argument is not None:
            return argument, i
    return None


def calls_the_same(one: Equation, other: Equation) -> bool:
    """Returns whether two equations compute the same function of their operands.

    Loops with separate bodies match if all equations of the bodies do the same.
    """
    if one is other:
        return True
    types = [[str(a.aval) for a in (*e.invars, *e.outvars)] for e in (one, other)]
    return one.primitive is other.primitive and types[0] == types[1] and _does_the_same(one, other)


def _does_the_same(one: Equation, other: Equation) -> bool:
    """Returns whether equations of one primitive have equal parameters and derivatives."""
    if one.primitive.name == "custom_jvp_call":  # Each call of one function has other parameters.
        return _derivative(one) == _derivative(other)
    if one.params.keys() != other.params.keys():
        return False
    return all(_same_parameter(value, other.params[key]) for key, value in one.params.items())


def _same_parameter(one: Any, other: Any) -> bool:
    if isinstance(one, jex.Jaxpr | jex.ClosedJaxpr):
        return type(one) is type(other) and _same_body(one, other)
    if isinstance(one, tuple) and any(isinstance(v, jex.Jaxpr | jex.ClosedJaxpr) for v in one):
        return len(one) == len(other) and all(map(_same_parameter, one, other))
    keys = key_of_param(one), key_of_param(other)
    try:
        return hash(keys[0]) == hash(keys[1]) and keys[0] == keys[1]
    except TypeError:  # The parameter is an array, which may be large.
        return one is other


def _same_body(one: Any, other: Any) -> bool:
    """Returns whether two jaxprs have the same equations in one order, and constants."""
    jaxprs = [getattr(body, "jaxpr", body) for body in (one, other)]
    constants = [getattr(body, "consts", ()) for body in (one, other)]
    first, second = jaxprs
    if len(first.eqns) != len(second.eqns) or len(first.outvars) != len(second.outvars):
        return False
    if any(a is not b for a, b in zip(*constants, strict=False)):
        return False
    counterparts: dict[Any, Any] = {}

    def defined(left: list[Any], right: list[Any]) -> bool:
        counterparts.update(zip(left, right, strict=False))
        return [str(v.aval) for v in left] == [str(v.aval) for v in right]

    def read(left: Any, right: Any) -> bool:
        return counterparts[left] is right if is_variable(left) else reads_the_same(left, right)

    def same(left: Equation, right: Equation) -> bool:
        is_same = not left.effects and len(left.invars) == len(right.invars)
        is_same = is_same and all(map(read, left.invars, right.invars))
        return is_same and calls_the_same(left, right) and defined(left.outvars, right.outvars)

    is_same = defined(first.invars, second.invars) and defined(first.constvars, second.constvars)
    is_same = is_same and all(map(same, first.eqns, second.eqns))
    return is_same and all(map(read, first.outvars, second.outvars))


def _same_literal(pattern: Atom, actual: Atom) -> bool:
    same_type = pattern.aval.shape == actual.aval.shape and pattern.aval.dtype == actual.aval.dtype
    return same_type and bool(np.asarray(pattern.val) == np.asarray(actual.val))


def _derivative(equation: Equation) -> tuple[Any, ...]:
    """Returns keys of a function and of its forward derivative; traces each function once.

    Its text does not include the constants that it reads, so their keys are added.
    """
    params = tuple(equation.params.values())
    key = tuple(map(id, params))
    if key not in _DERIVATIVES:
        if len(_DERIVATIVES) >= _MOST_DERIVATIVES:
            _DERIVATIVES.clear()
        # The parameters are kept with it, so that no other objects get their ids.
        _DERIVATIVES[key] = params, _traced_derivative(equation)
    return _DERIVATIVES[key][1]


_MOST_DERIVATIVES = 1024
_DERIVATIVES: dict[tuple[int, ...], tuple[Any, tuple[Any, ...]]] = {}


def _traced_derivative(equation: Equation) -> tuple[Any, ...]:
    types = [a.aval for a in equation.invars]

    def run(*arrays):
        params = equation.primitive.get_bind_params(equation.params)
        return equation.primitive.bind(*arrays, **params)

    def both(*arrays):
        half = len(arrays) // 2
        return jax.jvp(run, arrays[:half], arrays[half:])

    program = Program.from_jaxpr(jax.make_jaxpr(both)(*types, *types))
    values = program.constants.values()
    keys = (digest(v) if is_concrete(v) and is_plain(v) else id(v) for v in values)
    return str(program.closed()), *keys


# Formulae of the activations of this library's ops in plain JAX.
_WRITTEN: tuple[tuple[ops.Activation, Callable[[Any], Any]], ...] = (
    ("relu", jax.nn.relu),  # jnp.maximum(x, 0) has another derivative at zero.
    ("gelu", jax.nn.gelu),
    ("gelu_exact", functools.partial(jax.nn.gelu, approximate=False)),
    ("silu", jax.nn.silu),
    ("silu", lambda x: x * jax.nn.sigmoid(x)),
    ("mish", jax.nn.mish),
    ("squared_relu", lambda x: jnp.square(jax.nn.relu(x))),
    ("squared_relu", lambda x: jax.nn.relu(x) ** 2),
)


@dataclass(frozen=True)
class DenseLayer:
    """``x @ kernel + bias`` along the last axis."""

    x: Atom
    kernel: Atom  # Matrix [in, out], or [out, in] if it is transposed.
    bias: Atom | None  # Array of ``out`` numbers and axes of size one.
    is_transposed: bool  # True if the kernel is [out, in].

    @property
    def inputs(self) -> list[Atom]:
        """The kernel, followed by the bias if there is one."""
        return [self.kernel] if self.bias is None else [self.kernel, self.bias]

    def parameters(self, values: Values) -> tuple[Any, Any]:
        """Returns the kernel as [in, out] and the bias as [out]."""
        kernel = values[self.kernel]
        bias = None if self.bias is None else values[self.bias].reshape(-1)
        return kernel.T if self.is_transposed else kernel, bias


def dense_layer_of(view: View, atom: Atom) -> DenseLayer | None:
    """Returns the dense layer that computes an atom, or None."""
    return view.remembered("linear", atom, lambda: _dense_layer_of(view, atom))


def _dense_layer_of(view: View, atom: Atom) -> DenseLayer | None:
    equation = view.produced_by(atom, "add")
    if equation is None:
        return _product_of(view, atom, None)
    for product, added in (equation.invars, equation.invars[::-1]):
        bias = row_of(view, added, atom.aval)
        layer = None if bias is None else _product_of(view, product, bias)
        if layer is not None:
            return layer
    return None


@or_none
def _product_of(view: View, atom: Atom, bias: Atom | None) -> DenseLayer:
    equation = view.match(atom, "dot_general")
    x, kernel = equation.invars
    need(is_matrix_product(equation) and x.aval.dtype == kernel.aval.dtype == atom.aval.dtype)
    need(equation.params["precision"] == session_precision())  # Ops use the session's precision.
    return DenseLayer(x, kernel, bias, is_transposed=is_transposed(equation))


def is_matrix_product(dot: Equation) -> bool:
    """Returns whether a ``dot_general`` multiplies the last axis of an array by a matrix."""
    x, kernel = dot.invars
    (of_x, _), batch = dot.params["dimension_numbers"]
    return kernel.aval.ndim == 2 and not any(batch) and tuple(of_x) == (x.aval.ndim - 1,)


def is_transposed(dot: Equation) -> bool:
    """Returns whether the matrix of a product is [out, in]."""
    return tuple(dot.params["dimension_numbers"][0][1]) == (1,)


def chain_of(
    view: View, atom: Atom, *, is_private: bool = False
) -> tuple[list[DenseLayer], ops.Activation | None]:
    """Returns the layers that compute an atom, first layer first, and their activation.

    With ``is_private``, nothing else may read the values between the layers.
    """
    layers: list[DenseLayer] = []
    activation = None
    while (layer := dense_layer_of(view, atom)) is not None:
        layers.insert(0, layer)
        inner = activation_of(view, layer.x)
        if inner is None or activation not in (None, inner[1]):
            break
        if dense_layer_of(view, inner[0]) is None or (
            is_private and not view.is_read_once(layer.x)
        ):
            break
        atom, activation = inner
    return layers, activation


def session_precision() -> Any:
    """Returns the precision of a product without an explicit precision."""
    return _precision_under(jax.config.jax_default_matmul_precision)


@functools.lru_cache(maxsize=16)
def _precision_under(default: Any) -> Any:
    """Returns the precision of a product under a default precision of the session."""
    like = jax.ShapeDtypeStruct((1, 1), "float32")
    return jax.make_jaxpr(jax.lax.dot)(like, like).jaxpr.eqns[0].params["precision"]


@or_none
def row_of(view: View, atom: Atom, like: Any) -> Atom:
    """Returns the row that an array repeats along all axes but the last, or None."""
    need(like.ndim > 0)
    width = like.shape[-1]
    while atom.aval.size != width or atom.aval.shape[-1:] != (width,):
        equation, last = view.match(atom, "broadcast_in_dim"), atom.aval.ndim - 1
        atom = equation.invars[0]
        dims = zip(equation.params["broadcast_dimensions"], atom.aval.shape, strict=True)
        need([d for d, n in dims if n != 1] == [last])
    return atom


def activation_of(view: View, atom: Atom) -> tuple[Atom, ops.Activation] | None:
    """Returns the argument and the name of the activation that computes an atom, or None."""
    return view.remembered("activation", atom, lambda: _activation_of(view, atom))


@or_none
def _activation_of(view: View, atom: Atom) -> tuple[Atom, ops.Activation]:
    need(jnp.issubdtype(atom.aval.dtype, jnp.floating))
    equation = required(view.producer(atom))
    for name, function in _WRITTEN:
        if _last_primitive(function) is equation.primitive:
            match = form_of(view, atom, [function])
            if match is not None:
                return match[0], name
    raise NoMatch


@functools.cache
def _last_primitive(function: Callable[[Any], Any]) -> Any:
    """Returns the primitive that computes the result of an activation, for arrays of any type."""
    return template(function, (1,), "float32").equations[-1].primitive
