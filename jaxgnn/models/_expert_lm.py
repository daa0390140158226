"""A causal language model of dense, coupled experts, and losses that keep experts different."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Unpack, overload

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn import ops
from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.graph import Incidence
from jaxgnn.models._causal_lm import causal_attention
from jaxgnn.models.saveable import saveable
from jaxgnn.nn import ExpertCombiner, ExpertCoupler, PairwiseExpertCoupler, Strategy, check_widths
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule, Settings
from jaxgnn.nn.shared.options import checked_options, is_integer

Coupling = Literal["hypergraph", "pairwise", "mean"]
OutputForm = Literal["gram", "cosine"]
WeightForm = Literal["frobenius", "spectral"]


class ExpertStates(NamedTuple):
    """The result of ``ExpertGraphLM`` with ``return_experts``."""

    logits: Float[Array, "*batch time vocabulary"]
    experts: Float[Array, "layers *batch time experts features"]


@saveable
class ExpertGraphLM(DocumentedModule):
    """Causal language model whose layers are several transformer blocks and a coupler.

    Embedding, ``num_layers`` layers, LayerNorm and the transposed embedding. In a layer every
    expert, a pre-norm block of causal attention and an MLP, processes every token: there is no
    router. The coupler combines the experts' outputs, token by token, into one update that is added
    to the input::

        x ← x + coupler([expert_1(x), …, expert_E(x)])

    Experts are one module with stacked parameters, run by ``nnx.vmap``. Positions are rotary, so
    that texts may have any length.

    Args:
      vocabulary: number of different tokens; 256 for bytes.
      features: width of the model.
      num_layers: number of layers.
      num_heads: number of attention heads of each expert; must divide ``features`` into parts of
        even width.
      num_experts: number of experts in each layer.
      hidden_features: width inside the experts' MLPs; None for ``4 features``.
      coupling: ``"hypergraph"`` for ``nn.ExpertCoupler``; ``"pairwise"`` for
        ``nn.PairwiseExpertCoupler``, gated messages between every two experts; ``"mean"`` for
        ``nn.ExpertCombiner`` alone.
      strategy: hyperedges of ``"hypergraph"`` coupling: ``"all_pairs"``, ``"all_triples"``,
        ``"all"``, ``"alone"``, sets of experts, or a ``jaxgnn.Incidence``.
      coupler_layers: number of layers of ``"hypergraph"`` or ``"pairwise"`` couplers.
      path: of ``"hypergraph"`` coupling: ``"sums"`` over the incidences, ``"mixing"`` by one
        matrix, or ``"auto"`` for the matrix where there are at most 128 experts.
      implementation: name of the kernels of hypergraph couplers, such as ``"xla"``; None for the
        default.
      dtype: dtype of the computation; None for the dtype of the parameters.

    Example:
      >>> options = {"num_layers": 2, "num_heads": 2, "num_experts": 4}
      >>> model = ExpertGraphLM(256, 16, **options, rngs=nnx.Rngs(0))
      >>> model(jnp.zeros((3, 10), jnp.int32)).shape
      (3, 10, 256)
      >>> model(jnp.zeros((3, 10), jnp.int32), return_experts=True).experts.shape
      (2, 3, 10, 4, 16)
    """

    @checked_options()
    def __init__(
        self,
        vocabulary: int,
        features: int,
        *,
        num_layers: int,
        num_heads: int,
        num_experts: int,
        hidden_features: int | None = None,
        coupling: Coupling = "hypergraph",
        strategy: Strategy | Incidence | Iterable[Iterable[int]] = "all_pairs",
        coupler_layers: int = 2,
        path: ops.HypergraphPath = "auto",
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        name = "ExpertGraphLM"
        check_widths(name, vocabulary, features)
        hidden = 4 * features if hidden_features is None else hidden_features
        check_widths(name, hidden)
        if not is_integer(num_heads) or num_heads < 1 or features % (2 * num_heads):
            expected = f"a divisor of {features} that leaves heads of even width"
            raise bad_input(name, "num_heads", expected, num_heads)
        settings = Settings(**common)
        options = settings.dtypes | {"rngs": rngs}
        sizes = {"features": features, "num_experts": num_experts}
        of_coupler: dict[str, Any] = {"layers": coupler_layers, **sizes, **options}
        hypergraph: dict[str, Any] = {"strategy": strategy, "path": path}
        hypergraph |= {"implementation": settings.implementation}
        make_coupler = {
            "hypergraph": lambda: ExpertCoupler(**hypergraph, **of_coupler),
            "pairwise": lambda: PairwiseExpertCoupler(**of_coupler),
            "mean": lambda: ExpertCombiner(features, **options),
        }
        if not isinstance(coupling, str) or coupling not in make_coupler:
            expected = " or ".join(map(repr, make_coupler))
            raise bad_input(name, "coupling", expected, repr(coupling))
        # Scaled so that a normalised state gives logits of order one.
        small = nnx.initializers.normal(features**-0.5)
        self.embedding = nnx.Embed(vocabulary, features, embedding_init=small, **options)
        self.layers = nnx.List(
            ExpertLayer(
                features, hidden, num_heads, num_experts, make_coupler[coupling](), **options
            )
            for _ in range(num_layers)
        )
        self.norm = nnx.LayerNorm(features, **options)

    @overload
    def __call__(
        self, tokens: Int[Array, "*batch time"], *, return_experts: Literal[False] = False
    ) -> Float[Array, "*batch time vocabulary"]: ...

    @overload
    def __call__(
        self, tokens: Int[Array, "*batch time"], *, return_experts: Literal[True]
    ) -> ExpertStates: ...

    def __call__(
        self, tokens: Int[Array, "*batch time"], *, return_experts: bool = False
    ) -> Float[Array, "*batch time vocabulary"] | ExpertStates:
        """Returns the logits of the token after each token, given all tokens up to it.

        Args:
          tokens: token ids of any number of texts, [*batch, length].
          return_experts: whether to return the outputs of every layer's experts too, which
            ``expert_output_orthogonality`` needs.
        """
        x, outputs = self.embedding(as_jax("ExpertGraphLM", "tokens", tokens)), []
        for layer in self.layers:
            experts = layer.experts_of(x)
            outputs.append(experts)
            x = layer.add_coupled(x, experts)
        logits = self.embedding.attend(self.norm(x))
        return ExpertStates(logits, jnp.stack(outputs)) if return_experts else logits


class ExpertLayer(nnx.Module):
    """``x + coupler(experts(x))``, the experts' parameters stacked along their first axis."""

    def __init__(
        self,
        features: int,
        hidden: int,
        num_heads: int,
        num_experts: int,
        coupler: nnx.Module,
        *,
        dtype,
        param_dtype,
        rngs: nnx.Rngs,
    ):
        @nnx.split_rngs(splits=num_experts)
        @nnx.vmap
        def make(rngs: nnx.Rngs) -> TransformerBlock:
            return TransformerBlock(
                features, hidden, num_heads, dtype=dtype, param_dtype=param_dtype, rngs=rngs
            )

        self.experts = make(rngs)
        self.coupler = coupler

    def experts_of(self, x: Float[Array, "*batch time d"]) -> Float[Array, "*batch time experts d"]:
        """Returns the output of every expert for every token."""
        # nnx.vmap needs a module of the current trace, but the model may be a constant.
        graphdef, state = nnx.split(self.experts)
        return _run_experts(nnx.merge(graphdef, nnx.to_pure_dict(state)), x)

    def add_coupled(
        self, x: Float[Array, "*batch time d"], experts: Float[Array, "*batch time experts d"]
    ) -> Float[Array, "*batch time d"]:
        """Returns the input plus the coupler's output for the experts."""
        return x + self.coupler(experts).astype(x.dtype)


