"""Dropout, its training and evaluation modes, and its random stream."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.nn.shared.node_draws import bernoulli_of_edges, bernoulli_of_rows

Features = Float[Array, "*batch nodes dim"] | CBSR


class Dropout(nnx.Module):
    """Dropout of entries with probability ``rate`` inside a larger module, ``where`` in errors.

    Attributes:
      deterministic: None to drop entries when a call has ``rngs``; False, which ``train()`` sets,
        to require them; True, which ``eval()`` sets, to drop nothing.
    """

    def __init__(self, rate: float, where: str):
        self.rate = rate
        self.where = where
        self.deterministic: bool | None = None

    def __call__[X: Array | CBSR](
        self, x: X, rngs: nnx.Rngs | None, graph: CSRGraph | None = None
    ) -> X:
        """Returns ``x``, in training with dropped entries; its rows are the nodes of ``graph``."""
        drawn_from = training_rngs(self.where, self.deterministic, self.rate, rngs)
        return dropout(x, self.rate, drawn_from, graph)


def training_rngs(
    where: str, deterministic: bool | None, rate: float, rngs: Any
) -> nnx.Rngs | None:
    """Returns the random streams for a layer's dropout, or None if it drops nothing.

    Args:
      where: name of the layer or op in error messages.
      deterministic: None to drop entries if ``rngs`` are given, False to require ``rngs``, True to
        drop nothing.
      rate: probability of zeroing an entry.
      rngs: random streams that the layer was called with, or None.
    """
    if rngs is not None:
        require_stream(where, rngs, is_drawn_from=rate > 0 and not deterministic)
    if rate == 0 or deterministic:
        return None
    if rngs is None and deterministic is False:
        expected = "an nnx.Rngs with a dropout stream, such as nnx.Rngs(dropout=0), behind train()"
        raise bad_input(where, "rngs", f"{expected}; eval() turns dropout off", None)
    return rngs


def require_stream(where: str, rngs: Any, *, is_drawn_from: bool = True) -> nnx.Rngs:
    """Returns ``rngs`` after checking that a layer can draw dropout from them."""
    if not isinstance(rngs, nnx.Rngs):
        expected = "None or an nnx.Rngs with a dropout stream, such as nnx.Rngs(dropout=key)"
        raise bad_input(where, "rngs", expected, _shown(rngs))
    if is_drawn_from and not {"dropout", "default"} & set(rngs):
        expected = "an nnx.Rngs with a stream dropout, or default"
        raise bad_input(where, "rngs", expected, f"streams {', '.join(rngs) or 'none'}")
    return rngs


def dropout[X: Array | CBSR | CSRGraph](
    x: X, rate: float, rngs: nnx.Rngs | None, graph: CSRGraph | None = None
) -> X:
    """Zeroes entries with probability ``rate`` and scales the rest up; off if ``rngs`` is None.

    In compressed rows it drops kept entries, so a row keeps at most ``k``; in a sparse matrix it
    drops stored entries, because the others are zero anyway.

    If the rows of ``x`` are the nodes of a ``graph`` that is spread over devices, the draws are
    those of the whole graph on one device.
    """
    if rngs is None or rate == 0.0:
        return x
    features: Any = x
    if isinstance(x, CSRGraph):
        is_plain = features.weights is None
        weights = jnp.ones(features.num_edges, jnp.float32) if is_plain else features.weights
        kept = bernoulli_of_edges("dropout", rngs.dropout(), 1.0 - rate, features, weights.shape, 0)
        return features.with_weights(jnp.where(kept, weights / (1.0 - rate), 0))
    if isinstance(x, CBSR):
        return dataclasses.replace(features, values=_dropped(features.values, rate, rngs, graph))
    return _dropped(features, rate, rngs, graph)


def _dropped(values: Any, rate: float, rngs: nnx.Rngs, graph: CSRGraph | None = None) -> Any:
    axis = values.ndim - 2
    kept = bernoulli_of_rows("dropout", rngs.dropout(), 1.0 - rate, graph, values.shape, axis)
    return jnp.where(kept, values / (1.0 - rate), 0)


def _shown(rngs: Any) -> str:
    is_key = isinstance(rngs, jax.Array) and jnp.issubdtype(rngs.dtype, jax.dtypes.prng_key)
    return "a random key" if is_key else type(rngs).__name__
