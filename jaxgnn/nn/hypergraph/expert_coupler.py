"""Couplers that mix the outputs of experts, over a hypergraph or over pairs."""

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
from jaxgnn.graph import Incidence
from jaxgnn.nn.hypergraph.hypergraph_conv import HypergraphConv
from jaxgnn.nn.shared.activations import name_of
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import any_activation, checked_options, int_at_least
from jaxgnn.ops.core.custom_gradient import custom_vjp

Strategy = Literal["all_pairs", "all_triples", "all", "alone"]
"""Hyperedges of experts: every pair, every triple, all experts together, or none."""

_SUBSETS = {"alone": 1, "all_pairs": 2, "all_triples": 3}


class _Coupler(DocumentedModule):
    """Base class of couplers: layers over the experts, and a combiner of their outputs."""

    features: int
    num_experts: int
    combiner: Callable[[Array], Array]

    def __call__(
        self, x: Float[Array, "*batch experts features"]
    ) -> Float[Array, "*batch features"]:
        """Returns one combined output for each token.

        Raises:
          ValueError: if the last axes of ``x`` are not experts and features.
        """
        return self.combiner(self.couple(x))

    def couple(
        self, x: Float[Array, "*batch experts features"]
    ) -> Float[Array, "*batch experts features"]:
        """Returns the experts' outputs after the layers, before the combiner."""
        if jnp.ndim(x) < 2 or x.shape[-2:] != (self.num_experts, self.features):
            expected = f"of shape [..., {self.num_experts}, {self.features}], experts by features"
            raise bad_input(type(self).__name__, "x", expected, f"shape {jnp.shape(x)}")
        return self._layered(x)

    def _layered(self, x: Float[Array, "*batch experts features"]) -> Array:
        """The experts' outputs after the layers."""
        raise NotImplementedError


class ExpertCoupler(_Coupler):
    """Mixes experts over a hypergraph whose nodes are the experts, and combines their outputs.

    Each layer maps the experts' outputs ``h [..., experts, features]``, token by token, to::

        h ← h + act(D⁻¹ H W B⁻¹ Hᵀ h Θ + b)

    with its own learnt, positive weights W. The combiner then reduces h to ``[..., features]``: the
    mean over the experts, a linear map, gelu and LayerNorm. Without activation and residual
    connection the layers would be one linear map of a fixed mean of the experts. With equal weights
    they would be the same for every strategy.

    Tokens do not read each other, so a coupler keeps a causal model causal.

    Args:
      features: width of the experts' outputs.
      num_experts: number of experts.
      strategy: the hyperedges: ``"all_pairs"``, ``"all_triples"``, ``"all"`` for a single hyperedge
        of all experts, ``"alone"`` for a hyperedge of each single expert, which couples nothing; or
        sets of experts, or a ``jaxgnn.Incidence``. Experts without a hyperedge are not coupled, and
        no expert is coupled if the strategy needs more experts than there are.
      layers: number of hypergraph convolutions.
      activation: activation of each convolution: a function, one of ``"relu"``, ``"gelu"``,
        ``"gelu_exact"``, ``"silu"``, ``"mish"``, ``"squared_relu"``, or None for no activation.
      residual: whether to add the input of a layer to its output.
      combiner: maps ``[..., experts, features]`` to ``[..., features]``; None for the combiner
        described above.
      weighting: ``"paper"``, or ``"pyg"`` for W in D alone, as in torch-geometric.
      normalization: ``"mean"`` for the formula above, or ``"sym"`` for ``D^-½ H W B⁻¹ Hᵀ D^-½``.
      path: ``"sums"`` over the incidences, ``"mixing"`` by one matrix, or ``"auto"`` for the matrix
        where there are at most 128 experts.

    Example:
      >>> coupler = nn.ExpertCoupler(16, num_experts=4, rngs=nnx.Rngs(0))
      >>> coupler.incidence.shape
      (4, 6)
      >>> coupler(jnp.ones((2, 10, 4, 16))).shape
      (2, 10, 16)
    """

    @checked_options(activation=any_activation, layers=int_at_least(1))
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
        normalization: Literal["mean", "sym"] = "mean",
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
        """The coupling hypergraph, which is constant."""
        return _incidence(self.hyperedges, self.num_experts)

    def _layered(self, x: Float[Array, "*batch experts features"]) -> Array:
        h, incidence = x, self.incidence
        for layer in self.layers:
            if callable(self.activation):
                update = self._activated(self.activation, layer(incidence, h))
                h = h.astype(update.dtype) + update if self.residual else update
            else:
                h = layer(incidence, h, residual=h if self.residual else None)
        return h

    def _activated(self, activation: Callable[[Array], Array], x: Array) -> Array:
        if ops.requested_implementation(self.implementation) == "xla":
            return activation(x)
        return _recomputed_behind(activation, x)


