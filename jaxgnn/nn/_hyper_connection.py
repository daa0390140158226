"""Hyper-connections: a layer between n streams, in the place of a residual connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.nn._hyper_init import initial_bias, logit
from jaxgnn.nn._implementations import xla_or_fastest
from jaxgnn.nn._maxk import check_widths
from jaxgnn.nn._options import checked_options, is_integer

Mixing = Literal["sinkhorn", "permutations"]
Convention = Literal["paper", "seed", "tilekernels", "liger"] | ops.MHCConvention

# What jax.checkpoint calls the outputs of wrapped layers.
LAYER_OUTPUT = "hyper_connection_layer_output"


class HyperConnection(nnx.Module):
    """A layer with a manifold-constrained hyper-connection (https://arxiv.org/abs/2512.24880).

    In the place of ``x + layer(x)`` it keeps n streams ``x [..., n, features]``. The layer reads a
    weighted sum of them; they are mixed by a doubly stochastic matrix, and the layer's output is
    added to each with a weight of its own. Weights and matrix depend on the token::

        h_in, h_post, logits = ops.mhc_pre(x, phi, alpha, bias, gamma)
        x'                   = ops.mhc_post(x, layer(h_in), h_post, ops.sinkhorn(logits))

    These are one op, ``ops.mhc_layer``, unless coefficients are static or of mHC-lite.

    It begins close to a plain residual connection: while the streams are equal, ``layer`` reads
    what one of them holds, and each becomes ``x + layer(x)``, up to the size of ``alpha_init``.

    Args:
      layer: called with ``h_in [..., features]`` and whatever other arguments the call has; its
        result has the shape of ``h_in``. Dropout and other state stay its own business.
      features: width of a stream.
      num_streams: n, at least 1.
      convention: constants, from ``ops.MHC_PRESETS`` by name or as an ``ops.MHCConvention``.
      mixing: ``"sinkhorn"``, or ``"permutations"`` for the exactly doubly stochastic matrices of
        mHC-lite (https://arxiv.org/abs/2601.05732), with n! logits, n up to 6.
      dynamic: False for learnt coefficients that are the same for every token.
      layer_index: None to read all streams alike; a number to read mostly stream
        ``layer_index % n``, so that successive layers begin with different ones.
      identity: initial diagonal of the mixing matrix, between 1/n and 1.
      alpha_init: initial gain of what depends on the token.
      use_scale: learn a scale ``gamma`` of the normalised streams.
      features_argument: which positional argument of the layer the features are: 1 for the
        convolutions, ``connection(graph, x)``.
      gradient: of ``ops.sinkhorn``, ``"exact"`` or ``"implicit"``.
      implementation: passed to the ops.
      rngs: for the initial parameters.

    Raises:
      ValueError: if an option is not as above.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jaxgnn import nn, ops
      >>> rngs = nnx.Rngs(0)
      >>> connection = nn.HyperConnection(nnx.Linear(8, 8, rngs=rngs), 8, rngs=rngs)
      >>> x = ops.mhc_expand(jnp.ones((3, 8)), 4)
      >>> connection(x).shape
      (3, 4, 8)
    """

    @checked_options()
    def __init__(
        self,
        layer: Callable[..., Array],
        features: int,
        *,
        num_streams: int = 4,
        convention: Convention = ops.MHCConvention(),  # noqa: B008  it is immutable
        mixing: Mixing = "sinkhorn",
        dynamic: bool = True,
        layer_index: int | None = None,
        identity: float = 0.9,
        alpha_init: float = 0.01,
        use_scale: bool = False,
        features_argument: int = 0,
        gradient: Literal["exact", "implicit"] = "exact",
        implementation: ops.Name | None = None,
        rngs: nnx.Rngs,
    ):
        name = type(self).__name__
        check_widths(name, features)
        if mixing == "permutations" and num_streams > 6:
            raise bad_input(name, "num_streams", "at most 6 for mixing='permutations'", num_streams)
        if num_streams > 1 and not 1 / num_streams <= identity < 1:
            raise bad_input(name, "identity", f"in [1/{num_streams}, 1)", identity)
        if layer_index is not None and not is_integer(layer_index):
            raise bad_input(name, "layer_index", "None or an int", repr(layer_index))
        self.layer = layer
        self.features = features
        self.num_streams = num_streams
        self.convention = convention_of(name, convention)
        self.mixing: Mixing = mixing
        self.features_argument = features_argument
        self.gradient: Literal["exact", "implicit"] = gradient
        self.implementation = implementation
        bias = initial_bias(
            num_streams,
            post_scale=self.convention.post_scale,
            permutations=mixing == "permutations",
            stream=None if layer_index is None else layer_index % num_streams,
            identity=identity,
        )
        if not dynamic:  # the noise that a dynamic part begins with: equal streams never part
            bias = bias + alpha_init * _normal(rngs, *bias.shape)
        self.bias = nnx.Param(bias)
        width = num_streams * features
        rows = bias.shape[0]
        self.phi = _parameter(dynamic, lambda: _normal(rngs, rows, width) / width**0.5)
        self.alpha = _parameter(dynamic, lambda: jnp.full(3, alpha_init, jnp.float32))
        shape = (num_streams, features)
        self.gamma = _parameter(dynamic and use_scale, lambda: jnp.ones(shape, jnp.float32))

    def __call__(self, *args: Any, **kwargs: Any) -> Float[Array, "*batch n features"]:
        """The new streams.

        Args:
          *args: for the layer, with the streams ``x [..., n, features]`` in the place of features.
          **kwargs: for the layer.
        """
        x, (phi, alpha, bias, gamma) = self.streams(args), self._parameters()
        if phi is None or alpha is None or self.mixing != "sinkhorn":
            x, h_in, h_post, h_res = self.pre(x)
            return self.post(x, self.apply(h_in, args, kwargs), h_post, h_res)
        convention = self.convention
        return ops.mhc_layer(
            lambda h_in: self.apply(h_in, args, kwargs),
            x,
            phi,
            alpha,
            bias,
            gamma,
            **(convention.pre | convention.sinkhorn | convention.post),
            gradient=self.gradient,
            implementation=self.implementation,
        )

    def streams(self, args: tuple[Any, ...]) -> Float[Array, "*batch n features"]:
        """The streams among the arguments of a call.

        Raises:
          ValueError: unless they are there and of the shape that the layer was made for.
        """
        name, at = type(self).__name__, self.features_argument
        if len(args) <= at:
            expected = f"given as positional argument {at}, as features_argument says"
            raise bad_input(name, "x", expected, f"{len(args)} positional arguments")
        x = args[at]
        shape = (self.num_streams, self.features)
        if jnp.ndim(x) < 2 or jnp.shape(x)[-2:] != shape:
            expected = f"of shape [..., {shape[0]}, {shape[1]}], streams by features"
            raise bad_input(name, "x", expected, f"shape {jnp.shape(x)}")
        return x

    def pre(
        self, x: Float[Array, "*batch n features"]
    ) -> tuple[
        Float[Array, "*batch n features"],
        Float[Array, "*batch features"],
        Float[Array, "*batch n"],
        Float[Array, "*batch n n"],
    ]:
        """The streams for ``post``, input of the layer, weights of its output, mixing matrix."""
        x, h_in, h_post, logits = ops.mhc_pre(
            x,
            *self._parameters(),
            **self.convention.pre,
            return_streams=True,
            implementation=self.implementation,
        )
        return x, h_in, h_post, self._mix(logits)

    def apply(
        self, h_in: Float[Array, "*batch features"], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Float[Array, "*batch features"]:
        """The layer's output for ``h_in``, in its dtype; ``args`` are those of a call."""
        at = self.features_argument
        f = self.layer(*args[:at], h_in, *args[at + 1 :], **kwargs)
        if jnp.shape(f) != h_in.shape:
            expected = f"of shape {h_in.shape}, that of its input"
            raise bad_input(type(self).__name__, "the layer's result", expected, jnp.shape(f))
        return checkpoint_name(f.astype(h_in.dtype), LAYER_OUTPUT)

    def post(self, x: Array, f: Array, h_post: Array, h_res: Array) -> Array:
        """The new streams from the layer's output and what ``pre`` gave."""
        return ops.mhc_post(
            x, f, h_post, h_res, **self.convention.post, implementation=self.implementation
        )

    def post_pre(
        self, x: Array, f: Array, h_post: Array, h_res: Array, following: HyperConnection
    ) -> tuple[Array, Array, Array, Array]:
        """The new streams and what ``following.pre`` gives for them, as one op."""
        y, h_in, h_post, logits = ops.mhc_post_pre(
            x,
            f,
            h_post,
            h_res,
            *following._parameters(),
            **self.convention.post,
            **following.convention.pre,
            implementation=self.implementation,
        )
        return y, h_in, h_post, following._mix(logits)

    def _parameters(self) -> tuple[Array | None, Array | None, Array, Array | None]:
        phi, alpha, gamma = (
            None if p is None else p[...] for p in (self.phi, self.alpha, self.gamma)
        )
        return phi, alpha, self.bias[...], gamma

    def _mix(self, logits: Array) -> Array:
        """The doubly stochastic matrix of these logits."""
        if self.mixing == "sinkhorn":
            options = self.convention.sinkhorn | {"gradient": self.gradient}
            return ops.sinkhorn(logits, **options, implementation=self.implementation)
        if self.num_streams == 1:  # 1! = 1²: the one logit comes as a matrix
            logits = logits[..., 0]
        return ops.permutation_mixture(logits, implementation=self.implementation)


class HyperHead(nnx.Module):
    """One stream out of n behind the last hyper-connection: see ``ops.mhc_head``.

    It begins as the mean of the streams, up to the size of ``alpha_init``.

    Args:
      features: width of a stream.
      num_streams: n, at least 1.
      convention: as in ``HyperConnection``.
      alpha_init: initial gain of what depends on the token.
      use_scale: learn a scale ``gamma`` of the normalised streams.
      implementation: ``"xla"`` for plain JAX; other names leave the op, which has no kernels, to
        what is fastest.
      rngs: for the initial parameters.

    Raises:
      ValueError: if an option is not as above.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jaxgnn import nn, ops
      >>> head = nn.HyperHead(8, rngs=nnx.Rngs(0))
      >>> head(ops.mhc_expand(jnp.ones((3, 8)), 4)).shape
      (3, 8)
    """

    @checked_options()
    def __init__(
        self,
        features: int,
        *,
        num_streams: int = 4,
        convention: Convention = ops.MHCConvention(),  # noqa: B008  it is immutable
        alpha_init: float = 0.01,
        use_scale: bool = False,
        implementation: ops.Name | None = None,
        rngs: nnx.Rngs,
    ):
        check_widths("HyperHead", features)
        width = num_streams * features
        self.convention = convention_of("HyperHead", convention)
        self.implementation = implementation
        self.phi = nnx.Param(_normal(rngs, num_streams, width) / width**0.5)
        self.alpha = nnx.Param(jnp.asarray(alpha_init, jnp.float32))
        self.bias = nnx.Param(jnp.full(num_streams, logit(1 / num_streams), jnp.float32))
        shape = (num_streams, features)
        self.gamma = _parameter(use_scale, lambda: jnp.ones(shape, jnp.float32))

    def __call__(self, x: Float[Array, "*batch n features"]) -> Float[Array, "*batch features"]:
        """The weighted sum of the streams."""
        with xla_or_fastest(self.implementation):
            return ops.mhc_head(
                x,
                self.phi[...],
                self.alpha[...],
                self.bias[...],
                None if self.gamma is None else self.gamma[...],
                norm_eps=self.convention.norm_eps,
                pre_eps=self.convention.pre_eps,
            )


def convention_of(where: str, convention: Convention) -> ops.MHCConvention:
    """The preset of this name, or the convention itself.

    Raises:
      ValueError: if there is no such preset.
    """
    if isinstance(convention, ops.MHCConvention):
        return convention
    if not isinstance(convention, str) or convention not in ops.MHC_PRESETS:
        expected = f"an ops.MHCConvention or one of {', '.join(ops.MHC_PRESETS)}"
        raise bad_input(where, "convention", expected, repr(convention))
    return ops.MHC_PRESETS[convention]


def _normal(rngs: nnx.Rngs, *shape: int) -> jax.Array:
    return jax.random.normal(rngs.params(), shape, jnp.float32)


def _parameter(wanted: bool, make: Callable[[], jax.Array]) -> nnx.Param | None:
    return nnx.Param(make()) if wanted else None
