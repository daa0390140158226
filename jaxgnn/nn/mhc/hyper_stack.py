"""Successive hyper-connections: fused boundaries, and streams stored only every few layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.nn.mhc.hyper_connection import LAYER_OUTPUT, HyperConnection
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.options import checked_options, int_at_least, or_none
from jaxgnn.ops.core.eager import run_compiled


class HyperStack(DocumentedModule):
    """Runs hyper-connections one after the other, with ``ops.mhc_post_pre`` between them.

    Streams are n times as wide as features, so storing them for the backward pass dominates the
    memory. With ``recompute_every=k`` only the streams before every k-th layer and the layers'
    outputs are stored; the backward pass recomputes the rest, k layers at a time, including what
    the layers compute inside.

    Args:
      layers: hyper-connections with equal features, number of streams and ``features_argument``.
      recompute_every: number of layers between stored streams, ``"auto"`` for the number that
        ``recompute_interval`` returns, or None to store everything.
      keep_outputs: whether to store the layers' outputs too, so that the streams can be recomputed
        without running the layers again first.

    Example:
      >>> rngs = nnx.Rngs(0)
      >>> layers = [nn.HyperConnection(nnx.Linear(8, 8, rngs=rngs), 8, rngs=rngs) for _ in "abcd"]
      >>> stack = nn.HyperStack(layers, recompute_every=2)
      >>> stack(ops.mhc_expand(jnp.ones((3, 8)), 4)).shape
      (3, 4, 8)
    """

    @checked_options()
    def __init__(
        self,
        layers: Sequence[HyperConnection],
        *,
        recompute_every: int | Literal["auto"] | None = None,
        keep_outputs: bool = True,
    ):
        layers = list(layers) if isinstance(layers, Iterable) else [layers]
        if not layers or not all(isinstance(layer, HyperConnection) for layer in layers):
            got = [type(layer).__name__ for layer in layers]
            raise bad_input("HyperStack", "layers", "one or more HyperConnection", got)
        shapes = {(c.num_streams, c.features, c.features_argument) for c in layers}
        if len(shapes) > 1:
            expected = "of one (num_streams, features, features_argument)"
            raise bad_input("HyperStack", "layers", expected, sorted(shapes))
        if recompute_every == "auto":
            recompute_every = recompute_interval(len(layers), layers[0].num_streams)
        if or_none(int_at_least(1))(recompute_every) is not None:
            expected = "None, 'auto' or an int of at least 1"
            raise bad_input("HyperStack", "recompute_every", expected, repr(recompute_every))
        self.layers = nnx.List(layers)
        self.recompute_every = recompute_every
        self.keep_outputs = keep_outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Float[Array, "*batch n features"]:
        """Returns the streams after the last layer; all layers get the same other arguments."""
        x = self.layers[0].streams(args)
        layers = tuple(self.layers)
        if self.recompute_every is None:
            return _run(layers, x, args, kwargs)
        for begin in range(0, len(layers), self.recompute_every):
            segment = layers[begin : begin + self.recompute_every]
            x = _run_and_forget(segment, x, args, kwargs, self.keep_outputs)
        return x


def recompute_interval(num_layers: int, num_streams: int) -> int:
    """Returns about the number of layers between stored streams that needs the least memory.

    Memory holds ``n ⌈L / k⌉`` stored arrays and ``(n + 2) k`` recomputed ones at a time, which is
    least for ``k ≈ √(n L / (n + 2))`` (https://arxiv.org/abs/2512.24880).

    Args:
      num_layers: number of layers L.
      num_streams: number of streams n.

    Example:
      >>> from jaxgnn import nn
      >>> nn.recompute_interval(24, 4)
      4
    """
    return max(1, round(math.sqrt(num_streams * num_layers / (num_streams + 2))))


def _run(layers: tuple[HyperConnection, ...], x: Array, args: tuple[Any, ...], kwargs) -> Array:
    x, h_in, h_post, h_res = layers[0].pre(x)
    for layer, following in itertools.pairwise(layers):
        f = layer.apply(h_in, args, kwargs)
        x, h_in, h_post, h_res = layer.post_pre(x, f, h_post, h_res, following)
    return layers[-1].post(x, layers[-1].apply(h_in, args, kwargs), h_post, h_res)


def _run_and_forget(
    layers: tuple[HyperConnection, ...], x: Array, args: tuple[Any, ...], kwargs, keep_outputs: bool
) -> Array:
    """Runs layers and stores for the backward pass only ``x``, and optionally the layers' outputs.

    State of the layers and of modules among the arguments is passed in and out. Only changed state
    is written back: modules whose state does not change may belong to an outer trace.
    """
    of_args = {i: a for i, a in enumerate(args) if isinstance(a, nnx.Pytree)}
    of_kwargs = {k: a for k, a in kwargs.items() if isinstance(a, nnx.Pytree)}
    modules = (*layers, *of_args.values(), *of_kwargs.values())
    graphdef, state = nnx.split(modules)
    segment = _Segment(graphdef, len(layers), tuple(of_args), tuple(of_kwargs), keep_outputs)
    plain_args = tuple(None if i in of_args else a for i, a in enumerate(args))
    plain_kwargs = {k: a for k, a in kwargs.items() if k not in of_kwargs}
    y, changed = run_compiled(_run_segment, segment, (state, x, plain_args, plain_kwargs))
    for number, values in changed.items():
        nnx.update(modules[number], values)
    return y


class _Segment(NamedTuple):
    """Static description of a segment: its layers, and the arguments that are modules."""

    graphdef: Any
    num_layers: int
    of_args: tuple[int, ...]
    of_kwargs: tuple[str, ...]
    keep_outputs: bool


def _run_segment(segment: _Segment, arguments: tuple[Any, ...]) -> tuple[Array, nnx.State]:
    """Returns the streams after the layers, and the changed part of the modules' state."""
    state, x, args, kwargs = arguments

    def run(state, x):
        values_before = {path: variable.get_value() for path, variable in nnx.to_flat_state(state)}
        copies: Any = nnx.merge(segment.graphdef, state)
        rest = iter(copies[segment.num_layers :])
        replaced = {i: next(rest) for i in segment.of_args}
        all_args = tuple(replaced.get(i, a) for i, a in enumerate(args))
        all_kwargs = kwargs | {k: next(rest) for k in segment.of_kwargs}
        y = _run(copies[: segment.num_layers], x, all_args, all_kwargs)
        after = nnx.to_flat_state(nnx.split(copies)[1])
        changed = [(p, v) for p, v in after if v.get_value() is not values_before.get(p)]
        return y, nnx.from_flat_state(changed)

    save = jax.checkpoint_policies.save_only_these_names(LAYER_OUTPUT)
    return jax.checkpoint(run, policy=save if segment.keep_outputs else None)(state, x)
