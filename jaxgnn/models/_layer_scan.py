"""Equal layers run by one ``lax.scan``, so that depth costs no compilation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.nn._dropout import require_stream
from jaxgnn.ops._core.eager import run_compiled


class LayerScan[M: nnx.Module](nnx.Module):
    """Runs ``h = layer(graph, h)`` over layers that differ in their arrays alone.

    Args:
      layers: called as ``layer(graph, h, rngs=..., **options)``, with a result like ``h``. They may
        change no state.

    Raises:
      ValueError: if there are none, or their structures differ.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jaxgnn import CSRGraph, nn
      >>> rngs = nnx.Rngs(0)
      >>> scan = LayerScan([nn.GCNConv(8, 8, activation="relu", rngs=rngs) for _ in range(64)])
      >>> scan(CSRGraph.from_edges([0, 1], [1, 0], 2), jnp.ones((2, 8))).shape
      (2, 8)
    """

    def __init__(self, layers: Sequence[M]):
        graphdefs, states = zip(*map(nnx.split, layers), strict=True) if layers else ((), ())
        if len(set(graphdefs)) != 1:
            expected = "one or more of one structure"
            raise bad_input("LayerScan", "layers", expected, f"{len(set(graphdefs))} structures")
        self.num_layers = len(layers)
        # One module whose arrays have an axis of layers in front.
        stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *states)
        self.layers = nnx.merge(graphdefs[0], stacked)

    def __call__(
        self,
        graph: Any,
        h: Float[Array, "*batch features"],
        *,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> Float[Array, "*batch features"]:
        """What the last layer returns.

        Args:
          graph: for every layer.
          h: what the first layer gets.
          rngs: a ``dropout`` stream in training, of which each layer gets a key of its own.
          **options: for every layer.
        """
        graphdef, state = nnx.split(self.layers)
        if rngs is not None:
            require_stream("LayerScan", rngs)
        keys = None if rngs is None else jax.random.split(rngs.dropout(), self.num_layers)
        arguments = graph, h, state, keys, options
        if any(isinstance(option, nnx.Pytree) for option in options.values()):
            return _scan(graphdef, arguments)  # of the caller: a program would have copies
        return run_compiled(_scan, graphdef, arguments)


def _scan(graphdef: Any, arguments: tuple[Any, ...]) -> Array:
    graph, h, state, keys, options = arguments

    def step(h, layer):
        state, key = layer
        dropout = None if key is None else nnx.Rngs(dropout=key)
        return nnx.merge(graphdef, state)(graph, h, rngs=dropout, **options), None

    return jax.lax.scan(step, h, (state, keys))[0]
