"""Base classes of layers: dtypes, biases, checks of graph and features, arrays of edges."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple, Unpack

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._arrays.arrays import as_jax, shown_sides
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.edge_list import way_to_edge_slots
from jaxgnn.graph.csr.require_graph import refuse_weights, require_graph
from jaxgnn.nn.shared.common_options import (
    OPTION_LINES,
    CommonOptions,
    DocumentedModule,
    Settings,
)
from jaxgnn.nn.shared.dropout import training_rngs
from jaxgnn.nn.shared.linear import FusedLinear, apply_linear, apply_mlp
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.ops.shared import at_ends

Nodes = (
    Float[Array, "*batch nodes in"]
    | tuple[Float[Array, "*batch rows in_dst"], Float[Array, "*batch cols in_src"]]
)


class Ends[T](NamedTuple):
    """A pair of values for the receivers, the rows of a graph, and the senders, its columns."""

    dst: T
    src: T

    @property
    def are_one(self) -> bool:
        """Whether both ends were given as one object."""
        return self.dst is self.src


class Layer(DocumentedModule):
    """Base class of layers on graphs and on hypergraphs.

    A layer is its formula: it names its own options, and has the common ones as ``**common``. Their
    checks, defaults and lines of ``Args:`` are defined in one place.

    Attributes:
      bias: bias that ``_biased`` adds, or None; layers without one need not set it.
      deterministic: None to drop entries when a call has ``rngs``; False, which ``train()`` sets,
        to require them; True, which ``eval()`` sets, to drop nothing.
    """

    bias: nnx.Param | None

    option_lines = OPTION_LINES | {
        "implementation": (
            'name of the kernels of the ops, such as ``"xla"``; None for the default.\n'
            '  Linear layers on graphs run the fastest kernels unless it is ``"xla"``.'
        ),
    }

    def __init__(self, *, dropout: float = 0.0, **common: Unpack[CommonOptions]):
        settings = Settings(**common)
        self.dropout_rate = dropout
        self.deterministic: bool | None = None
        self.implementation = settings.implementation
        self.dtype = settings.dtype
        self.param_dtype = settings.param_dtype

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _dtypes(self) -> dict[str, Any]:
        """The options of a linear layer with the dtypes of this one."""
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    def _zeros(self, width: int, use_bias: bool = True) -> nnx.Param | None:
        """A bias of this width, or None."""
        return nnx.Param(jnp.zeros(width, self.param_dtype)) if use_bias else None

    def _biased(self, y: Array) -> Array:
        """Adds the layer's bias, if there is one, to the last axis of an array."""
        return y if self.bias is None else y + self.bias[...].astype(y.dtype)

    def _training_rngs(self, rngs: nnx.Rngs | None) -> nnx.Rngs | None:
        """The random streams of dropout, or None if nothing is dropped."""
        return training_rngs(self._name, self.deterministic, self.dropout_rate, rngs)


