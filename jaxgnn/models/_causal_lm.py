"""A causal language model, with residual connections or hyper-connections."""

from __future__ import annotations

import math
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn import ops
from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.models.saveable import saveable
from jaxgnn.nn import HyperConnection, HyperHead, HyperStack, check_widths, xla_or_fastest
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule, Settings
from jaxgnn.nn.shared.options import checked_options, is_integer
from jaxgnn.ops.core.eager import run_compiled

# Longest period of the rotary positions, in tokens: far longer than any training text.
_ROTARY_BASE = 10_000.0


@saveable
class CausalLM(DocumentedModule):
    """Decoder-only transformer, which predicts each token from the tokens before it.

    Embedding, then ``num_layers`` times attention and a gated MLP, each after an RMSNorm, then an
    RMSNorm and the transposed embedding. Positions are rotary (https://arxiv.org/abs/2104.09864),
    so that texts may have any length. Each branch is added to its input, or with
    ``hyper_connections=n`` wrapped in an ``nn.HyperConnection`` over n streams; nothing else
    differs.

    Args:
      vocabulary: number of different tokens; 256 for bytes.
      features: width of the model.
      num_layers: number of attention blocks, and of MLPs.
      num_heads: number of attention heads; must divide ``features`` into parts of even width.
      hidden_features: width inside the MLPs; None for ``8/3 features``, rounded up to 8.
      hyper_connections: number of streams, or None for residual connections.
      recompute_every: number of branches between streams that are stored for the backward pass,
        ``"auto"`` for about the least memory, or None to store all.
      dtype: dtype of the computation; None for the dtype of the parameters.

    Example:
      >>> model = CausalLM(256, 32, num_layers=2, num_heads=4, rngs=nnx.Rngs(0))
      >>> model(jnp.zeros((3, 10), jnp.int32)).shape
      (3, 10, 256)
    """

    @checked_options()
    def __init__(
        self,
        vocabulary: int,
        features: int,
        *,
        num_layers: int,
        num_heads: int,
        hidden_features: int | None = None,
        hyper_connections: int | None = None,
        recompute_every: int | None = None,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        check_widths("CausalLM", vocabulary, features)
        hidden = -(-features // 3) * 8 if hidden_features is None else hidden_features
        check_widths("CausalLM", hidden)
        if not is_integer(num_heads) or num_heads < 1 or features % (2 * num_heads):
            expected = f"a divisor of {features} that leaves heads of even width"
            raise bad_input("CausalLM", "num_heads", expected, num_heads)
        if hyper_connections is None and recompute_every is not None:
            raise bad_input(
                "CausalLM", "recompute_every", "None without hyper_connections", recompute_every
            )
        settings = Settings(**common)
        options = settings.dtypes | {"rngs": rngs}
        # Scaled so that a normalised state gives logits of order one.
        small = nnx.initializers.normal(features**-0.5)
        self.embedding = nnx.Embed(vocabulary, features, embedding_init=small, **options)
        branches: list[nnx.Module] = []
        for _ in range(num_layers):
            branches.append(_Attention(features, num_heads, **options))
            branches.append(_GatedMLP(features, hidden, **options))
        if hyper_connections is None:
            self.body = _Residuals(branches)
        else:
            implementation = settings.implementation
            streams = {"num_streams": hyper_connections, "implementation": implementation}
            self.body = _HyperConnections(branches, features, recompute_every, streams, rngs)
        self.norm = nnx.RMSNorm(features, **options)

    def __call__(self, tokens: Int[Array, "*batch time"]) -> Float[Array, "*batch time vocabulary"]:
        """Returns the logits of the token after each token, given all tokens up to it."""
        h = self.body(self.embedding(as_jax("CausalLM", "tokens", tokens)))
        return self.embedding.attend(self.norm(h))


class _Residuals(nnx.Module):
    """Adds each branch to its input."""

    def __init__(self, branches: list[nnx.Module]):
        self.branches = nnx.List(branches)

    def __call__(self, h: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        for branch in self.branches:
            h = h + branch(h)
        return h


class _HyperConnections(nnx.Module):
    """Wraps each branch in a hyper-connection; the head reduces the streams to one."""

    def __init__(
        self,
        branches: list[nnx.Module],
        features: int,
        recompute_every: int | None,
        options: dict[str, Any],
        rngs: nnx.Rngs,
    ):
        connections = [
            HyperConnection(branch, features, layer_index=i, **options, rngs=rngs)
            for i, branch in enumerate(branches)
        ]
        self.num_streams = connections[0].num_streams
        self.implementation = connections[0].implementation
        self.stack = HyperStack(connections, recompute_every=recompute_every)
        self.head = HyperHead(features, **options, rngs=rngs)

    def __call__(self, h: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        with xla_or_fastest(self.implementation):
            x = ops.mhc_expand(h, self.num_streams)
        return self.head(self.stack(x))


class _Attention(nnx.Module):
    """Normalisation, then causal attention."""

    def __init__(self, features: int, num_heads: int, *, dtype, param_dtype, rngs: nnx.Rngs):
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.num_heads = num_heads
        self.norm = nnx.RMSNorm(features, **options)
        self.query_key_value = nnx.Linear(features, 3 * features, use_bias=False, **options)
        self.out = nnx.Linear(features, features, use_bias=False, **options)

    def __call__(self, h: Float[Array, "*batch time d"]) -> Float[Array, "*batch time d"]:
        return self.out(causal_attention(self.query_key_value(self.norm(h)), self.num_heads))


class _GatedMLP(nnx.Module):
    """Normalisation, then ``W_out (silu(W_gate h) * W_in h)``."""

    def __init__(self, features: int, hidden: int, *, dtype, param_dtype, rngs: nnx.Rngs):
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.norm = nnx.RMSNorm(features, **options)
        self.gate_in = nnx.Linear(features, 2 * hidden, use_bias=False, **options)
        self.out = nnx.Linear(hidden, features, use_bias=False, **options)

    def __call__(self, h: Float[Array, "*batch time d"]) -> Float[Array, "*batch time d"]:
        gate, value = jnp.split(self.gate_in(self.norm(h)), 2, axis=-1)
        return self.out(jax.nn.silu(gate) * value)


def causal_attention(
    query_key_value: Float[Array, "*batch time 3*d"], num_heads: int
) -> Float[Array, "*batch time d"]:
    """Multi-head attention of each token to itself and earlier tokens, with rotary positions."""
    return run_compiled(_attend, num_heads, query_key_value)


def _attend(num_heads: int, query_key_value: Array) -> Array:
    *batch, time, width = query_key_value.shape
    # The function of jax.nn accepts only one leading axis.
    shape = math.prod(batch), time, 3, num_heads, width // (3 * num_heads)
    split = query_key_value.reshape(shape)
    query, key, value = (split[:, :, i] for i in range(3))  # [batch, time, heads, width]
    y = jax.nn.dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
    return y.reshape(*batch, time, width // 3)


def rotate(x: Float[Array, "*batch time heads width"]) -> Float[Array, "*batch time heads width"]:
    """Rotates each pair of features by an angle proportional to the position.

    Each pair has its own rate. Inner products of rotated vectors depend on the distance of their
    positions alone.
    """
    time, width = x.shape[-3], x.shape[-1]
    rates = _ROTARY_BASE ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = jnp.arange(time, dtype=jnp.float32)[:, None, None] * rates  # [time, 1, width / 2]
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
