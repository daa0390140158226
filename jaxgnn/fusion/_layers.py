"""Layers of networks in a jaxpr: products with bias, and activations by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxgnn import ops
from jaxgnn.fusion._program import Atom, Program, is_variable
from jaxgnn.fusion._templates import argument_of
from jaxgnn.fusion._view import View

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
    """``x @ kernel + bias`` along the last axis.

    Attributes:
      x: the array that is multiplied.
      kernel: [in, out].
      bias: an array of ``out`` numbers and axes of size one, or None.
      is_transposed: whether the kernel is [out, in].
    """

    x: Atom
    kernel: Atom
    bias: Atom | None
    is_transposed: bool

    @property
    def inputs(self) -> list[Atom]:
        """The kernel, followed by the bias if there is one."""
        return [self.kernel] if self.bias is None else [self.kernel, self.bias]

    def parameters(self, values: list[Any]) -> tuple[Any, Any]:
        """The kernel as [in, out] and the bias as [out], taken from the front of ``values``."""
        kernel = values.pop(0)
        kernel = kernel.T if self.is_transposed else kernel
        return kernel, None if self.bias is None else values.pop(0).reshape(-1)


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


def _product_of(view: View, atom: Atom, bias: Atom | None) -> Linear | None:
    equation = view.made_by(atom, "dot_general")
    if equation is None:
        return None
    x, kernel = equation.invars
    (of_x, of_kernel), batch = equation.params["dimension_numbers"]
    if kernel.aval.ndim != 2 or any(batch) or tuple(of_x) != (x.aval.ndim - 1,):
        return None
    if not x.aval.dtype == kernel.aval.dtype == atom.aval.dtype:
        return None
    if equation.params["precision"] != session_precision():  # ops use it
        return None
    return Linear(x, kernel, bias, is_transposed=tuple(of_kernel) == (1,))


def session_precision() -> Any:
    """The precision of a product without an explicit precision."""
    return _precision_under(jax.config.jax_default_matmul_precision)


@functools.lru_cache(maxsize=16)
def _precision_under(default: Any) -> Any:
    """The precision that JAX writes into a product while its option has the value ``default``."""
    like = jax.ShapeDtypeStruct((1, 1), "float32")
    return jax.make_jaxpr(jax.lax.dot)(like, like).jaxpr.eqns[0].params["precision"]


def row_of(view: View, atom: Atom, like: Any) -> Atom | None:
    """The row that an array repeats along all axes but the last, or None."""
    if like.ndim == 0:
        return None
    width = like.shape[-1]
    while is_variable(atom):
        if atom.aval.size == width and atom.aval.ndim and atom.aval.shape[-1] == width:
            return atom
        equation = view.made_by(atom, "broadcast_in_dim")
        if equation is None:
            return None
        inner = equation.invars[0]
        last = atom.aval.ndim - 1
        varies = [
            d
            for d, n in zip(equation.params["broadcast_dimensions"], inner.aval.shape, strict=True)
            if n != 1
        ]
        if varies != [last]:
            return None
        atom = inner
    return None


def activation_of(view: View, atom: Atom) -> tuple[Atom, ops.Activation] | None:
    """The argument and the name of the activation that computes an atom, or None."""
    return view.remembered("activation", atom, lambda: _activation_of(view, atom))


def _activation_of(view: View, atom: Atom) -> tuple[Atom, ops.Activation] | None:
    if not jnp.issubdtype(atom.aval.dtype, jnp.floating):
        return None
    equation = view.producer(atom)
    if equation is None:
        return None
    shape, dtype = tuple(atom.aval.shape), str(atom.aval.dtype)
    for name, function in _WRITTEN:
        if _last_primitive(function) is equation.primitive:
            argument = argument_of(view, atom, _template(function, shape, dtype))
            if argument is not None:
                return argument, name
    return None


@functools.cache
def _last_primitive(function: Callable[[Any], Any]) -> Any:
    """The primitive that computes the result of an activation, for arrays of any type."""
    return _template(function, (1,), "float32").equations[-1].primitive


@functools.lru_cache(maxsize=1024)
def _template(function: Callable[[Any], Any], shape: tuple[int, ...], dtype: str) -> Program:
    """The program of an activation for arrays of this type."""
    return Program.of(jax.make_jaxpr(function)(jax.ShapeDtypeStruct(shape, dtype)))
