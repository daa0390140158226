"""Hyper-connections: residual connections generalised to n parallel streams."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.linear import xla_or_fastest
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, is_integer

Mixing = Literal["sinkhorn", "permutations"]
Convention = Literal["paper", "seed", "tilekernels", "liger"] | ops.MHCConvention

# Name of the outputs of wrapped layers for jax.checkpoint policies.
LAYER_OUTPUT = "hyper_connection_layer_output"


class HyperConnection(DocumentedModule):
    """A layer with a manifold-constrained hyper-connection (https://arxiv.org/abs/2512.24880).

    Instead of ``x + layer(x)`` it keeps n streams ``x [..., n, features]``. The layer reads a
    weighted sum of the streams; a doubly stochastic matrix mixes the streams, and the layer's
    output is added to each stream with a separate weight. Weights and matrix depend on the token::

        h_in, h_post, logits = ops.mhc_pre(x, phi, alpha, bias, gamma)
        x'                   = ops.mhc_post(x, layer(h_in), h_post, ops.sinkhorn(logits))

    These run as one op, ``ops.mhc_layer``, unless coefficients are static or those of mHC-lite.

    At initialisation it is close to a plain residual connection: while the streams are equal,
    ``layer`` reads the common value, and each stream becomes ``x + layer(x)``, up to the size of
    ``alpha_init``.

    Args:
      layer: module called with ``h_in [..., features]`` and the other arguments of the call; its
        result has the shape of ``h_in``. The layer itself handles its dropout and other state.
      features: width of a stream.
      num_streams: n, at least 1.
      convention: the constants of the op: a name in ``ops.MHC_PRESETS``, or an
        ``ops.MHCConvention``.
      mixing: ``"sinkhorn"``, or ``"permutations"`` for the exactly doubly stochastic matrices of
        mHC-lite (https://arxiv.org/abs/2601.05732), with n! logits, n up to 6.
      dynamic: whether coefficients depend on the token; False for learnt ones that are the same for
        every token.
      layer_index: None to start with equal weights for all streams; a number to start by reading
        mostly stream ``layer_index % n``, so that successive layers start with different streams.
      identity: initial value on the diagonal of the mixing matrix, between 1/n and 1.
      alpha_init: initial gain of the part of the coefficients that depends on the token.
      use_scale: whether to learn a scale ``gamma`` of the normalised streams.
      features_argument: position of the features among the arguments of the layer: 1 for the
        convolutions, which are called as ``connection(graph, x)``.
      gradient: gradient of the Sinkhorn iteration, ``"exact"`` or ``"implicit"``.

    Example:
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
        if not dynamic:  # without noise, equal streams would stay equal
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
          *args: arguments of the layer, with the streams ``x [..., n, features]`` instead of
            the features.
          **kwargs: keyword arguments of the layer.
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
        """Returns the streams from the arguments of a call.

        Raises:
          ValueError: if they are missing or do not have the shape of the layer.
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
        """Returns the streams for ``post``, the layer's input, output weights and mixing matrix."""
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
        """Returns the layer's output for ``h_in`` and the call's other arguments, in that dtype."""
        at = self.features_argument
        f = self.layer(*args[:at], h_in, *args[at + 1 :], **kwargs)
        if jnp.shape(f) != h_in.shape:
            expected = f"of shape {h_in.shape}, that of its input"
            raise bad_input(type(self).__name__, "the layer's result", expected, jnp.shape(f))
        return checkpoint_name(f.astype(h_in.dtype), LAYER_OUTPUT)

    def post(self, x: Array, f: Array, h_post: Array, h_res: Array) -> Array:
        """Returns the new streams from the layer's output and the results of ``pre``."""
        return ops.mhc_post(
            x, f, h_post, h_res, **self.convention.post, implementation=self.implementation
        )

    def post_pre(
        self, x: Array, f: Array, h_post: Array, h_res: Array, following: HyperConnection
    ) -> tuple[Array, Array, Array, Array]:
        """Returns the new streams and the results of ``following.pre`` for them, as one op."""
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
        """Returns the doubly stochastic matrix that the logits define."""
        if self.mixing == "sinkhorn":
            options = self.convention.sinkhorn | {"gradient": self.gradient}
            return ops.sinkhorn(logits, **options, implementation=self.implementation)
        if self.num_streams == 1:  # 1! = 1²: the one logit arrives as a matrix
            logits = logits[..., 0]
        return ops.permutation_mixture(logits, implementation=self.implementation)


class HyperHead(DocumentedModule):
    """Reduces n streams to one after the last hyper-connection, by a learnt weighted sum.

    At initialisation it is the mean of the streams, up to the size of ``alpha_init``.

    Args:
      features: width of a stream.
      num_streams: n, at least 1.
      convention: the constants of the op: a name in ``ops.MHC_PRESETS``, or an
        ``ops.MHCConvention``.
      alpha_init: initial gain of the part of the coefficients that depends on the token.
      use_scale: whether to learn a scale ``gamma`` of the normalised streams.
      implementation: ``"xla"`` for plain JAX. The op has no other kernels, so other names select
        the fastest implementation as None does.

    Example:
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
        """Returns the weighted sum of the streams."""
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
    """Returns the preset with a name, or the convention itself."""
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


# A sigmoid never reaches 0 or 1, and its gradient almost vanishes close to them.
_CLOSEST = 1e-3

# Initial weight of the stream that a layer with a ``layer_index`` mostly reads.
_SHARE = 0.9


def initial_bias(
    n: int, *, post_scale: float, permutations: bool, stream: int | None, identity: float
) -> Float[Array, " rows"]:
    """Returns the initial bias of ``ops.mhc_pre``, concatenated from the parts pre | post | res.

    Weights pre add up to 1, weights post are 1, and the mixing matrix has ``identity`` on its
    diagonal, so equal streams each become ``x + layer(x)``. ``stream`` is the one of n that is read
    most, or None. The part res holds an [n, n] matrix, or logits of the n! permutations.
    """
    share = _SHARE if n > 1 else 1.0
    others = (1 - share) / max(n - 1, 1)
    read = [1 / n if stream is None else (share if i == stream else others) for i in range(n)]
    pre = [logit(weight) for weight in read]
    post = [logit(1 / post_scale if post_scale else 0.5)] * n
    res = _permutation_logits(n, identity) if permutations else _matrix_logits(n, identity)
    return jnp.asarray([*pre, *post, *res], jnp.float32)


def logit(p: float) -> float:
    """Inverse of the sigmoid, with ``p`` clipped away from 0 and 1."""
    p = min(max(p, _CLOSEST), 1 - _CLOSEST)
    return math.log(p / (1 - p))


def _matrix_logits(n: int, identity: float) -> list[float]:
    """``c I``: its Sinkhorn limit has ``e^c / (e^c + n - 1)`` on the diagonal."""
    c = math.log(identity * (n - 1) / (1 - identity)) if n > 1 else 0.0
    return [c if i == j else 0.0 for i in range(n) for j in range(n)]


def _permutation_logits(n: int, identity: float) -> list[float]:
    """Logits that favour the identity permutation, the first, and are equal for all others."""
    count = math.factorial(n)
    if n == 1:
        return [0.0]
    rest = (count / n - 1) / (count - 1)
    p = (identity - rest) / (1 - rest)
    return [math.log(p * (count - 1) / (1 - p)), *[0.0] * (count - 1)]