class GraphLayer(Layer):
    """Base class of layers that are called with a graph and the features of its nodes.

    Attributes:
      applies_weights: whether the layer applies the weights and scales of a graph; otherwise it
        refuses a graph that has some.
    """

    applies_weights: bool = False

    def _linear(self, in_features: int, out_features: int, **options: Any) -> FusedLinear:
        """A linear layer with the dtypes of this one."""
        return FusedLinear(in_features, out_features, **self._dtypes, **options)

    def _apply(self, linear: FusedLinear, x: Any) -> Array:
        return apply_linear(linear, x, self.implementation)

    def _check(self, graph: CSRGraph, x: Array, in_features: int | None) -> None:
        """Checks graph and features of the senders; ``in_features=None`` accepts any width."""
        self._check_graph(graph)
        self._check_nodes("x", x, graph.num_cols, in_features, "nodes")

    def _check_graph(self, graph: CSRGraph) -> None:
        require_graph(self._name, "graph", graph, ", which comes before the features")
        if not self.applies_weights:
            self._refuse_weights("graph", graph)

    def _refuse_weights(self, argument: str, graph: CSRGraph) -> None:
        """Raises ValueError if the graph has weights or a normalisation."""
        takes_edges = "edge_dim" in inspect.signature(type(self)).parameters
        instead = "pass weights as edge_features"
        instead += "" if takes_edges else " of a layer that takes some"
        refuse_weights(self._name, argument, graph, instead)

    def _check_square(
        self, graph: CSRGraph, reason: str = "since each node adds its own features"
    ) -> None:
        """Raises ValueError unless the graph is square, with as many senders as receivers."""
        if not graph.is_square:
            raise bad_input(self._name, "graph", f"square, {reason}", shown_sides(graph))

    def _check_nodes(self, argument: str, x: Any, count: Any, width: int | None, of: str) -> None:
        if not hasattr(x, "ndim"):
            raise bad_input(self._name, argument, "an array", type(x).__name__)
        if x.ndim < 2 or x.shape[-2] != count or width not in (None, x.shape[-1]):
            wanted = "features" if width is None else width
            shape = f"of shape [..., {count}, {wanted}], {of} by features"
            raise bad_input(self._name, argument, shape, f"shape {x.shape}")
        kinds = (jnp.floating, jnp.integer, jnp.bool_)
        if not any(jnp.issubdtype(x.dtype, kind) for kind in kinds):
            raise bad_input(self._name, argument, "an array of real numbers", f"dtype {x.dtype}")

    def _ends(self, graph: CSRGraph, x: Any, widths: Ends[int] | None) -> Ends[Array]:
        """The features of both ends, in the dtype of the computation.

        ``x`` are features of the nodes of a square graph, or a pair of those of the receivers and
        of the senders; widths of None may be any.
        """
        ends = self._checked_ends(graph, x, widths)
        if ends.are_one:
            (one,) = self._to_floats(ends.dst)
            return Ends(one, one)
        return Ends(*self._to_floats(*ends))

    def _checked_ends(self, graph: CSRGraph, x: Any, widths: Ends[int] | None) -> Ends[Any]:
        """Returns the features of both ends unchanged; raises ValueError unless they fit."""
        self._check_graph(graph)
        names = ("x[0]", "x[1]")
        if not isinstance(x, tuple | list):
            self._check_square(graph, "or x a pair (x_dst, x_src)")
            x, names = (x, x), ("x", "x")
        if len(x) != 2:
            expected = "an array, or a pair (x_dst, x_src)"
            raise bad_input(self._name, "x", expected, f"{len(x)} of them")
        ends: Ends[Any] = Ends(*x)
        for name, array, count, width, of in zip(
            names, ends, graph.shape, widths or (None, None), ("receivers", "senders"), strict=True
        ):
            self._check_nodes(name, array, count, width, of)
        if ends.dst.shape[:-2] != ends.src.shape[:-2]:
            expected = f"of leading axes {ends.dst.shape[:-2]}, as x[0]"
            raise bad_input(self._name, "x[1]", expected, f"shape {ends.src.shape}")
        return ends

    def _edge_features(
        self, graph: CSRGraph, edge_features: Any, dim: int | None, x: Array
    ) -> Float[Array, "*batch edges features"] | None:
        """The features of edges in the dtype of ``x``, zeros in padding; None if there are none.

        ``dim`` is their width, or None for a layer that takes none. They may have the leading axes
        of ``x``.
        """
        name = "edge_features"
        if dim is None:
            if edge_features is not None:
                expected = "None for a layer that was made without edge_dim"
                raise bad_input(self._name, name, expected, f"shape {jnp.shape(edge_features)}")
            return None
        expected = f"of shape [{graph.num_edges}, {dim}], edge slots by features"
        if x.ndim > 2:
            expected += f", or the same with the leading axes of x, {x.shape[:-2]}"
        if edge_features is None:
            raise bad_input(self._name, name, expected, None)
        features = as_jax(self._name, name, edge_features)
        if dim == 1 and features.shape == (graph.num_edges,):
            features = features[:, None]
        fits = features.shape[-2:] == (graph.num_edges, dim)
        if not fits or features.shape[:-2] not in ((), x.shape[:-2]):
            got = f"shape {features.shape}{way_to_edge_slots(graph.num_edges, jnp.shape(features))}"
            raise bad_input(self._name, name, expected, got)
        return zero_padding_edges(graph, features.astype(x.dtype))

    def _gather_receivers(self, graph: CSRGraph, x: Array) -> Float[Array, "*batch edges dim"]:
        """Gathers the features of each edge's receiver; the gradient is a sum by row."""
        return at_ends("receivers", graph, x, implementation=self.implementation)

    def _gather_senders(self, graph: CSRGraph, x: Array) -> Float[Array, "*batch edges dim"]:
        """Gathers the features of each edge's sender; the gradient is a sum by column."""
        return at_ends("senders", graph, x, implementation=self.implementation)

    def _aggregate_edges(
        self, graph: CSRGraph, messages: Array, reduce: Any
    ) -> Float[Array, "*batch rows out"]:
        """The messages of edges, [*batch, edges, dim], reduced at their receivers."""
        return ops.aggregate(graph, messages, reduce, implementation=self.implementation)

    def _apply_mlp(self, mlp: Any, x: Array) -> Array:
        return apply_mlp(mlp, x, self.implementation)

    def _to_floats(self, *arrays: Array) -> list[Array]:
        """Converts arrays to the dtype of the computation, which is chosen as in a linear layer."""
        floats = [
            x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(self.param_dtype)
            for x in (as_jax(self._name, "x", array) for array in arrays)
        ]
        parameter = jnp.zeros((), self.param_dtype)
        return list(promote_dtype((*floats, parameter), dtype=self.dtype)[:-1])


def widths_of_ends(where: str, in_features: Any) -> Ends[int]:
    """Checks one width for both ends, or a pair of widths of the receivers and of the senders."""
    is_pair = isinstance(in_features, tuple | list)
    pair = tuple(in_features) if is_pair else (in_features, in_features)
    if len(pair) != 2:
        expected = "one width, or a pair of those of the receivers and of the senders"
        raise bad_input(where, "in_features", expected, in_features)
    check_widths(where, *pair)
    return Ends(*pair)


def zero_padding_edges(
    graph: CSRGraph, of_edges: Float[Array, "*batch edges dim"]
) -> Float[Array, "*batch edges dim"]:
    """Sets the padding slots of an array of edges to zero; their contents are arbitrary."""
    return jnp.where((graph.receivers() < graph.num_rows)[:, None], of_edges, 0)
