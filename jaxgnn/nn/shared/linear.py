"""Linear layers fused with their activations, with the parameters of nnx.Linear."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.maxk import Features, check_kept, check_widths
from jaxgnn.nn.shared.options import activation as known_activation
from jaxgnn.nn.shared.options import checked_options, either_of, instance_of
from jaxgnn.ops.core.activations import ACTIVATIONS
from jaxgnn.ops.core.checks import check_choice
from jaxgnn.ops.core.eager import run_compiled

_kernel_init = nnx.initializers.lecun_normal()
_bias_init = nnx.initializers.zeros_init()
_replaced = nnx.initializers.zeros_init()  # for parameters that are replaced at once


class FusedLinear(DocumentedModule):
    """A linear layer and its activation as one op, ``activation(x @ kernel + bias)``.

    Replaces ``nnx.Linear``: parameters ``kernel`` and ``bias`` have the same names, shapes and
    initial values for the same ``rngs``, so that checkpoints of one can be read by the other.

    Args:
      activation: one of ``"relu"``, ``"gelu"``, ``"gelu_exact"``, ``"silu"``, ``"mish"``,
        ``"squared_relu"``, ``"tanh"``, ``"sigmoid"``; ``ops.MaxK(k)`` for compressed rows; or None
        for no activation.
      use_bias: whether to add a bias.
      kernel_init: initialiser of the kernel.
      bias_init: initialiser of the bias.

    Example:
      >>> layer = nn.FusedLinear(8, 4, activation="relu", rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((3, 8))).shape
      (3, 4)
      >>> linear = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
      >>> bool((nn.FusedLinear.from_linear(linear).kernel[...] == layer.kernel[...]).all())
      True
    """

    @checked_options(activation=either_of(known_activation, instance_of(ops.MaxK, "an ops.MaxK")))
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: ops.Activation | ops.MaxK | None = None,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: ops.Precision | None = None,
        kernel_init: nnx.Initializer = _kernel_init,
        bias_init: nnx.Initializer = _bias_init,
        implementation: ops.Name | None = None,
        rngs: nnx.Rngs,
    ):
        name = type(self).__name__
        check_widths(name, in_features, out_features)
        if isinstance(activation, ops.MaxK):
            check_kept(name, activation.k, out_features)
            check_choice(name, "activation.by", activation.by, "value", "magnitude")
        linear = nnx.Linear(
            in_features,
            out_features,
            use_bias=use_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            rngs=rngs,
        )
        self.kernel = linear.kernel
        self.bias = nnx.data(linear.bias)
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.activation: ops.Activation | ops.MaxK | None = activation
        self.precision: ops.Precision | None = precision
        self.implementation = implementation

    @classmethod
    def from_linear(
        cls,
        linear: nnx.Linear,
        *,
        activation: ops.Activation | ops.MaxK | None = None,
        precision: ops.Precision | None = None,
        implementation: ops.Name | None = None,
    ) -> FusedLinear:
        """Creates the same layer with an activation; it shares the parameters, without copies.

        Args:
          linear: an ``nnx.Linear`` with the defaults of ``precision``, ``preferred_element_type``,
            ``dot_general`` and ``promote_dtype``.
          activation: one of ``"relu"``, ``"gelu"``, ``"gelu_exact"``, ``"silu"``, ``"mish"``,
            ``"squared_relu"``, ``"tanh"``, ``"sigmoid"``; ``ops.MaxK(k)`` for compressed rows; or
            None for no activation.
          precision: products of float32 numbers in ``"highest"``, ``"tf32"`` or ``"bf16x3"``
            precision; None for the setting of JAX.
          implementation: name of the kernels of the op, such as ``"xla"``; None for the default.

        Raises:
          ValueError: if ``linear`` is anything else, including a subclass, or has one of these
            options set.
        """
        check_linear(f"{cls.__name__}.from_linear", "linear", linear)
        layer = cls(
            linear.in_features,
            linear.out_features,
            activation=activation,
            use_bias=linear.use_bias,
            dtype=linear.dtype,
            param_dtype=linear.param_dtype,
            precision=precision,
            kernel_init=_replaced,
            implementation=implementation,
            rngs=nnx.Rngs(0),
        )
        layer.kernel, layer.bias = linear.kernel, nnx.data(linear.bias)
        return layer

    def __call__(
        self,
        x: Float[Array, "*batch in"],
        *,
        activation: ops.Activation | ops.MaxK | None = None,
    ) -> Float[Array, "*batch out"] | CBSR:
        """Applies the layer to the last axis.

        Args:
          x: features.
          activation: activation to use instead of the layer's, for example MaxK with another ``k``.

        Raises:
          ValueError: if the last axis of ``x`` is not ``in_features``, or an option is unknown.
        """
        arrays = promote_dtype((x, *parameters(self)), dtype=self.dtype)
        return ops.fused_linear(
            *arrays,
            activation=self.activation if activation is None else activation,
            precision=self.precision,
            implementation=self.implementation,
        )


class FusedMLP(DocumentedModule):
    """A multilayer perceptron as one op, with an activation between its linear layers.

    Its parameters are those of a list ``layers`` of ``nnx.Linear``, so that it can read
    checkpoints of a module with such a list, and vice versa.

    Args:
      features: widths of the input, the hidden layers and the output.
      activation: activation after each layer except the last, one of ``"relu"``, ``"gelu"``,
        ``"gelu_exact"``, ``"silu"``, ``"mish"``, ``"squared_relu"``, ``"tanh"``, ``"sigmoid"``, or
        None for no activation.
      use_bias: whether to add biases.
      kernel_init: initialiser of the kernels.
      bias_init: initialiser of the biases.

    Example:
      >>> mlp = nn.FusedMLP([8, 32, 32, 4], activation="gelu", rngs=nnx.Rngs(0))
      >>> mlp(jnp.ones((3, 8))).shape
      (3, 4)
      >>> mlp.layers[1].kernel.shape
      (32, 32)
    """

    @checked_options(activation=known_activation)
    def __init__(
        self,
        features: Sequence[int],
        *,
        activation: ops.Activation | None,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: ops.Precision | None = None,
        kernel_init: nnx.Initializer = _kernel_init,
        bias_init: nnx.Initializer = _bias_init,
        implementation: ops.Name | None = None,
        rngs: nnx.Rngs,
    ):
        name = type(self).__name__
        if not isinstance(features, Sequence) or len(features) < 2:
            raise bad_input(name, "features", "at least two widths, input and output", features)
        check_widths(name, *features)
        options: dict[str, Any] = {"use_bias": use_bias, "dtype": dtype, "rngs": rngs}
        options |= {"param_dtype": param_dtype, "kernel_init": kernel_init, "bias_init": bias_init}
        self.layers = nnx.List(nnx.Linear(*widths, **options) for widths in pairwise(features))
        self.dtype = dtype
        self.activation: ops.Activation | None = activation
        self.precision: ops.Precision | None = precision
        self.implementation = implementation

    @classmethod
    def from_linears(
        cls,
        linears: Sequence[nnx.Linear],
        *,
        activation: ops.Activation | None,
        precision: ops.Precision | None = None,
        implementation: ops.Name | None = None,
    ) -> FusedMLP:
        """Creates an MLP from linear layers and an activation; parameters are shared, not copied.

        Args:
          linears: ``nnx.Linear`` layers with equal ``dtype``, and the defaults of ``precision``,
            ``preferred_element_type``, ``dot_general`` and ``promote_dtype``.
          activation: activation after each layer except the last, one of ``"relu"``, ``"gelu"``,
            ``"gelu_exact"``, ``"silu"``, ``"mish"``, ``"squared_relu"``, ``"tanh"``, ``"sigmoid"``,
            or None for no activation.
          precision: products of float32 numbers in ``"highest"``, ``"tf32"`` or ``"bf16x3"``
            precision; None for the setting of JAX.
          implementation: name of the kernels of the op, such as ``"xla"``; None for the default.

        Raises:
          ValueError: if there is no layer, a layer is of another kind, or its input width is not
            the output width of the previous layer.
        """
        where = f"{cls.__name__}.from_linears"
        if not linears:
            raise bad_input(where, "linears", "at least one layer", "none")
        for i, linear in enumerate(linears):
            check_linear(where, f"linears[{i}]", linear)
            if linear.dtype != linears[0].dtype:
                expected = f"of dtype {linears[0].dtype}, as the first"
                raise bad_input(where, f"linears[{i}]", expected, linear.dtype)
        for i, (before, after) in enumerate(pairwise(linears), start=1):
            if before.out_features != after.in_features:
                expected = f"of in_features {before.out_features}, the width of the layer before"
                raise bad_input(where, f"linears[{i}]", expected, after.in_features)
        mlp = cls(
            [linears[0].in_features, *(linear.out_features for linear in linears)],
            activation=activation,
            dtype=linears[0].dtype,
            precision=precision,
            kernel_init=_replaced,
            implementation=implementation,
            rngs=nnx.Rngs(0),
        )
        mlp.layers = nnx.List(linears)
        return mlp

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """Applies the layers to the last axis.

        Raises:
          ValueError: if the last axis of ``x`` is not the first width, or an option is unknown.
        """
        (x,), kernels, biases = promoted(self.dtype, self.layers, x)
        return ops.fused_mlp(
            x,
            kernels,
            biases,
            activation=self.activation,
            precision=self.precision,
            implementation=self.implementation,
        )


def xla_or_fastest(implementation: ops.Name | None):
    """Context manager that sets the implementation of ops without named kernels in a layer.

    These are ops with one implementation, or ops that are not sparse. ``"xla"`` also selects plain
    JAX for them; any other name selects the fastest.

    Args:
      implementation: name passed to the layer; None for the session default.
    """
    asked = ops.requested_implementation(implementation)
    return ops.default_implementation("xla" if asked == "xla" else None)


def apply_linear(
    layer: FusedLinear,
    x: Features | CSRGraph,
    implementation: ops.Name | None,
    *,
    activation: ops.Activation | ops.MaxK | None = None,
) -> Any:
    """A linear layer among sparse ops, whose ``implementation`` does not name kernels of products.

    Names of kernels select the fastest product, because it has no ``"ffi"`` kernels, and its
    ``"pallas"`` kernels support few widths. ``"xla"`` selects plain JAX for both. Compressed rows
    are expanded for the product, and again in the backward pass, so that the dense activations are
    not stored. For a sparse matrix only the stored entries are multiplied.

    Args:
      layer: linear layer constructed with ``implementation=None``.
      x: features, dense or compressed, or a sparse matrix of nodes and features.
      implementation: name of the kernels of the sparse ops; None for the default.
      activation: activation to use instead of the layer's.

    Raises:
      ValueError: if a sparse matrix does not have ``in_features`` columns.
    """
    if isinstance(x, CSRGraph):
        return _apply_to_sparse(layer, x, implementation, activation or layer.activation)
    asked = ops.requested_implementation(implementation)
    with xla_or_fastest(implementation):
        if not isinstance(x, CBSR):
            return layer(as_jax(type(layer).__name__, "x", x), activation=activation)
        graphdef, state = nnx.split(layer)
        return run_compiled(_expand_and_apply, _Product(graphdef, asked, activation), (state, x))


def _apply_to_sparse(
    layer: FusedLinear,
    x: CSRGraph,
    implementation: ops.Name | None,
    activation: ops.Activation | ops.MaxK | None,
) -> Any:
    """The layer on a sparse matrix: for each of its rows a sum of rows of the kernel."""
    if x.num_cols != layer.in_features:
        expected = f"a sparse matrix of {layer.in_features} columns, the input's width"
        raise bad_input(type(layer).__name__, "x", expected, f"{x.num_cols} columns")
    kernel, bias = promote_dtype(parameters(layer), dtype=layer.dtype)
    z = ops.spmm(x, kernel, implementation=implementation)
    z = z if bias is None else z + bias
    if isinstance(activation, ops.MaxK):
        return ops.maxk(z, activation.k, by=activation.by, implementation=implementation)
    return z if activation is None else ACTIVATIONS[activation].activate(z).astype(z.dtype)


class _Product(NamedTuple):
    """Static description of a linear layer on compressed rows."""

    graphdef: Any
    implementation: ops.Name | None
    activation: ops.Activation | ops.MaxK | None


def _expand_and_apply(product: _Product, arguments: tuple[Any, CBSR]) -> Any:
    """Applies the layer to expanded rows; the backward pass stores the compressed ones."""

    @jax.checkpoint
    def apply(state, kept):
        dense = ops.todense(kept, implementation=product.implementation)
        return nnx.merge(product.graphdef, state)(dense, activation=product.activation)

    return apply(*arguments)


def apply_mlp(mlp: Callable[[Array], Array], x: Array, implementation: ops.Name | None) -> Array:
    """Applies an MLP among sparse ops, whose ``implementation`` does not name its kernels."""
    with xla_or_fastest(implementation):
        return mlp(x)


def parameters(layer: nnx.Linear | FusedLinear) -> tuple[Array, Array | None]:
    """Returns the kernel and bias of a layer."""
    return layer.kernel[...], None if layer.bias is None else layer.bias[...]


def promoted(
    dtype: DTypeLike | None, layers: Iterable[nnx.Linear | FusedLinear], *arrays: Any
) -> tuple[Any, Any, Any]:
    """Arrays, and the kernels and biases of layers, all in one dtype."""
    kernels, biases = zip(*map(parameters, layers), strict=True)
    arrays_in_dtype: Any = promote_dtype((*arrays, *kernels, *biases), dtype=dtype)
    first, last = len(arrays), len(arrays) + len(kernels)
    return arrays_in_dtype[:first], arrays_in_dtype[first:last], arrays_in_dtype[last:]


def check_linear(where: str, argument: str, linear: Any) -> None:
    """Raises ValueError unless ``linear`` computes what ``ops.fused_linear`` does."""
    # Additions of a subclass, such as adapters, would be lost.
    if type(linear) is not nnx.Linear:
        raise bad_input(where, argument, "an nnx.Linear", type(linear).__name__)
    extras = {
        "precision": linear.precision is not None,
        "preferred_element_type": linear.preferred_element_type is not None,
        "dot_general": linear.dot_general is not lax.dot_general,
        "promote_dtype": linear.promote_dtype is not promote_dtype,
    }
    if any(extras.values()):
        expected = f"without {', '.join(extras)} of its own"
        got = "one with " + ", ".join(name for name, has in extras.items() if has)
        raise bad_input(where, argument, expected, got)