class PairwiseExpertCoupler(_Coupler):
    """Mixes experts by gated messages between all pairs, and combines their outputs.

    Each layer, token by token::

        m_i = Σ_{j≠i} σ(A_ij) σ(a · x_i + c · x_j + g) x_j
        x_i ← x_i + gelu(W x_i + U m_i + b)

    The combiner then averages the experts and applies a linear map, gelu and LayerNorm. This is a
    baseline for ``ExpertCoupler``.

    Args:
      features: width of the experts' outputs.
      num_experts: number of experts.
      layers: number of rounds of messages.
      combiner: maps ``[..., experts, features]`` to ``[..., features]``; None for the combiner
        described above.

    Example:
      >>> coupler = nn.PairwiseExpertCoupler(16, num_experts=4, rngs=nnx.Rngs(0))
      >>> coupler(jnp.ones((2, 10, 4, 16))).shape
      (2, 10, 16)
    """

    @checked_options(layers=int_at_least(1))
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

    def _layered(self, x: Float[Array, "*batch experts features"]) -> Array:
        for layer in self.layers:
            x = layer(x)
        return x


class ExpertCombiner(DocumentedModule):
    """Combines the outputs of all experts into one: ``norm(gelu(W mean_e x_e + b))``.

    Args:
      features: width of the experts' outputs.

    Example:
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
        # The norm is computed in full precision and rounded afterwards.
        self.norm = nnx.LayerNorm(features, param_dtype=param_dtype, rngs=rngs)

    def __call__(
        self, x: Float[Array, "*batch experts features"]
    ) -> Float[Array, "*batch features"]:
        """Returns one combined output for each token."""
        z = jax.nn.gelu(self.linear(jnp.mean(x, axis=-2)))
        wide = jnp.float64 if z.dtype == jnp.float64 else jnp.float32
        return self.norm(z.astype(wide)).astype(z.dtype)


class _GatedMessages(nnx.Module):
    """One round of messages of ``PairwiseExpertCoupler``."""

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
        # The gate of a pair is a sum of two linear terms, so pairs are never concatenated.
        logits = self.gate_of_receiver(x) + jnp.swapaxes(self.gate_of_sender(x), -1, -2)
        gates = jax.nn.sigmoid(logits) * jax.nn.sigmoid(self.adjacency[...]).astype(logits.dtype)
        others = ~np.eye(gates.shape[-1], dtype=bool)
        received = jnp.where(others, gates, 0) @ x.astype(gates.dtype)
        update = jax.nn.gelu(self.own(x) + self.messages(received))
        return x.astype(update.dtype) + update


def _recomputed_behind(activation: Callable[[Array], Array], x: Array) -> Array:
    """Applies the activation; the backward pass stores only its input."""
    function, constants = jax.closure_convert(activation, x)
    return _recomputed(function, x, *constants)


@functools.partial(custom_vjp, nondiff_argnums=(0,))
def _recomputed(function, x, *constants):
    return function(x, *constants)


def _recomputed_forward(function, *inputs):
    return function(*inputs), inputs


def _recomputed_backward(function, inputs, dy):
    # The barrier keeps XLA from storing results that both passes compute. (The barrier of
    # jax.checkpoint would also store the incoming gradient.)
    x, *constants = inputs
    return jax.vjp(function, jax.lax.optimization_barrier(x), *constants)[1](dy)


_recomputed.defvjp(_recomputed_forward, _recomputed_backward)


def expert_hyperedges(
    strategy: Strategy | Incidence | Iterable[Iterable[int]], num_experts: int
) -> tuple[tuple[int, ...], ...]:
    """Returns the experts of each hyperedge, from a strategy's name or from explicit sets."""
    if isinstance(strategy, Incidence):
        if strategy.num_nodes != num_experts:
            expected = f"of {num_experts} nodes, one for each expert"
            raise bad_input("ExpertCoupler", "strategy", expected, strategy.num_nodes)
        graph = strategy.validate().by_hyperedge()
        rows = np.split(np.asarray(graph.indices), np.asarray(graph.indptr)[1:])[:-1]
        return tuple(tuple(row.tolist()) for row in rows)
    if not isinstance(strategy, str):
        incidence = Incidence.from_hyperedges(strategy, num_experts)
        return expert_hyperedges(incidence, num_experts)
    if strategy == "all":
        return (tuple(range(num_experts)),)
    if strategy not in _SUBSETS:
        expected = "'all_pairs', 'all_triples', 'all', 'alone', or the hyperedges"
        raise bad_input("ExpertCoupler", "strategy", expected, repr(strategy))
    return tuple(itertools.combinations(range(num_experts), _SUBSETS[strategy]))


@functools.lru_cache(maxsize=64)
def _incidence(hyperedges: tuple[tuple[int, ...], ...], num_experts: int) -> Incidence:
    """Builds the hypergraph from tuples, which modules store as static, unlike arrays."""
    return Incidence.from_hyperedges(hyperedges, num_experts)