@nnx.vmap(in_axes=(0, None), out_axes=-2)
def _run_experts(expert: TransformerBlock, x: Array) -> Array:
    return expert(x)


class TransformerBlock(nnx.Module):
    """Pre-norm block: ``h = x + attention(norm(x))``, then ``h + W_out gelu(W_in norm(h))``."""

    def __init__(
        self, features: int, hidden: int, num_heads: int, *, dtype, param_dtype, rngs: nnx.Rngs
    ):
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.num_heads = num_heads
        self.attention_norm = nnx.LayerNorm(features, **options)
        self.query_key_value = nnx.Linear(features, 3 * features, use_bias=False, **options)
        self.attention_out = nnx.Linear(features, features, use_bias=False, **options)
        self.mlp_norm = nnx.LayerNorm(features, **options)
        self.mlp_in = nnx.Linear(features, hidden, **options)
        self.mlp_out = nnx.Linear(hidden, features, **options)

    def __call__(self, x: Float[Array, "*batch time d"]) -> Float[Array, "*batch time d"]:
        projected = self.query_key_value(self.attention_norm(x))
        h = x + self.attention_out(causal_attention(projected, self.num_heads))
        return h + self.mlp_out(jax.nn.gelu(self.mlp_in(self.mlp_norm(h))))


