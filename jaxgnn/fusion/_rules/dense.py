"""Products with matrices, biases and activations become ``ops.fused_linear`` and ``ops.fused_mlp``.

``act(x @ W + b)`` is one ``fused_linear``, and ``act(x @ W + b) @ V + c``, of any number of layers,
one ``fused_mlp``.

Sound where

* the product is along the last axis of ``x`` with a matrix of its dtype, in the precision that the
  session has, which is that of the ops; the bias is one row for all;
* the activation is one that the ops have, and the same between all layers. It is recognised by its
  whole formula, and by that of its derivative where this is given (``jax.custom_jvp``);
* what is between the layers is read by nothing else: ``fused_mlp`` does not give it.

It pays only where the ops have a kernel that they would choose: elsewhere they run what stands
there already.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxgnn import ops
from jaxgnn.fusion._layers import Linear, activation_of, linear_of
from jaxgnn.fusion._program import Atom, Equation
from jaxgnn.fusion._rewrite import Refusal, Rewrite, Rule, nbytes
from jaxgnn.fusion._view import View
from jaxgnn.ops._core.dispatch import current_platform
from jaxgnn.ops._dense.fused_linear import FUSED_LINEAR
from jaxgnn.ops._dense.fused_mlp import FUSED_MLP


def _propose_mlp(view: View, equation: Equation) -> Rewrite | Refusal | None:
    (output,) = equation.outvars
    if not jnp.issubdtype(output.aval.dtype, jnp.floating):
        return None
    layers, activation = chain_of(view, output)
    if len(layers) < 2 or _goes_on(view, output, activation):
        return None
    kernels, biases = _types(layers)
    x = layers[0].x

    def function(x, *parameters):
        rest = list(parameters)
        made = [layer.parameters(rest) for layer in layers]
        kernels, biases = zip(*made, strict=True)
        return [ops.fused_mlp(x, kernels, biases, activation=activation)]

    hidden = nbytes(*(layer.x for layer in layers[1:]))
    inputs = [x, *(atom for layer in layers for atom in layer.inputs)]
    before, after = nbytes(*inputs, output) + 4 * hidden, nbytes(*inputs, output)
    note = f"{len(layers)} layers of {_rows(x)} rows -> fused_mlp"
    choice = FUSED_MLP.choose(
        current_platform(), x.aval, kernels, biases, activation=activation, precision=None
    )
    return Rewrite(equation, inputs, function, note, before, after, is_what_runs=choice == "xla")


def _propose_linear(view: View, equation: Equation) -> Rewrite | Refusal | None:
    output = equation.outvars[0]
    found = activation_of(view, output)
    layer = None if found is None else linear_of(view, found[0])
    if found is None or layer is None:
        return None
    argument, activation = found
    (kernel,), (bias,) = _types([layer])

    def function(x, *parameters):
        kernel, bias = layer.parameters(list(parameters))
        return [ops.fused_linear(x, kernel, bias, activation=activation)]

    inputs = [layer.x, *layer.inputs]
    before, after = nbytes(*inputs, output) + 2 * nbytes(argument), nbytes(*inputs, output)
    note = f"{activation} of a layer of {_rows(layer.x)} rows -> fused_linear"
    choice = FUSED_LINEAR.choose(
        current_platform(), layer.x.aval, kernel, bias, activation=activation, precision=None
    )
    return Rewrite(equation, inputs, function, note, before, after, is_what_runs=choice == "xla")


def chain_of(view: View, atom: Atom) -> tuple[list[Linear], ops.Activation | None]:
    """The layers that make an atom, the first one first, and the activation between them.

    Layers end at an array that something else reads too.
    """
    layers: list[Linear] = []
    activation = None
    while (layer := linear_of(view, atom)) is not None:
        layers.insert(0, layer)
        inner = activation_of(view, layer.x)
        if inner is None or activation not in (None, inner[1]):
            break
        if not view.is_read_once(layer.x) or linear_of(view, inner[0]) is None:
            break
        atom, activation = inner
    return layers, activation


def _goes_on(view: View, output: Any, activation: ops.Activation | None) -> bool:
    """Whether a longer chain has this one in it: one with the bias, or with the next layer."""
    for user in view.users(output):
        following = user.outvars[0] if user.primitive.name == "add" else None
        if following is not None and len(chain_of(view, following)[0]) > 1:
            return True
    dots = (e for e in view.program.equations if e.primitive.name == "dot_general")
    for dot in dots:
        found = activation_of(view, dot.invars[0])
        is_next = found is not None and found[0] is output and found[1] == activation
        if is_next and view.is_read_once(dot.invars[0]):
            return linear_of(view, dot.outvars[0]) is not None
    return False


def _types(layers: list[Linear]) -> tuple[list[Any], list[Any]]:
    """Kernels and biases of layers, as ``jax.ShapeDtypeStruct``."""
    kernels, biases = [], []
    for layer in layers:
        shape = layer.kernel.aval.shape
        shape = shape[::-1] if layer.is_transposed else shape
        dtype = layer.kernel.aval.dtype
        kernels.append(jax.ShapeDtypeStruct(shape, dtype))
        biases.append(None if layer.bias is None else jax.ShapeDtypeStruct(shape[1:], dtype))
    return kernels, biases


def _rows(x: Atom) -> int:
    return x.aval.size // max(x.aval.shape[-1], 1)


MLP = Rule("fused_mlp", frozenset(("add", "dot_general")), _propose_mlp)
LINEAR = Rule(
    "fused_linear",
    frozenset(("custom_jvp_call", "max", "mul", "integer_pow", "square", "jit")),
    _propose_linear,
)
