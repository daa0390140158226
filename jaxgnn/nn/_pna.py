"""Principal neighbourhood aggregation: several reductions, scaled by the degree of the node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Unpack, get_args

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, is_concrete
from jaxgnn.graph._structure import structure
from jaxgnn.nn._activations import function_of, name_of
from jaxgnn.nn._common_options import CommonOptions
from jaxgnn.nn._graph_layer import Ends, GraphLayer, Nodes
from jaxgnn.nn._maxk import check_widths
from jaxgnn.nn._options import any_activation, at_least, checked_options, flag, or_none
from jaxgnn.ops._core.dtypes import accumulation_dtype

Scaler = Literal["identity", "amplification", "attenuation", "linear", "inverse_linear"]
"""Ways to scale what a node has aggregated by its degree."""

_kernel_init = nnx.initializers.lecun_normal(in_axis=-2, out_axis=-1, batch_axis=0)


class DegreeAverages(NamedTuple):
    """Averages over the nodes of a training set, by which ``PNAConv`` scales.

    Attributes:
      linear: mean of the degree d.
      log: mean of ``log(d + 1)``.
    """

    linear: float
    log: float

    @classmethod
    def of(cls, *graphs: CSRGraph) -> DegreeAverages:
        """The averages over the nodes of graphs, such as all of a training set.

        All rows are counted, those that pad a batch as well, as nodes of degree 0: give it the
        graphs themselves and not padded batches of them.

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
        return cls._of(where, np.concatenate([np.diff(np.asarray(g.indptr)) for g in graphs]))

    @classmethod
    def of_histogram(cls, counts: npt.ArrayLike) -> DegreeAverages:
        """The averages from the number of nodes of each degree 0, 1, …, as PyG's ``deg``.

        Args:
          counts: whole numbers, [largest degree + 1].

        Raises:
          ValueError: if the counts are not one axis of numbers that are not negative, or no node
            has an edge.

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
        return cls._of(where, np.repeat(np.arange(len(numbers)), numbers))

    @classmethod
    def _of(cls, where: str, degrees: np.ndarray) -> DegreeAverages:
        if not degrees.any():
            raise bad_input(where, "the degrees", "of at least one edge", "none")
        return cls(float(degrees.mean()), float(np.log(degrees + 1.0).mean()))


def _names(kind: Any):
    """Check for different names of a kind, in a sequence."""
    known = get_args(kind)

    def check(value: Any) -> str | None:
        is_good = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
        is_good = is_good and all(isinstance(v, str) and v in known for v in value)
        is_good = is_good and len(set(value)) == len(value)
        return None if is_good else f"a sequence of different names among {', '.join(known)}"

    return check


def _average_degree(value: Any) -> str | None:
    is_good = isinstance(value, DegreeAverages) and all(
        isinstance(v, int | float) and math.isfinite(v) and v > 0 for v in value
    )
    is_good = is_good or (isinstance(value, CSRGraph) and is_concrete(value.indptr))
    return None if is_good else "nn.DegreeAverages of positive numbers, or a concrete CSRGraph"


class _Towers(nnx.Module):
    """A linear layer for each tower, parameters ``kernel`` [towers, in, out] and ``bias``."""

    def __init__(self, towers: int, widths: tuple[int, int], param_dtype: Any, rngs: nnx.Rngs):
        shape = towers, *widths
        self.kernel = nnx.Param(_kernel_init(rngs.params(), shape, param_dtype))
        self.bias = nnx.Param(jnp.zeros((towers, widths[1]), param_dtype))


class PNAConv(GraphLayer):
    """Principal neighbourhood aggregation: ``y_i = W [post(x_i, [S₁ a_i ; S₂ a_i ; …])] + b``.

    ``a_i`` are several reductions, side by side, of the messages ``pre([x_i ; x_j ; W_e e_ij])``
    that enter node i, and each ``S`` scales them by the degree ``d_i``: ``identity`` by 1,
    ``amplification`` by ``log(d + 1) / δ``, ``attenuation`` by ``δ / log(d + 1)``, ``linear`` by
    ``d / mean d``, and ``inverse_linear`` by ``mean d / d``, where δ is the mean of ``log(d + 1)``,
    and 1 stands for a degree of 0 where it would divide. ``pre`` and ``post`` are linear layers, or
    MLPs, with biases, for each tower by itself; W joins the towers. See
    https://arxiv.org/abs/2004.05718. It computes what PyTorch Geometric's ``PNAConv`` does. (Its
    ``std`` is never between zero and √1e-5.) Weights and scales of the graph are ignored.

    A reduction of ``A x_i + B x_j`` is, by its shift, one of ``B x_j``: so if ``pre`` is one layer
    and edges have no features all reductions are one pass of ``ops.neighbour_reduce`` over products
    of nodes, and there are no arrays of edges. The scales are applied behind the product, of which
    they are factors.

    Args:
      in_features: width of the input, of both ends.
      out_features: width of the output, a multiple of ``towers``.
      average_degree: the averages of the training set, ``nn.DegreeAverages``; or a concrete graph,
        for those of its nodes.
      aggregators: the reductions, different names among those of ``ops.aggregate``.
      scalers: the scales, different names among those above.
      edge_dim: width of the features of edges; None if there are none.
      towers: number of towers.
      pre_layers: number of linear layers in ``pre``.
      post_layers: number of linear layers in ``post``.
      activation: activation between these layers: a function, or one of ``"relu"``, ``"gelu"``,
        ``"gelu_exact"``, ``"silu"``, ``"mish"``, ``"squared_relu"``, or None for no activation.
      divide_input: whether the input is split among the towers, ``in_features / towers`` columns
        each; otherwise each tower gets all of it.

    Raises:
      ValueError: if an option has a type or value other than described above, or a width that is to
        be split is no multiple of ``towers``.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jaxgnn import nn
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> layer = nn.PNAConv(8, 4, average_degree=graph, towers=2, rngs=nnx.Rngs(0))
      >>> layer(graph, jnp.ones((3, 8))).shape
      (3, 4)
    """

    @checked_options(
        average_degree=_average_degree,
        aggregators=_names(ops.Aggregation),
        scalers=_names(Scaler),
        edge_dim=or_none(at_least(1)),
        towers=at_least(1),
        pre_layers=at_least(1),
        post_layers=at_least(1),
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
        joined = (1 + len(self.aggregators) * len(self.scalers)) * each
        self.activation = name_of(activation)

        def networks(width: int, out: int, layers: int) -> tuple[_Towers, nnx.List]:
            """The first layer of all towers, and the others."""
            first = _Towers(towers, (width, out), self.param_dtype, rngs)
            others = (
                _Towers(towers, (out, out), self.param_dtype, rngs) for _ in range(layers - 1)
            )
            return first, nnx.List(others)

        self.pre, self.pre_others = networks(inputs * each, each, pre_layers)
        self.post, self.post_others = networks(joined, out_features // towers, post_layers)
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
          x: features of the nodes of a square graph, whose leading axes share the graph; or a pair
            ``(x_dst, x_src)`` of those of the receivers and those of the senders.
          edge_features: features of the edge slots, in the graph's order; with the leading axes of
            ``x`` or without.

        Raises:
          ValueError: if an argument does not fit the others or the layer.
        """
        ends = self._ends(graph, x, Ends(self.in_features, self.in_features))
        edges = self._edge_features(graph, edge_features, self.edge_dim, ends.dst)
        dst, src, kernel, bias = self._cast(*ends, self.pre)
        of_dst, of_src, *of_edges = jnp.split(kernel, len(kernel[0]) // kernel.shape[-1], axis=1)
        senders = _joined(self._times(src, of_src))
        shift = _joined(self._times(dst, of_dst) + bias)
        if self.edge_linear is None and not self.pre_others:
            options = {"axis": -2, "implementation": self.implementation}
            reduced = ops.neighbour_reduce(structure(graph), senders, self.aggregators, **options)
            return self._of_reduced(graph, dst, self._shifted(graph, reduced, shift))
        messages = self._at_senders(graph, senders)
        if self.edge_linear is not None:
            encoded = self._apply(self.edge_linear, edges).astype(messages.dtype)
            messages = messages + _joined(_of_all(encoded, of_edges[0]))
        if self.pre_others:
            messages = messages + self._at_receivers(graph, shift)
            messages = self._through(self.pre_others, self._by_tower(messages))
            reduced = self._aggregate_edges(graph, _joined(messages), self.aggregators)
            return self._of_reduced(graph, dst, jnp.split(reduced, len(self.aggregators), axis=-1))
        reduced = self._aggregate_edges(graph, messages, self.aggregators)
        return self._of_reduced(graph, dst, self._shifted(graph, reduced, shift))

    def _of_reduced(
        self, graph: CSRGraph, dst: Array, reduced: list[Array]
    ) -> Float[Array, "*batch rows out"]:
        """The result from the reductions of the messages."""
        y = self._through(self.post_others, self._scaled(graph, dst, reduced))
        return self._apply(self.linear, _joined(y))

    def _through(
        self, others: nnx.List, x: Float[Array, "*batch nodes towers each"]
    ) -> Float[Array, "*batch nodes towers each"]:
        """The layers behind the first one of each tower, each with an activation in front."""
        for layer in others:
            kernel, bias = layer.kernel[...], layer.bias[...]
            x, kernel, bias = promote_dtype((x, kernel, bias), dtype=self.dtype)
            x = _of_each(function_of(self.activation)(x), kernel) + bias
        return x

    def _cast(self, dst: Array, src: Array, layer: _Towers) -> tuple[Array, Array, Array, Array]:
        """Features, kernel and bias in the dtype of the computation."""
        arrays = (dst, src, layer.kernel[...], layer.bias[...])
        dst, src, kernel, bias = promote_dtype(arrays, dtype=self.dtype)
        return dst, src, kernel, bias

    def _times(self, x: Array, kernel: Array) -> Float[Array, "*batch nodes towers out"]:
        """The product of each tower's part of the features with its kernel."""
        if not self.divide_input:
            return _of_all(x, kernel)
        return _of_each(self._by_tower(x), kernel)

    def _by_tower(self, x: Array) -> Float[Array, "*batch nodes towers each"]:
        return x.reshape(*x.shape[:-1], self.towers, x.shape[-1] // self.towers)

    def _shifted(self, graph: CSRGraph, reduced: Array, shift: Array) -> list[Array]:
        """The reductions of messages to which each row adds the same; zero without edges."""
        degrees = graph.degrees()[:, None]
        made = []
        for name, part in zip(
            self.aggregators, jnp.split(reduced, len(self.aggregators), axis=-1), strict=True
        ):
            if name == "sum":
                part = part + degrees.astype(part.dtype) * shift
            elif name not in ("std", "var"):
                part = part + shift
            made.append(jnp.where(degrees > 0, part, 0))
        return made

    def _scaled(
        self, graph: CSRGraph, dst: Array, reduced: list[Array]
    ) -> Float[Array, "*batch rows towers out"]:
        """The first layer of ``post``, of the node's own features and all scaled reductions."""
        kernel, bias = self.post.kernel[...], self.post.bias[...]
        dst, kernel, bias = promote_dtype((dst, kernel, bias), dtype=self.dtype)
        each, out = self.pre.bias.shape[-1], kernel.shape[-1]
        y = self._times(dst, kernel[:, :each]) + bias
        by_tower = jnp.concatenate([self._by_tower(part) for part in reduced], axis=-1)
        of_scales = jnp.split(kernel[:, each:], len(self.scalers), axis=1)
        # One product for all scales, which are factors of its columns.
        product = _of_each(by_tower, jnp.concatenate(of_scales, axis=-1))
        product = product.reshape(*product.shape[:-1], len(self.scalers), out)
        scales = self._scales(graph).astype(product.dtype)
        return y + jnp.sum(product * scales[:, None, :, None], axis=-2)

    def _scales(self, graph: CSRGraph) -> Float[Array, "rows scalers"]:
        """The factor of each row and scale."""
        degrees = graph.degrees().astype(accumulation_dtype(jnp.dtype(self.param_dtype)))
        at_least_one = jnp.maximum(degrees, 1)
        mean, log = self.average_degree
        made = {
            "identity": lambda: jnp.ones_like(degrees),
            "amplification": lambda: jnp.log(degrees + 1) / log,
            "attenuation": lambda: log / jnp.log(at_least_one + 1),
            "linear": lambda: degrees / mean,
            "inverse_linear": lambda: mean / at_least_one,
        }
        return jnp.stack([made[name]() for name in self.scalers], axis=-1)


def _of_all(x: Float[Array, "*batch nodes in"], kernel: Float[Array, "towers in out"]) -> Array:
    """The product of the features with the kernel of each tower, [*batch, nodes, towers, out]."""
    towers, width, out = kernel.shape
    flat = jnp.matmul(x, jnp.swapaxes(kernel, 0, 1).reshape(width, towers * out))
    return flat.reshape(*flat.shape[:-1], towers, out)


def _of_each(
    x: Float[Array, "*batch nodes towers in"], kernel: Float[Array, "towers in out"]
) -> Float[Array, "*batch nodes towers out"]:
    """The product of each tower's features with its kernel."""
    return jnp.swapaxes(jnp.matmul(jnp.swapaxes(x, -2, -3), kernel), -2, -3)


def _joined(x: Float[Array, "*batch nodes towers each"]) -> Float[Array, "*batch nodes width"]:
    *nodes, towers, each = x.shape
    return x.reshape(*nodes, towers * each)
