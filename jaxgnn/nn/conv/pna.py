"""Principal neighbourhood aggregation: several reductions, scaled by the degree of the node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Unpack

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, is_concrete
from jaxgnn.nn.shared.activations import function_of, name_of
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import Ends, GraphLayer, Nodes
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import (
    any_activation,
    checked_options,
    flag,
    int_at_least,
    names_of,
    or_none,
)
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.shared import REDUCTIONS

Scaler = Literal["identity", "amplification", "attenuation", "linear", "inverse_linear"]
"""Scales by degree of the aggregated values of a node."""


class DegreeAverages(NamedTuple):
    """Averages over the nodes of a training set, used as scales by ``PNAConv``.

    Attributes:
      linear: mean of the degree d.
      log: mean of ``log(d + 1)``.
    """

    linear: float
    log: float

    @classmethod
    def of(cls, *graphs: CSRGraph) -> DegreeAverages:
        """The averages over the nodes of graphs, such as all of a training set.

        All rows are counted, also padding of a batch, as nodes of degree 0: pass the graphs
        themselves and not padded batches of them.

        Args:
          *graphs: concrete graphs; the degree of a row is the number of its edges.

        Raises:
          ValueError: if there is no graph, a graph is traced, or no graph has an edge.

        Example:
          >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
          >>> DegreeAverages.of(graph).linear
          1.0
        """
        where = "DegreeAverages.of"
        if not graphs:
            raise bad_input(where, "graphs", "one graph or more", "none")
        for graph in graphs:
            if not isinstance(graph, CSRGraph) or not is_concrete(graph.indptr):
                got = "a traced one" if isinstance(graph, CSRGraph) else type(graph).__name__
                raise bad_input(where, "graphs", "concrete graphs; call it outside jit", got)
        return cls._from_degrees(
            where, np.concatenate([np.diff(np.asarray(g.indptr)) for g in graphs])
        )

    @classmethod
    def of_histogram(cls, counts: npt.ArrayLike) -> DegreeAverages:
        """The averages from the number of nodes of each degree 0, 1, …, as PyG's ``deg``.

        Args:
          counts: whole numbers, [largest degree + 1].

        Raises:
          ValueError: if the counts are not a one-dimensional array of non-negative numbers, or no
            node has an edge.

        Example:
          >>> DegreeAverages.of_histogram([1, 1, 1]).linear
          1.0
        """
        where = "DegreeAverages.of_histogram"
        numbers = np.asarray(counts)
        fits = numbers.ndim == 1 and np.issubdtype(numbers.dtype, np.integer)
        if not fits or (numbers < 0).any():
            expected = "whole numbers of at least 0, [largest degree + 1]"
            raise bad_input(where, "counts", expected, f"{numbers.dtype}{list(numbers.shape)}")
        return cls._from_degrees(where, np.repeat(np.arange(len(numbers)), numbers))

    @classmethod
    def _from_degrees(cls, where: str, degrees: np.ndarray) -> DegreeAverages:
        if not degrees.any():
            raise bad_input(where, "the degrees", "of at least one edge", "none")
        return cls(float(degrees.mean()), float(np.log(degrees + 1.0).mean()))


def averages_or_graph(value: Any) -> str | None:
    """Checks for averages, or a graph to compute them from."""
    is_good = isinstance(value, DegreeAverages) and all(
        isinstance(v, int | float) and math.isfinite(v) and v > 0 for v in value
    )
    is_good = is_good or (isinstance(value, CSRGraph) and is_concrete(value.indptr))
    return (
        None
        if is_good
        else (
            "nn.DegreeAverages of positive numbers, such as DegreeAverages.of_histogram(deg), or a "
            "concrete CSRGraph"
        )
    )


def degree_scales(
    graph: CSRGraph, averages: DegreeAverages, scalers: Sequence[Scaler], dtype: DTypeLike
) -> Float[Array, "rows scalers"]:
    """The factor of each row and scale; a degree of 0 counts as 1 where it would divide."""
    degrees = graph.degrees().astype(dtype)
    at_least_one = jnp.maximum(degrees, 1)
    mean, log = averages
    scales = {
        "identity": lambda: jnp.ones_like(degrees),
        "amplification": lambda: jnp.log(degrees + 1) / log,
        "attenuation": lambda: log / jnp.log(at_least_one + 1),
        "linear": lambda: degrees / mean,
        "inverse_linear": lambda: mean / at_least_one,
    }
    return jnp.stack([scales[name]() for name in scalers], axis=-1)


_kernel_init = nnx.initializers.lecun_normal(in_axis=-2, out_axis=-1, batch_axis=0)


class Towers(nnx.Module):
    """A linear layer for each tower, parameters ``kernel`` [towers, in, out] and ``bias``."""

    def __init__(self, towers: int, widths: tuple[int, int], param_dtype: Any, rngs: nnx.Rngs):
        shape = towers, *widths
        self.kernel = nnx.Param(_kernel_init(rngs.params(), shape, param_dtype))
        self.bias = nnx.Param(jnp.zeros((towers, widths[1]), param_dtype))

    def parameters(self) -> tuple[Array, Array]:
        """The kernel [towers, in, out] and the bias [towers, out], as arrays."""
        return self.kernel[...], self.bias[...]

    def __call__(
        self, x: Float[Array, "*batch nodes towers in"], dtype: DTypeLike | None
    ) -> Float[Array, "*batch nodes towers out"]:
        """Applies each tower's layer to its own features, in this dtype."""
        x, kernel, bias = promote_dtype((x, *self.parameters()), dtype=dtype)
        return times_each(x, kernel) + bias