def expert_output_orthogonality(
    experts: Float[Array, "layers *batch experts features"], form: OutputForm = "gram"
) -> Float[Array, ""]:
    """Distance of the experts' mean outputs from orthogonality, averaged over the layers.

    With ``m_i`` the mean of expert i over batch and time: ``"gram"`` is the mean square of
    ``⟨m_i, m_j⟩ - δ_ij`` over all i and j; ``"cosine"`` is the mean square of ``cos(m_i, m_j)``
    over ``i ≠ j``, and zero for a single expert.

    Raises:
      ValueError: if the form is unknown, or there are fewer than three axes.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn.models import expert_output_orthogonality
      >>> float(expert_output_orthogonality(jnp.eye(4)[None]))
      0.0
      >>> round(float(expert_output_orthogonality(jnp.ones((1, 7, 4, 9)), "cosine")), 3)
      1.0
    """
    where = "expert_output_orthogonality"
    _check_form(where, form, "gram", "cosine")
    if jnp.ndim(experts) < 3:
        expected = "of shape [layers, ..., experts, features]"
        raise bad_input(where, "experts", expected, f"shape {jnp.shape(experts)}")
    means = jnp.mean(_widened(experts), axis=tuple(range(1, experts.ndim - 2)))
    if form == "gram":
        return jnp.mean(jnp.square(_less_identity(_gram(means))))
    return jnp.mean(_off_diagonal_squares(_gram(_unit(means))))


def expert_weight_orthogonality(
    model: ExpertGraphLM, form: WeightForm = "frobenius"
) -> Float[Array, ""]:
    """Distance of the experts' weights from orthogonality, averaged over layers and matrices.

    For each of the four matrices of a block, of attention and MLP, the experts' copies are
    normalised to vectors of unit length with Gram matrix G. ``"frobenius"`` is the mean square of G
    over ``i ≠ j``; ``"spectral"`` the largest singular value of ``G - I``. Zero for a single
    expert.

    Raises:
      ValueError: if the form is unknown.

    Example:
      >>> from flax import nnx
      >>> from jaxgnn.models import ExpertGraphLM, expert_weight_orthogonality
      >>> options = {"num_layers": 1, "num_heads": 2, "num_experts": 4}
      >>> model = ExpertGraphLM(16, 8, **options, rngs=nnx.Rngs(0))
      >>> bool(0 < expert_weight_orthogonality(model) < 0.1)
      True
    """
    _check_form("expert_weight_orthogonality", form, "frobenius", "spectral")
    penalties = []
    for layer in model.layers:
        block = layer.experts
        linears = block.query_key_value, block.attention_out, block.mlp_in, block.mlp_out
        for kernel in (linear.kernel[...] for linear in linears):
            gram = _gram(_unit(_widened(kernel).reshape(kernel.shape[0], -1)))
            if form == "frobenius":
                penalties.append(_off_diagonal_squares(gram))
            else:
                penalties.append(jnp.linalg.norm(_less_identity(gram), 2))
    return jnp.mean(jnp.stack(penalties))


def _widened(x: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Converts an array to float32 at least."""
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def _check_form(where: str, form: str, *forms: str) -> None:
    if form not in forms:
        raise bad_input(where, "form", " or ".join(map(repr, forms)), repr(form))


def _gram(rows: Float[Array, "*batch n d"]) -> Float[Array, "*batch n n"]:
    return jnp.einsum("...id,...jd->...ij", rows, rows, precision=jax.lax.Precision.HIGHEST)


def _unit(rows: Float[Array, "*batch n d"]) -> Float[Array, "*batch n d"]:
    """Scales rows to length one; rows of zeros stay zero, with finite gradients."""
    squares = jnp.sum(jnp.square(rows), axis=-1, keepdims=True)
    return rows * jax.lax.rsqrt(jnp.where(squares > 0, squares, 1))


def _less_identity(gram: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    return gram - jnp.eye(gram.shape[-1], dtype=gram.dtype)


def _off_diagonal_squares(gram: Float[Array, "*batch n n"]) -> Float[Array, "*batch"]:
    """Mean square of the entries off the diagonal; zero if there are none."""
    n = gram.shape[-1]
    others = jnp.where(jnp.eye(n, dtype=bool), 0, jnp.square(gram))
    return jnp.sum(others, axis=(-2, -1)) / max(n * (n - 1), 1)
