"""The convolution of an equivariant layer, by this library and by others that are installed."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks._report import Row
from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.equivariant import Irreps, TensorProduct
from jaxgnn.graph import CSRGraph

Convolution = Callable[[Any, Any, Any, Any], jax.Array]
"""``f(x, harmonics, hidden, kernel)``: the sums at the receivers, in an order of the peer's own.

The weights of edges are ``hidden @ kernel``: the last layer of the radial network.
"""

OfWeights = Callable[[Any, Any, Any], jax.Array]
"""``f(x, harmonics, weights)``, of a library that reads the weights of edges."""

# All compute in float32 with TF32 products of the radial network, where these are the default.
_TOLERANCE = 2e-3


class Peer(NamedTuple):
    """A way to compute the convolution.

    Attributes:
      package: what it needs; None for nothing more than this library.
      build: the convolution of a graph and a product, or that of given weights.
      makes_weights: whether ``build`` returns a convolution that makes the weights itself.
      layout: features in the order that the peer reads, of those of e3nn's order.
      restored: features in e3nn's order, of those of the peer's.
    """

    package: str | None
    build: Callable[[CSRGraph, TensorProduct], Convolution | OfWeights]
    layout: Callable[[Irreps, jax.Array], jax.Array] = lambda irreps, x: x
    restored: Callable[[Irreps, jax.Array], jax.Array] = lambda irreps, x: x
    makes_weights: bool = False

    def convolution(self, graph: CSRGraph, product: TensorProduct) -> Convolution:
        """The convolution of a graph and a product."""
        run = self.build(graph, product)
        if self.makes_weights:
            return cast(Convolution, run)
        of_weights = cast(OfWeights, run)
        return lambda x, harmonics, hidden, kernel: of_weights(x, harmonics, hidden @ kernel)

    @property
    def is_installed(self) -> bool:
        """Whether it can run here."""
        return self.package is None or importlib.util.find_spec(self.package) is not None


def _ours(
    graph: CSRGraph, product: TensorProduct, recompute_weights: bool | None = None
) -> Convolution:
    options = product.arguments | {"recompute_weights": recompute_weights}

    def run(x, harmonics, hidden, kernel):
        layer = {"basis": hidden, "kernel": kernel, "precision": None}  # that of ``@``
        return ops.tensor_product_sum(graph, x, harmonics, **layer, **options)

    return run


def _plain(graph: CSRGraph, product: TensorProduct) -> OfWeights:
    return partial(ops.tensor_product_sum, graph, implementation="xla", **product.arguments)


def _e3nn(graph: CSRGraph, product: TensorProduct) -> OfWeights:
    """As nequip-jax and nequix have it: gather, tensor product, weights, scatter."""
    e3nn = importlib.import_module("e3nn_jax")
    of_in, of_sh = (e3nn.Irreps(str(i)) for i in (product.irreps_in, product.irreps_sh))
    receivers = graph.receivers()

    def run(x, harmonics, weights):
        messages = e3nn.tensor_product(
            e3nn.IrrepsArray(of_in, x)[graph.indices],
            e3nn.IrrepsArray(of_sh, harmonics),
            filter_ir_out=_kept(product),
        )
        return e3nn.scatter_sum(messages * weights, dst=receivers, output_size=graph.num_rows).array

    return run


def _cuequivariance(graph: CSRGraph, product: TensorProduct) -> OfWeights:
    cue = importlib.import_module("cuequivariance")
    cuex = importlib.import_module("cuequivariance_jax")
    of_in, of_sh, kept = (
        cue.Irreps("O3", text)
        for text in (str(product.irreps_in), str(product.irreps_sh), _kept(product))
    )
    polynomial = cue.descriptors.channelwise_tensor_product(of_in, of_sh, kept).polynomial
    # Its kernel takes channels in parts of equal number.
    channels = math.gcd(*(entry.multiplicity for entry in product.irreps_in))
    polynomial = polynomial.flatten_coefficient_modes().squeeze_modes("v").split_mode("u", channels)
    method = "uniform_1d" if jax.default_backend() == "gpu" else "naive"
    receivers = graph.receivers()

    def run(x, harmonics, weights):
        result = jax.ShapeDtypeStruct((graph.num_rows, polynomial.outputs[0].size), x.dtype)
        indices = [None, graph.indices, None, receivers]
        inputs = [weights, x, harmonics]
        return cuex.segmented_polynomial(polynomial, inputs, [result], indices, method=method)[0]

    return run


def _components_first(irreps: Irreps, x: jax.Array) -> jax.Array:
    """Features with the channels of a component next to each other."""
    return _transposed(irreps, x, [(e.multiplicity, e.irrep.dim) for e in irreps])


def _channels_first(irreps: Irreps, x: jax.Array) -> jax.Array:
    """Features with the components of a channel next to each other, of ``_components_first``."""
    return _transposed(irreps, x, [(e.irrep.dim, e.multiplicity) for e in irreps])


def _transposed(irreps: Irreps, x: jax.Array, shapes: list[tuple[int, int]]) -> jax.Array:
    """The matrix of each entry, of these shapes, transposed."""
    parts = [
        jnp.swapaxes(x[:, own].reshape(-1, *shape), 1, 2).reshape(len(x), -1)
        for own, shape in zip(irreps.slices, shapes, strict=True)
    ]
    return jnp.concatenate(parts, axis=1)


def _openequivariance(graph: CSRGraph, product: TensorProduct) -> OfWeights:
    """With atomic additions, its default."""
    oeq = importlib.import_module("openequivariance")
    layers = importlib.import_module("openequivariance.jax")
    problem = oeq.TPProblem(
        *(oeq.Irreps(str(i)) for i in (product.irreps_in, product.irreps_sh, product.irreps_out)),
        [(*path, "uvu", True) for path in product.paths],
        shared_weights=False,
        internal_weights=False,
    )
    layer = layers.TensorProductConv(problem, requires_jvp=False)
    receivers, senders = graph.receivers(), graph.indices

    def run(x, harmonics, weights):
        return layer.forward(x, harmonics, weights, receivers, senders)

    return run


def _kept(product: TensorProduct) -> str:
    """The distinct irreps of the result."""
    return "+".join(dict.fromkeys(str(entry.irrep) for entry in product.irreps_out))


PEERS = {
    "ours": Peer(None, _ours, makes_weights=True),
    "recomputed": Peer(None, partial(_ours, recompute_weights=True), makes_weights=True),
    "xla": Peer(None, _plain),
    "e3nn": Peer("e3nn_jax", _e3nn),
    "cuequivariance": Peer(
        "cuequivariance_jax", _cuequivariance, _components_first, _channels_first
    ),
    "openequivariance": Peer("openequivariance_extjax", _openequivariance),
}


def check_candidates(where: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raises ValueError on a name that is not of a known candidate."""
    for name in names:
        if name not in known:
            raise bad_input(where, "--candidates", f"some of {', '.join(known)}", name)


def check_equal(name: str, row: Row, ours: Row) -> None:
    """Raises RuntimeError if a candidate computes other energies, forces or gradients."""
    for key in ours:
        if key.endswith("_norms") and not np.allclose(row[key], ours[key], rtol=_TOLERANCE):
            raise RuntimeError(f"{name} has {key} {row[key]}, not {ours[key]}")
