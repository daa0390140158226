"""Decoders of links: from the embeddings of two nodes to the likelihood of an edge."""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import is_concrete
from jaxgnn._errors import bad_input
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule
from jaxgnn.nn.shared.linear import FusedMLP
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options
from jaxgnn.ops.core.dtypes import accumulation_dtype


class _Decoder(DocumentedModule):
    """Base class of decoders of pairs of nodes."""

    def __call__(
        self, h: Float[Array, "nodes features"], pairs: Int[Array, "2 *shape"]
    ) -> Float[Array, "*shape"]:
        """Scores pairs of nodes.

        Args:
          h: embeddings of the nodes, [nodes, features].
          pairs: the nodes of each pair, [2, *shape].

        Returns:
          The logit of an edge for each pair, [*shape].

        Raises:
          ValueError: if ``h`` or ``pairs`` have another shape, or a concrete pair has an invalid
            node.
        """
        _check_pairs(type(self).__name__, h, pairs)
        return self._scores(h[pairs[0]], h[pairs[1]])

    def _scores(
        self, first: Float[Array, "*shape features"], second: Float[Array, "*shape features"]
    ) -> Float[Array, "*shape"]:
        """The scores of pairs from the embeddings of their first and second nodes."""
        raise NotImplementedError


class DotDecoder(_Decoder):
    """Inner product of the embeddings of a pair of nodes: ``s_uv = h_u · h_v``.

    The decoder of graph autoencoders, https://arxiv.org/abs/1611.07308. It has no parameters, and
    the order of a pair does not matter. Scores are float32, or float64 for embeddings of float64.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import nn
      >>> h = jnp.array([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]])
      >>> nn.DotDecoder()(h, jnp.array([[0, 0], [1, 2]])).tolist()
      [11.0, 2.0]
    """

    def _scores(self, first: Array, second: Array) -> Array:
        wide = accumulation_dtype(first.dtype)
        return jnp.sum(first.astype(wide) * second.astype(wide), axis=-1)


class MLPDecoder(_Decoder):
    """Perceptron of the product of two embeddings: ``s_uv = mlp(h_u ⊙ h_v)``.

    The decoder of the examples of the Open Graph Benchmark, https://arxiv.org/abs/2005.00687. The
    order of a pair does not matter.

    Args:
      in_features: width of the embeddings.
      hidden_features: width of the hidden layers.
      num_layers: number of linear layers, the last of which has one output.

    Example:
      >>> decoder = nn.MLPDecoder(8, 16, rngs=nnx.Rngs(0))
      >>> decoder(jnp.ones((3, 8)), jnp.array([[0, 0, 1], [1, 2, 2]])).shape
      (3,)
    """

    @checked_options()
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        num_layers: int = 2,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        check_widths(type(self).__name__, in_features, hidden_features)
        widths = [in_features, *[hidden_features] * (num_layers - 1), 1]
        self.mlp = FusedMLP(widths, activation="relu", rngs=rngs, **common)

    def _scores(self, first: Array, second: Array) -> Array:
        return self.mlp(first * second)[..., 0]


def _check_pairs(where: str, h: Array, pairs: Array) -> None:
    """Checks embeddings and pairs of nodes; ids only if they are concrete."""
    if h.ndim != 2:
        raise bad_input(where, "h", "of shape [nodes, features]", f"shape {h.shape}")
    if pairs.ndim < 2 or pairs.shape[0] != 2 or not jnp.issubdtype(pairs.dtype, jnp.integer):
        got = f"{pairs.dtype} of shape {pairs.shape}"
        raise bad_input(where, "pairs", "integers of shape [2, ...]", got)
    if pairs.size and is_concrete(pairs):
        ids = np.asarray(pairs)
        outside = (ids < 0) | (ids >= h.shape[0])
        if outside.any():
            at = tuple(int(i) for i in np.argwhere(outside)[0])
            raise bad_input(where, f"pairs{list(at)}", f"in [0, {h.shape[0]})", int(ids[at]))