def split_towers(
    x: Float[Array, "*batch nodes width"], towers: int
) -> Float[Array, "*batch nodes towers each"]:
    """Splits features into the parts of the towers."""
    return x.reshape(*x.shape[:-1], towers, x.shape[-1] // towers)


def joined(x: Float[Array, "*batch nodes towers each"]) -> Float[Array, "*batch nodes width"]:
    """Concatenates the parts of all towers."""
    *nodes, towers, each = x.shape
    return x.reshape(*nodes, towers * each)


def times_all(
    x: Float[Array, "*batch nodes in"], kernel: Float[Array, "towers in out"]
) -> Float[Array, "*batch nodes towers out"]:
    """The product of the same features with the kernel of each tower."""
    towers, width, out = kernel.shape
    return split_towers(x @ jnp.swapaxes(kernel, 0, 1).reshape(width, towers * out), towers)


def times_each(
    x: Float[Array, "*batch nodes towers in"], kernel: Float[Array, "towers in out"]
) -> Float[Array, "*batch nodes towers out"]:
    """The product of each tower's part with its kernel."""
    return jnp.swapaxes(jnp.matmul(jnp.swapaxes(x, -2, -3), kernel), -2, -3)


class PNAConv(GraphLayer):
    """Principal neighbourhood aggregation: ``y_i = W [post(x_i, [S₁ a_i ; S₂ a_i ; …])] + b``.

    ``a_i`` are several reductions, concatenated, of the messages ``pre([x_i ; x_j ; W_e e_ij])``
    that enter node i. Each ``S`` scales them by the degree ``d_i``: ``identity`` by 1,
    ``amplification`` by ``log(d + 1) / δ``, ``attenuation`` by ``δ / log(d + 1)``, ``linear`` by
    ``d / mean d``, and ``inverse_linear`` by ``mean d / d``, where δ is the mean of ``log(d + 1)``.
    A degree of 0 counts as 1 where it would divide. ``pre`` and ``post`` are linear layers, or
    MLPs, with biases, separate for each tower; W combines the towers. See
    https://arxiv.org/abs/2004.05718. It computes what PyTorch Geometric's ``PNAConv`` does. (Its
    ``std`` is never between zero and √1e-5.) A graph with weights or scales is refused.

    A reduction of ``A x_i + B x_j`` is one of ``B x_j`` plus a shift. So if ``pre`` is one layer
    and edges have no features, all reductions are one pass of ``ops.neighbour_reduce`` over
    products of nodes, without arrays of edges. The scales are applied after the product, as factors
    of it.

    Args:
      in_features: width of the input, of both ends.
      out_features: width of the output, a multiple of ``towers``.
      average_degree: the averages of the training set, ``nn.DegreeAverages``; or a concrete graph,
        to compute them from its nodes.
      aggregators: the reductions, different names among those of ``ops.aggregate``.
      scalers: the scales, different names among those above.
      towers: number of towers.
      pre_layers: number of linear layers in ``pre``.
      post_layers: number of linear layers in ``post``.
      activation: activation between these layers: a function, or one of ``"relu"``, ``"gelu"``,
        ``"gelu_exact"``, ``"silu"``, ``"mish"``, ``"squared_relu"``, ``"tanh"``, ``"sigmoid"``, or
        None for no activation.
      divide_input: whether the input is split among the towers, ``in_features / towers`` columns
        each; otherwise each tower gets all of it.

    Raises:
      ValueError: if an option has a type or value other than described above, or a width to split
        is not a multiple of ``towers``.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> layer = nn.PNAConv(8, 4, average_degree=graph, towers=2, rngs=nnx.Rngs(0))
      >>> layer(graph, jnp.ones((3, 8))).shape
      (3, 4)
    """

    @checked_options(
        average_degree=averages_or_graph,
        aggregators=names_of(ops.Aggregation),
        scalers=names_of(Scaler),
        edge_dim=or_none(int_at_least(1)),
        towers=int_at_least(1),
        pre_layers=int_at_least(1),
        post_layers=int_at_least(1),
        activation=any_activation,
        divide_input=flag,
    )
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        average_degree: DegreeAverages | CSRGraph,
        aggregators: Sequence[ops.Aggregation] = ("mean", "min", "max", "std"),
        scalers: Sequence[Scaler] = ("identity", "amplification", "attenuation"),
        edge_dim: int | None = None,
        towers: int = 1,
        pre_layers: int = 1,
        post_layers: int = 1,
        activation: Callable[[Array], Array] | ops.Activation | None = "relu",
        divide_input: bool = False,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        check_widths(self._name, in_features, out_features)
        split = {"out_features": out_features}
        split |= {"in_features": in_features} if divide_input else {}
        for argument, width in split.items():
            if width % towers:
                raise bad_input(self._name, argument, f"a multiple of {towers} towers", width)
        if isinstance(average_degree, CSRGraph):
            average_degree = DegreeAverages.of(average_degree)
        self.in_features, self.edge_dim, self.towers = in_features, edge_dim, towers
        self.divide_input = divide_input
        self.average_degree = average_degree
        self.aggregators, self.scalers = tuple(aggregators), tuple(scalers)
        each = in_features // towers if divide_input else in_features
        edge_linear = None if edge_dim is None else self._linear(edge_dim, each, rngs=rngs)
        self.edge_linear = edge_linear
        inputs = 2 if edge_dim is None else 3
        parts = 1 + len(self.aggregators) * len(self.scalers)
        self.activation = name_of(activation)

        def networks(width: int, out: int, layers: int) -> tuple[Towers, nnx.List]:
            """The first layer of all towers, and the others."""
            first = Towers(towers, (width, out), self.param_dtype, rngs)
            others = (Towers(towers, (out, out), self.param_dtype, rngs) for _ in range(layers - 1))
            return first, nnx.List(others)

        self.pre, self.pre_others = networks(inputs * each, each, pre_layers)
        self.post, self.post_others = networks(parts * each, out_features // towers, post_layers)
        self.linear = self._linear(out_features, out_features, rngs=rngs)

    def __call__(
        self,
        graph: CSRGraph,
        x: Nodes,
        edge_features: Float[Array, "*#batch edges edge_dim"] | None = None,
    ) -> Float[Array, "*batch rows out"]:
        """Applies the convolution.

        Args:
          graph: rows are receivers, columns are senders.
        """
        ends = self._ends(graph, x, Ends(self.in_features, self.in_features))
        edges = self._edge_features(graph, edge_features, self.edge_dim, ends.dst)
        dst, src, kernel, bias = promote_dtype((*ends, *self.pre.parameters()), dtype=self.dtype)
        of_dst, of_src, *of_edges = jnp.split(kernel, len(kernel[0]) // kernel.shape[-1], axis=1)
        senders = joined(self._times(src, of_src))
        shift = joined(self._times(dst, of_dst) + bias)
        # Reductions change with a shift of all messages in a known way, or messages include it.
        includes_shift = bool(self.pre_others) or any(
            REDUCTIONS[name].shifted is None for name in self.aggregators
        )
        if self.edge_linear is None and not includes_shift:
            options = {"axis": -2, "implementation": self.implementation}
            reduced = ops.neighbour_reduce(graph, senders, self.aggregators, **options)
            return self._combine_reductions(graph, dst, reduced, shift)
        messages = self._gather_senders(graph, senders)
        if self.edge_linear is not None:
            encoded = self._apply(self.edge_linear, edges).astype(messages.dtype)
            messages = messages + joined(times_all(encoded, of_edges[0]))
        if includes_shift:
            messages = messages + self._gather_receivers(graph, shift)
        if self.pre_others:
            messages = split_towers(messages, self.towers)
            messages = joined(self._apply_others(self.pre_others, messages))
        reduced = self._aggregate_edges(graph, messages, self.aggregators)
        return self._combine_reductions(graph, dst, reduced, None if includes_shift else shift)

    def _combine_reductions(
        self, graph: CSRGraph, dst: Array, reduced: Array, shift: Array | None
    ) -> Float[Array, "*batch rows out"]:
        """Computes the result from reductions of messages, to which each row may add a shift."""
        parts = jnp.split(reduced, len(self.aggregators), axis=-1)
        if shift is not None:
            parts = _shifted(graph, self.aggregators, parts, shift)
        y = self._apply_others(self.post_others, self._scaled(graph, dst, parts))
        return self._apply(self.linear, joined(y))

    def _apply_others(self, others: nnx.List, x: Array) -> Float[Array, "*batch nodes towers each"]:
        """Applies the layers after the first one of each tower, each after an activation."""
        for layer in others:
            x = layer(function_of(self.activation)(x), self.dtype)
        return x

    def _times(self, x: Array, kernel: Array) -> Float[Array, "*batch nodes towers out"]:
        """Multiplies each tower's part of the features by the tower's kernel."""
        if not self.divide_input:
            return times_all(x, kernel)
        return times_each(split_towers(x, self.towers), kernel)

    def _scaled(
        self, graph: CSRGraph, dst: Array, reduced: list[Array]
    ) -> Float[Array, "*batch rows towers out"]:
        """Applies the first layer of ``post`` to own features and all scaled reductions."""
        dst, kernel, bias = promote_dtype((dst, *self.post.parameters()), dtype=self.dtype)
        each, out = self.pre.bias.shape[-1], kernel.shape[-1]
        y = self._times(dst, kernel[:, :each]) + bias
        parts = jnp.concatenate([split_towers(part, self.towers) for part in reduced], axis=-1)
        of_scales = jnp.split(kernel[:, each:], len(self.scalers), axis=1)
        # One product for all scales, which are factors of its columns.
        product = times_each(parts, jnp.concatenate(of_scales, axis=-1))
        product = product.reshape(*product.shape[:-1], len(self.scalers), out)
        wide = accumulation_dtype(jnp.dtype(self.param_dtype))
        scales = degree_scales(graph, self.average_degree, self.scalers, wide)
        scales = scales[:, None, :, None].astype(product.dtype)
        return y + jnp.sum(product * scales, axis=-2)


def _shifted(
    graph: CSRGraph,
    aggregators: Sequence[ops.Aggregation],
    reduced: Sequence[Float[Array, "*batch rows width"]],
    shift: Float[Array, "*batch rows width"],
) -> list[Float[Array, "*batch rows width"]]:
    """The reductions of messages plus each row's own shift; zero without edges."""
    degrees = graph.degrees()[:, None]

    def shifted(name: str, part: Array) -> Array:
        how = REDUCTIONS[name].shifted
        if how == "not at all":
            return part
        return part + (degrees.astype(shift.dtype) * shift if how == "times count" else shift)

    return [
        jnp.where(degrees > 0, shifted(name, part), 0)
        for name, part in zip(aggregators, reduced, strict=True)
    ]
