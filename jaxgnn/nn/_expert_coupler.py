"""Experts that hear each other: couplers over hypergraphs, and over pairs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import Incidence, Normalization
from jaxgnn.nn._activations import name_of
from jaxgnn.nn._hypergraph_conv import HypergraphConv
from jaxgnn.nn._maxk import check_widths
from jaxgnn.nn._options import any_activation, at_least, checked_options

Strategy = Literal["all_pairs", "all_triples", "all", "alone"]
"""Which experts share a hyperedge: every two, every three, all of them, or none."""

_SUBSETS = {"alone": 1, "all_pairs": 2, "all_triples": 3}


class ExpertCoupler(nnx.Module):
    """Couples experts over a hypergraph whose nodes they are, and makes one output of theirs.

    Of the experts' outputs ``h [..., experts, features]`` each layer makes, token by token::

        h ← h + act(D⁻¹ H W B⁻¹ Hᵀ h Θ + b)

    with weights W of its own, learnt and positive. The combiner makes ``[..., features]`` of it:
    the mean over the experts, a linear map, gelu and LayerNorm. Without activation and residual
    connection the layers would be one linear map of a fixed mean of the experts, and with equal
    weights the same for every strategy.

    No token reads another, so that a coupler in a causal model leaks nothing.

    Args:
      features: width of the experts' outputs.
      num_experts: how many there are.
      strategy: hyperedges: ``"all_pairs"``, ``"all_triples"``, ``"all"`` for a single one,
        ``"alone"`` for one of each expert alone, which couples nothing; or given as sets of
        experts or a ``jaxgnn.Incidence``. Experts without a hyperedge stay by themselves, as all
        do where there are fewer than the strategy needs.
      layers: hypergraph convolutions.
      activation: of each: a function, a name as in ``ops.fused_linear``, or None.
      residual: add the input of a layer to its output.
      combiner: makes ``[..., features]`` of ``[..., experts, features]``; None for the one above.
      weighting: as in ``ops.hypergraph_conv``.
      normalization: as there.
      dtype: of the computation; None for what input and parameters promote to.
      param_dtype: of the parameters.
      path: as in the op.
      implementation: passed to the op.
      rngs: for the initial parameters.

    Raises:
      ValueError: if an option is not as above.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jaxgnn import nn
      >>> coupler = nn.ExpertCoupler(16, num_experts=4, rngs=nnx.Rngs(0))
      >>> coupler.incidence.shape
      (4, 6)
      >>> coupler(jnp.ones((2, 10, 4, 16))).shape
      (2, 10, 16)
    """

    @checked_options(activation=any_activation, layers=at_least(1))
    def __init__(
        self,
        features: int,
        num_experts: int,
        *,
        strategy: Strategy | Incidence | Iterable[Iterable[int]] = "all_pairs",
        layers: int = 2,
        activation: Callable[[Array], Array] | ops.Activation | None = jax.nn.gelu,
        residual: bool = True,
        combiner: Callable[[Array], Array] | None = None,
        weighting: ops.Weighting = "paper",
        normalization: Normalization = "mean",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        path: ops.HypergraphPath = "auto",
        implementation: ops.Name | None = None,
        rngs: nnx.Rngs,
    ):
        check_widths("ExpertCoupler", features)
        self.features = features
        self.num_experts = num_experts
        self.hyperedges = expert_hyperedges(strategy, num_experts)
        self.activation = name_of(activation)
        self.residual = residual
        self.implementation = implementation
        self.layers = nnx.List(
            HypergraphConv(
                features,
                features,
                num_hyperedges=len(self.hyperedges),
                activation=None if callable(self.activation) else self.activation,
                weighting=weighting,
                normalization=normalization,
                dtype=dtype,
                param_dtype=param_dtype,
                path=path,
                implementation=implementation,
                rngs=rngs,
            )
            for _ in range(layers)
        )
        if combiner is None:
            combiner = ExpertCombiner(features, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.combiner = combiner

    @property
    def incidence(self) -> Incidence:
        """The hypergraph, a constant."""
        return _incidence(self.hyperedges, self.num_experts)

    def __call__(
        self, x: Float[Array, "*batch experts features"]
    ) -> Float[Array, "*batch features"]:
        """One output for each token.

        Raises:
          ValueError: if the last axes of ``x`` are not experts and features.
        """
        return self.combiner(self.couple(x))

    def couple(
        self, x: Float[Array, "*batch experts features"]
    ) -> Float[Array, "*batch experts features"]:
        """The experts' outputs behind the layers, in front of the combiner."""
        _check_experts(self, x, self.num_experts, self.features)
        h, incidence = x, self.incidence
        for layer in self.layers:
            if callable(self.activation):
                update = self._activated(self.activation, layer(incidence, h))
                h = h.astype(update.dtype) + update if self.residual else update
            else:
                h = layer(incidence, h, residual=h if self.residual else None)
        return h

    def _activated(self, activation: Callable[[Array], Array], x: Array) -> Array:
        # Plain JAX has forward-mode gradients too.
        if ops.requested_implementation(self.implementation) == "xla":
            return activation(x)
        return _recomputed_behind(activation, x)


