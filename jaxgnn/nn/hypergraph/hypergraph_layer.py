"""Shared parts of layers on hypergraphs: checks, positive weights, means and sums."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, Incidence
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule
from jaxgnn.nn.shared.layer import Layer
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, int_at_least
from jaxgnn.ops.shared import check_incidence


class HyperedgeWeights(DocumentedModule):
    """Learnt weights of hyperedges, positive: the softplus of a parameter.

    Layers divide by degrees, which are sums of weights. With weights of both signs, degrees could
    be close to zero.

    Args:
      num_hyperedges: number of hyperedges.
      initial: initial weight of each hyperedge, positive.

    Example:
      >>> nn.HyperedgeWeights(3)().tolist()
      [1.0, 1.0, 1.0]
    """

    @checked_options(num_hyperedges=int_at_least(0))
    def __init__(
        self, num_hyperedges: int, *, initial: float = 1.0, param_dtype: Any = jnp.float32
    ):
        where = "HyperedgeWeights"
        if not initial > 0:
            raise bad_input(where, "initial", "positive", initial)
        inverse = initial + np.log(-np.expm1(-initial))
        self.logits = nnx.Param(jnp.full(num_hyperedges, inverse, param_dtype))

    def __call__(self) -> Float[Array, " hyperedges"]:
        """Returns the positive weights of all hyperedges, [hyperedges]."""
        return jax.nn.softplus(self.logits[...])

    def of(self, layer: str, incidence: Incidence, given: Array | None) -> Array:
        """The weights of the hyperedges of a hypergraph.

        Args:
          layer: name of the layer in errors.
          incidence: the hypergraph of the call.
          given: the weights of the call.

        Raises:
          ValueError: if weights are given too, or the number of hyperedges differs.
        """
        learnt = self.logits.shape[0]
        if given is not None:
            expected = f"None, as the layer has learnt weights of {learnt} hyperedges"
            raise bad_input(layer, "weight", expected, f"shape {jnp.shape(given)}")
        if learnt != incidence.num_hyperedges:
            expected = f"of {learnt} hyperedges, as num_hyperedges says"
            raise bad_input(layer, "incidence", expected, incidence.num_hyperedges)
        return self()


class HypergraphLayer(Layer):
    """Base class of layers that are called with a hypergraph and the features of its nodes."""

    def _linear(self, in_features: int, out_features: int, **options: Any) -> nnx.Linear:
        """A linear layer with the dtypes of this one."""
        return nnx.Linear(in_features, out_features, **self._dtypes, **options)

    def _check(self, incidence: Any, x: Array, in_features: int) -> Incidence:
        """Returns the checked hypergraph, with its plan if concrete; it has a hyperedge or more."""
        incidence = check_incidence(self._name, incidence)
        expected = incidence.num_nodes, in_features
        if jnp.ndim(x) < 2 or x.shape[-2:] != expected:
            shape = f"of shape [..., {expected[0]}, {expected[1]}], nodes by features"
            raise bad_input(self._name, "x", shape, f"shape {jnp.shape(x)}")
        return incidence if incidence.num_hyperedges else incidence.padded(num_hyperedges=1)

    def _sums(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch cols dim"],
        *,
        rows: Float[Array, " rows"] | None = None,
        columns: Float[Array, " cols"] | None = None,
    ) -> Float[Array, "*batch rows dim"]:
        """Computes sums by row, with constant scales that the kernel applies."""
        scaled = dataclasses.replace(graph, row_scale=rows, col_scale=columns)
        return ops.spmm(scaled, x, implementation=self.implementation)

    def _row_sums(self, graph: CSRGraph, values: Float[Array, " cols"]) -> Float[Array, " rows"]:
        """Sums, for each row, the numbers that belong to its columns."""
        return self._sums(graph, values[:, None])[:, 0]

    def _hyperedge_means(
        self, incidence: Incidence, x: Float[Array, "*batch nodes dim"]
    ) -> Float[Array, "*batch hyperedges dim"]:
        """Computes the mean of each hyperedge's nodes; zero for a hyperedge without nodes."""
        share = power_or_zero(incidence.hyperedge_sizes(), -1)
        return self._sums(incidence.by_hyperedge(), x, rows=share)


class HypergraphConvolution(HypergraphLayer):
    """Base class of layers that are one linear map W, with a bias, around a linear function."""

    @checked_options()
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        check_widths(self._name, in_features, out_features)
        self.linear = self._linear(in_features, out_features, use_bias=use_bias, rngs=rngs)
        self._make_parameters()

    def _make_parameters(self) -> None:
        """Creates the parameters of a layer besides those of the linear map."""

    def __call__(
        self, incidence: Incidence, x: Float[Array, "*batch nodes in"]
    ) -> Float[Array, "*batch nodes out"]:
        """Applies the convolution; all leading axes of ``x`` share the hypergraph."""
        incidence = self._check(incidence, x, self.linear.in_features)
        return linear_around(self.linear, self._propagation(incidence), x)

    def _propagation(self, incidence: Incidence) -> Callable[[Array], Array]:
        """The linear function of the features of nodes that W is applied to."""
        raise NotImplementedError


def linear_around(
    linear: nnx.Linear, propagate: Callable[[Array], Array], x: Float[Array, "*batch nodes in"]
) -> Float[Array, "*batch rows out"]:
    """Computes ``W propagate(x) + b`` for linear ``propagate``, on the narrower of x and W x."""
    if linear.out_features >= linear.in_features:
        return linear(propagate(x))
    bias = None if linear.bias is None else linear.bias[...]
    x, kernel, bias = promote_dtype((x, linear.kernel[...], bias), dtype=linear.dtype)
    y = propagate(x @ kernel)
    return y if bias is None else y + bias


def power_or_zero(numbers: Array, exponent: float) -> Float[Array, " n"]:
    """Returns ``numbers ** exponent`` in float32, and zero where a number is not positive."""
    values = numbers.astype(jnp.float32)
    positive = values > 0
    return jnp.where(positive, jnp.where(positive, values, 1) ** exponent, 0)


def split_heads(
    z: Float[Array, "*batch rows width"], heads: int
) -> Float[Array, "*batch heads rows out"]:
    """Moves the heads to an axis before the rows."""
    return jnp.swapaxes(z.reshape(*z.shape[:-1], heads, z.shape[-1] // heads), -2, -3)


def join_heads(
    z: Float[Array, "*batch heads rows out"],
) -> Float[Array, "*batch rows width"]:
    """Concatenates the heads within each row."""
    z = jnp.swapaxes(z, -2, -3)
    return z.reshape(*z.shape[:-2], math.prod(z.shape[-2:]))
