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
    """The atom at the input of a template if an atom matches it, or None.

    A template is the program of a function of one array, with one result.
    """
    makers = {v: e for e in template.equations for v in e.outvars}
    found: dict[Any, Atom] = {}

    def matches(pattern: Atom, actual: Atom) -> bool:
        if not is_variable(pattern):
            return not is_variable(actual) and _same_literal(pattern, actual)
        if pattern in found:
            return found[pattern] is actual
        if not is_variable(actual):
            return False
        wanted, equation = makers.get(pattern), view.producer(actual)
        found[pattern] = actual
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

    return found.get(template.inputs[0]) if matches(template.outputs[0], atom) else None


@functools.lru_cache(maxsize=1024)
def template(
    function: Callable[..., Any], shape: tuple[int, ...], dtype: str, *options: Any
) -> Program:
    """The program of a function of an array of this type and of options."""
    like = jax.ShapeDtypeStruct(shape, dtype)
    return Program.of(jax.make_jaxpr(lambda x: function(x, *options))(like))


def form_of(
    view: View, atom: Atom, forms: Sequence[Callable[..., Any]], *options: Any
) -> tuple[Atom, int] | None:
    """The argument of the form that computes an atom, and the form's position; or None."""
    for i, form in enumerate(forms):
        wanted = template(form, tuple(atom.aval.shape), str(atom.aval.dtype), *options)
        argument = argument_of(view, atom, wanted)
        if argument is not None:
            return argument, i
    return None


def calls_the_same(one: Equation, other: Equation) -> bool:
    """Whether two equations do the same with any operands, and return arrays of one type.

    Loops with separate bodies match if all equations of the bodies do the same.
    """
    if one is other:
        return True
    types = [[str(a.aval) for a in (*e.invars, *e.outvars)] for e in (one, other)]
    return one.primitive is other.primitive and types[0] == types[1] and _does_the_same(one, other)


def _does_the_same(one: Equation, other: Equation) -> bool:
    """Whether equations of one primitive do the same, and have the same derivative if given."""
    if one.primitive.name == "custom_jvp_call":  # each call of a function has its own parameters
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
    except TypeError:  # an array, which may be large
        return one is other