class PairwiseExpertCoupler(nnx.Module):
    """Couples experts by gated messages between every two of them, and makes one output of theirs.

    Each layer, token by token::

        m_i = Σ_{j≠i} σ(A_ij) σ(a · x_i + c · x_j + g) x_j
        x_i ← x_i + gelu(W x_i + U m_i + b)

    Then the combiner of ``ExpertCoupler``. The hypergraph's alternative, to compare with.

    Args:
      features: width of the experts' outputs.
      num_experts: how many there are.
      layers: rounds of messages.
      combiner: as in ``ExpertCoupler``.
      dtype: of the computation; None for what input and parameters promote to.
      param_dtype: of the parameters.
      rngs: for the initial parameters.

    Raises:
      ValueError: if a size is not positive.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jaxgnn import nn
      >>> coupler = nn.PairwiseExpertCoupler(16, num_experts=4, rngs=nnx.Rngs(0))
      >>> coupler(jnp.ones((2, 10, 4, 16))).shape
      (2, 10, 16)
    """

    @checked_options(layers=at_least(1))
    def __init__(
        self,
        features: int,
        num_experts: int,
        *,
        layers: int = 2,
        combiner: Callable[[Array], Array] | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_widths("PairwiseExpertCoupler", features)
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.features = features
        self.num_experts = num_experts
        self.layers = nnx.List(
            _GatedMessages(features, num_experts, **options) for _ in range(layers)
        )
        self.combiner = ExpertCombiner(features, **options) if combiner is None else combiner

    def __call__(
        self, x: Float[Array, "*batch experts features"]
    ) -> Float[Array, "*batch features"]:
        """One output for each token.

        Raises:
          ValueError: if the last axes of ``x`` are not experts and features.
        """
        return self.combiner(self.couple(x))

    def couple(
        self, x: Float[Array, "*batch experts features"]
    ) -> Float[Array, "*batch experts features"]:
        """The experts' outputs behind the layers, in front of the combiner."""
        _check_experts(self, x, self.num_experts, self.features)
        for layer in self.layers:
            x = layer(x)
        return x


class ExpertCombiner(nnx.Module):
    """``norm(gelu(W mean_e x_e + b))``: one output of the experts'.

    Args:
      features: width of the experts' outputs.
      dtype: of the computation; None for what input and parameters promote to.
      param_dtype: of the parameters.
      rngs: for the initial parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jaxgnn import nn
      >>> nn.ExpertCombiner(16, rngs=nnx.Rngs(0))(jnp.ones((10, 4, 16))).shape
      (10, 16)
    """

    @checked_options()
    def __init__(
        self,
        features: int,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_widths("ExpertCombiner", features)
        self.linear = nnx.Linear(
            features, features, dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        # The norm is made of numbers of full length, and rounded behind.
        self.norm = nnx.LayerNorm(features, param_dtype=param_dtype, rngs=rngs)

    def __call__(
        self, x: Float[Array, "*batch experts features"]
    ) -> Float[Array, "*batch features"]:
        """One output for each token."""
        z = jax.nn.gelu(self.linear(jnp.mean(x, axis=-2)))
        wide = jnp.float64 if z.dtype == jnp.float64 else jnp.float32
        return self.norm(z.astype(wide)).astype(z.dtype)


class _GatedMessages(nnx.Module):
    """A layer of ``PairwiseExpertCoupler``."""

    def __init__(self, features: int, num_experts: int, *, dtype, param_dtype, rngs: nnx.Rngs):
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.adjacency = nnx.Param(jnp.zeros((num_experts, num_experts), param_dtype))
        self.gate_of_receiver = nnx.Linear(features, 1, **options)
        self.gate_of_sender = nnx.Linear(features, 1, use_bias=False, **options)
        self.own = nnx.Linear(features, features, **options)
        self.messages = nnx.Linear(features, features, use_bias=False, **options)

    def __call__(
        self, x: Float[Array, "*batch experts features"]
    ) -> Float[Array, "*batch experts features"]:
        # The gate of a pair is linear in both, so that no pair is ever put together.
        logits = self.gate_of_receiver(x) + jnp.swapaxes(self.gate_of_sender(x), -1, -2)
        gates = jax.nn.sigmoid(logits) * jax.nn.sigmoid(self.adjacency[...]).astype(logits.dtype)
        others = ~np.eye(gates.shape[-1], dtype=bool)
        received = jnp.where(others, gates, 0) @ x.astype(gates.dtype)
        update = jax.nn.gelu(self.own(x) + self.messages(received))
        return x.astype(update.dtype) + update


def _recomputed_behind(activation: Callable[[Array], Array], x: Array) -> Array:
    """The activation, of which the backward pass keeps nothing but what it was applied to."""
    function, constants = jax.closure_convert(activation, x)
    return _recomputed(function, x, *constants)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recomputed(function, x, *constants):
    return function(x, *constants)


def _recomputed_forward(function, *inputs):
    return function(*inputs), inputs


def _recomputed_backward(function, inputs, dy):
    # The barrier keeps XLA from storing what both passes compute. (That of jax.checkpoint would
    # have the incoming gradient stored as well.)
    x, *constants = inputs
    return jax.vjp(function, jax.lax.optimization_barrier(x), *constants)[1](dy)


_recomputed.defvjp(_recomputed_forward, _recomputed_backward)


def expert_hyperedges(
    strategy: Strategy | Incidence | Iterable[Iterable[int]], num_experts: int
) -> tuple[tuple[int, ...], ...]:
    """The experts of each hyperedge, for one of the strategies or as given.

    Raises:
      ValueError: if there is no such strategy, or experts are given that are not there.
    """
    if isinstance(strategy, Incidence):
        if strategy.num_nodes != num_experts:
            expected = f"of {num_experts} nodes, one for each expert"
            raise bad_input("ExpertCoupler", "strategy", expected, strategy.num_nodes)
        graph = strategy.validate().by_hyperedge()
        rows = np.split(np.asarray(graph.indices), np.asarray(graph.indptr)[1:])[:-1]
        return tuple(tuple(row.tolist()) for row in rows)
    if not isinstance(strategy, str):
        given = Incidence.from_hyperedges(strategy, num_experts)
        return expert_hyperedges(given, num_experts)
    if strategy == "all":
        return (tuple(range(num_experts)),)
    if strategy not in _SUBSETS:
        expected = "'all_pairs', 'all_triples', 'all', 'alone', or the hyperedges"
        raise bad_input("ExpertCoupler", "strategy", expected, repr(strategy))
    return tuple(itertools.combinations(range(num_experts), _SUBSETS[strategy]))


@functools.lru_cache(maxsize=64)
def _incidence(hyperedges: tuple[tuple[int, ...], ...], num_experts: int) -> Incidence:
    """Modules hold tuples, which are static; its arrays would be state."""
    return Incidence.from_hyperedges(hyperedges, num_experts)


def _check_experts(layer: nnx.Module, x: Array, num_experts: int, features: int) -> None:
    if jnp.ndim(x) < 2 or x.shape[-2:] != (num_experts, features):
        expected = f"of shape [..., {num_experts}, {features}], experts by features"
        raise bad_input(type(layer).__name__, "x", expected, f"shape {jnp.shape(x)}")
