"""Products with matrices, biases and activations become ``ops.fused_linear`` and ``ops.fused_mlp``.

``act(x @ W + b)`` is one ``fused_linear``, and ``act(x @ W + b) @ V + c``, of any number of layers,
one ``fused_mlp``.

Sound where

* the product is along the last axis of ``x`` with a matrix of its dtype, in the precision of the
  session, which is that of the ops; the bias is one row for all;
* the activation is one that the ops have, and the same between all layers. It is recognised by its
  whole formula, and by that of its derivative where this is given (``jax.custom_jvp``);
* nothing else reads the values between the layers: ``fused_mlp`` does not return them.

It pays only where the ops would choose a kernel: elsewhere they run the same code as the replaced
code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxgnn import ops
from jaxgnn.fusion.program.matching import need, required
from jaxgnn.fusion.program.program import Atom, Equation, Values, is_variable, nbytes
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.templates import DenseLayer, activation_of, chain_of, dense_layer_of
from jaxgnn.fusion.rules.rule import Rewrite, Rule
from jaxgnn.ops.core.dispatch import current_platform
from jaxgnn.ops.shared import FUSED_LINEAR, FUSED_MLP


def _propose_mlp(view: View, equation: Equation) -> Rewrite:
    (output,) = equation.outvars
    need(jnp.issubdtype(output.aval.dtype, jnp.floating))
    layers, activation = chain_of(view, output, is_private=True)
    need(activation is not None and not _goes_on(view, output, activation))
    x, types = layers[0].x, [_types(layer) for layer in layers]

    def function(*arrays):
        values = Values(inputs, arrays)
        kernels, biases = zip(*(layer.parameters(values) for layer in layers), strict=True)
        return [ops.fused_mlp(values[x], kernels, biases, activation=activation)]

    hidden = nbytes(*(layer.x for layer in layers[1:]))
    inputs = [x, *(atom for layer in layers for atom in layer.inputs)]
    before, after = nbytes(*inputs, output) + 4 * hidden, nbytes(*inputs, output)
    note = f"{len(layers)} layers of {_rows(x)} rows -> fused_mlp"
    kernels, biases = map(list, zip(*types, strict=True))
    choice = FUSED_MLP.choose(
        current_platform(), x.aval, kernels, biases, activation=activation, precision=None
    )
    return Rewrite(equation, inputs, function, note, before, after, is_what_runs=choice == "xla")


def _propose_linear(view: View, equation: Equation) -> Rewrite:
    output = equation.outvars[0]
    argument, activation = required(activation_of(view, output))
    layer = required(dense_layer_of(view, argument))

    def function(*arrays):
        values = Values(inputs, arrays)
        kernel, bias = layer.parameters(values)
        return [ops.fused_linear(values[layer.x], kernel, bias, activation=activation)]

    inputs = [layer.x, *layer.inputs]
    before, after = nbytes(*inputs, output) + 2 * nbytes(argument), nbytes(*inputs, output)
    note = f"{activation} of a layer of {_rows(layer.x)} rows -> fused_linear"
    choice = FUSED_LINEAR.choose(
        current_platform(), layer.x.aval, *_types(layer), activation=activation, precision=None
    )
    return Rewrite(equation, inputs, function, note, before, after, is_what_runs=choice == "xla")


def _goes_on(view: View, output: Any, activation: ops.Activation) -> bool:
    """Returns whether a longer chain of layers contains this one."""
    sums = [e for e in view.users(output) if e.primitive.name == "add"]
    if any(chain_of(view, e.outvars[0], is_private=True)[1] for e in sums):
        return True
    products = _products_after(view).get(output, ())
    return any(chain_of(view, dot.outvars[0], is_private=True)[1] == activation for dot in products)


def _products_after(view: View) -> Mapping[Any, list[Equation]]:
    """Maps arguments of activations to the products that read the activation."""

    def reach() -> Mapping[Any, list[Equation]]:
        reached: dict[Any, list[Equation]] = {}
        for equation in view.program.equations:
            if equation.primitive.name == "dot_general":
                inner = activation_of(view, equation.invars[0])
                if inner is not None and is_variable(inner[0]):
                    reached.setdefault(inner[0], []).append(equation)
        return reached

    return view.remembered("products after an activation", None, reach)


def _types(layer: DenseLayer) -> tuple[Any, Any]:
    """Returns the kernel and the bias of a layer, as ``jax.ShapeDtypeStruct``."""
    shape, dtype = layer.kernel.aval.shape, layer.kernel.aval.dtype
    shape = shape[::-1] if layer.is_transposed else shape
    bias = None if layer.bias is None else jax.ShapeDtypeStruct(shape[1:], dtype)
    return jax.ShapeDtypeStruct(shape, dtype), bias


def _rows(x: Atom) -> int:
    return x.aval.size // max(x.aval.shape[-1], 1)


MLP = Rule("fused_mlp", frozenset(("add", "dot_general")), _propose_mlp)
LINEAR = Rule(
    "fused_linear",
    frozenset(("custom_jvp_call", "max", "mul", "integer_pow", "square", "jit")),
    _propose_linear,
)