def _same_body(one: Any, other: Any) -> bool:
    """Whether two jaxprs have the same equations, in the same order, and the same constants."""
    jaxprs = [getattr(body, "jaxpr", body) for body in (one, other)]
    constants = [getattr(body, "consts", ()) for body in (one, other)]
    first, second = jaxprs
    if len(first.eqns) != len(second.eqns) or len(first.outvars) != len(second.outvars):
        return False
    if any(a is not b for a, b in zip(*constants, strict=False)):
        return False
    found: dict[Any, Any] = {}

    def defined(left: list[Any], right: list[Any]) -> bool:
        found.update(zip(left, right, strict=False))
        return [str(v.aval) for v in left] == [str(v.aval) for v in right]

    def read(left: Any, right: Any) -> bool:
        return found[left] is right if is_variable(left) else reads_the_same(left, right)

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
    """The program of a function and of its forward derivative, traced once for each function.

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

    made = Program.of(jax.make_jaxpr(both)(*types, *types))
    values = made.constants.values()
    keys = (digest(v) if is_concrete(v) and is_plain(v) else id(v) for v in values)
    return str(made.closed()), *keys


# Formulae of the activations of this library's ops in plain JAX.
_WRITTEN: tuple[tuple[ops.Activation, Callable[[Any], Any]], ...] = (
    ("relu", jax.nn.relu),  # the derivative of jnp.maximum(x, 0) is another one at zero
    ("gelu", jax.nn.gelu),
    ("gelu_exact", functools.partial(jax.nn.gelu, approximate=False)),
    ("silu", jax.nn.silu),
    ("silu", lambda x: x * jax.nn.sigmoid(x)),
    ("mish", jax.nn.mish),
    ("squared_relu", lambda x: jnp.square(jax.nn.relu(x))),
    ("squared_relu", lambda x: jax.nn.relu(x) ** 2),
)


@dataclass(frozen=True)
class Linear:
    """``x @ kernel + bias`` along the last axis."""

    x: Atom
    kernel: Atom  # [in, out]
    bias: Atom | None  # ``out`` numbers and axes of size one
    is_transposed: bool  # whether the kernel is [out, in]

    @property
    def inputs(self) -> list[Atom]:
        """The kernel, followed by the bias if there is one."""
        return [self.kernel] if self.bias is None else [self.kernel, self.bias]

    def parameters(self, values: Values) -> tuple[Any, Any]:
        """The kernel as [in, out] and the bias as [out]."""
        kernel = values[self.kernel]
        bias = None if self.bias is None else values[self.bias].reshape(-1)
        return kernel.T if self.is_transposed else kernel, bias


def linear_of(view: View, atom: Atom) -> Linear | None:
    """The product with a matrix, and the sum with a bias, that compute an atom, or None."""
    return view.remembered("linear", atom, lambda: _linear_of(view, atom))


def _linear_of(view: View, atom: Atom) -> Linear | None:
    equation = view.made_by(atom, "add")
    if equation is None:
        return _product_of(view, atom, None)
    for product, added in (equation.invars, equation.invars[::-1]):
        bias = row_of(view, added, atom.aval)
        made = None if bias is None else _product_of(view, product, bias)
        if made is not None:
            return made
    return None


@or_none
def _product_of(view: View, atom: Atom, bias: Atom | None) -> Linear:
    equation = view.match(atom, "dot_general")
    x, kernel = equation.invars
    need(is_matrix_product(equation) and x.aval.dtype == kernel.aval.dtype == atom.aval.dtype)
    need(equation.params["precision"] == session_precision())  # ops use it
    return Linear(x, kernel, bias, is_transposed=is_transposed(equation))


def is_matrix_product(dot: Equation) -> bool:
    """Whether a ``dot_general`` is a product along the last axis of an array with a matrix."""
    x, kernel = dot.invars
    (of_x, _), batch = dot.params["dimension_numbers"]
    return kernel.aval.ndim == 2 and not any(batch) and tuple(of_x) == (x.aval.ndim - 1,)


def is_transposed(dot: Equation) -> bool:
    """Whether the matrix of a product is [out, in]."""
    return tuple(dot.params["dimension_numbers"][0][1]) == (1,)


def chain_of(
    view: View, atom: Atom, *, is_private: bool = False
) -> tuple[list[Linear], ops.Activation | None]:
    """The layers that compute an atom, the first one first, and the activation between all.

    If they are to be private, nothing else reads the values between them.
    """
    layers: list[Linear] = []
    activation = None
    while (layer := linear_of(view, atom)) is not None:
        layers.insert(0, layer)
        inner = activation_of(view, layer.x)
        if inner is None or activation not in (None, inner[1]):
            break
        if linear_of(view, inner[0]) is None or (is_private and not view.is_read_once(layer.x)):
            break
        atom, activation = inner
    return layers, activation


def session_precision() -> Any:
    """The precision of a product without an explicit precision."""
    return _precision_under(jax.config.jax_default_matmul_precision)


@functools.lru_cache(maxsize=16)
def _precision_under(default: Any) -> Any:
    """The precision that JAX writes into a product while its option has the value ``default``."""
    like = jax.ShapeDtypeStruct((1, 1), "float32")
    return jax.make_jaxpr(jax.lax.dot)(like, like).jaxpr.eqns[0].params["precision"]


@or_none
def row_of(view: View, atom: Atom, like: Any) -> Atom:
    """The row that an array repeats along all axes but the last, or None."""
    need(like.ndim > 0)
    width = like.shape[-1]
    while atom.aval.size != width or atom.aval.shape[-1:] != (width,):
        equation, last = view.match(atom, "broadcast_in_dim"), atom.aval.ndim - 1
        atom = equation.invars[0]
        dims = zip(equation.params["broadcast_dimensions"], atom.aval.shape, strict=True)
        need([d for d, n in dims if n != 1] == [last])
    return atom


def activation_of(view: View, atom: Atom) -> tuple[Atom, ops.Activation] | None:
    """The argument and the name of the activation that computes an atom, or None."""
    return view.remembered("activation", atom, lambda: _activation_of(view, atom))


@or_none
def _activation_of(view: View, atom: Atom) -> tuple[Atom, ops.Activation]:
    need(jnp.issubdtype(atom.aval.dtype, jnp.floating))
    equation = required(view.producer(atom))
    for name, function in _WRITTEN:
        if _last_primitive(function) is equation.primitive:
            found = form_of(view, atom, [function])
            if found is not None:
                return found[0], name
    raise NoMatch


@functools.cache
def _last_primitive(function: Callable[[Any], Any]) -> Any:
    """The primitive that computes the result of an activation, for arrays of any type."""
    return template(function, (1,), "float32").equations[-1].primitive
