"""Shared parts of attention layers: heads, self loops, features of edges, results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import (
    CSRGraph,
    FillValue,
    LoopReduce,
    is_concrete,
    looped_features,
    with_one_loop_each,
)
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import (
    Ends,
    GraphLayer,
    Nodes,
    widths_of_ends,
)
from jaxgnn.nn.shared.linear import FusedLinear
from jaxgnn.nn.shared.options import checked_options, flag, int_at_least, number, one_of, or_none
from jaxgnn.ops.core.dtypes import accumulation_dtype

_glorot = nnx.initializers.glorot_uniform()

Attended = (
    Float[Array, "*batch rows out"]
    | tuple[Float[Array, "*batch rows out"], tuple[CSRGraph, Float[Array, "*batch edges heads"]]]
)


class Heads(NamedTuple):
    """The heads of a layer: their number, the width of each, and whether they are concatenated."""

    count: int
    features: int
    concat: bool

    @property
    def width(self) -> int:
        """Width of all heads together."""
        return self.count * self.features

    @property
    def out_features(self) -> int:
        """Width of the result."""
        return self.width if self.concat else self.features


class EdgeOptions(NamedTuple):
    """Options for edges: self loops, width of the features, and features of the self loops."""

    add_self_loops: bool = False
    dim: int | None = None
    fill_value: FillValue = "mean"


def _fill_value(value: Any) -> str | None:
    """Checks for a way to compute features of self loops, a number, or numbers."""
    names = get_args(LoopReduce)
    value = _numbers(value)
    if isinstance(value, str):
        is_good = value in names
    elif isinstance(value, Sequence):
        is_good = len(value) > 0 and all(number(v) is None for v in value)
    else:
        is_good = number(value) is None
    return None if is_good else f"a number, numbers, or one of {', '.join(names)}"


def _numbers(value: Any) -> FillValue:
    """Converts an array to Python numbers, in lists if it has axes; other values unchanged."""
    is_array = isinstance(value, np.ndarray | jax.Array)
    return np.asarray(value).tolist() if is_array and is_concrete(value) else value


checked = checked_options(
    attention_type=one_of("MX", "SD"),
    add_self_loops=flag,
    beta=flag,
    edge_dim=or_none(int_at_least(1)),
    fill_value=_fill_value,
    requires_grad=flag,
    root_weight=flag,
    share_weights=flag,
)


class AttentionLayer(GraphLayer):
    """Base class of layers that attend to neighbours with several heads.

    A subclass defines ``_attend``, which calls its op.
    """

    option_lines = GraphLayer.option_lines | {
        "add_self_loops": (
            "whether each node gets one self loop instead of those that it has. For a\n"
            "  concrete graph this is done once. For a graph that is an argument of a jitted\n"
            "  function it is done in every call: prepare it outside with\n"
            "  ``jaxgnn.graph.with_one_loop_each``, and set this to False. In a bipartite graph\n"
            "  node ``i`` of the receivers and of the senders count as one; where they are nodes\n"
            "  of different kinds, it should be False."
        ),
        "dropout": "probability of dropping an edge for a head in training, after the softmax.",
        "fill_value": (
            'features of self loops: ``"mean"``, ``"add"``, ``"min"``, ``"max"`` or ``"mul"``\n'
            "  of those of the edges that enter the node; a number; or one number for each feature."
        ),
        "out_features": "width of the output of each head.",
    }
    edge_linear: FusedLinear | None = None
    residual_linear: FusedLinear | None = None
    bias: nnx.Param | None = None

    def __init__(
        self,
        in_features: Any,
        heads: Heads,
        edges: EdgeOptions,
        *,
        dropout: float,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(dropout=dropout, **common)
        self.in_widths: Ends[int] = widths_of_ends(self._name, in_features)
        widths_of_ends(self._name, heads.features)
        self.heads = heads
        fill = _numbers(edges.fill_value)
        if not isinstance(fill, str) and isinstance(fill, Sequence):
            fill = tuple(map(float, fill))
            if edges.dim is not None and len(fill) != edges.dim:
                expected = f"a number, or {edges.dim} of them, as edge_dim says"
                raise bad_input(self._name, "fill_value", expected, f"{len(fill)} numbers")
        self.edges = edges._replace(fill_value=fill)

    def __call__(
        self,
        graph: CSRGraph,
        x: Nodes,
        edge_features: Float[Array, "*#batch edges edge_dim"] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
        return_attention_weights: bool = False,
    ) -> Attended:
        """Applies the convolution.

        Args:
          return_attention_weights: whether to also return the weights, including dropout.

        Returns:
          Features of the receivers; with ``return_attention_weights`` the pair of these and
          ``(graph, weights)``: the graph that was attended over, with the self loops that the layer
          has added, and the weight of each of its edge slots and heads.
        """
        ends = self._ends(graph, x, self.in_widths)
        graph, edge_features = self._add_self_loops(graph, edge_features, ends)
        options: dict[str, Any] = {"implementation": self.implementation}
        rngs = self._training_rngs(rngs)
        if rngs is not None:
            options |= {"dropout": self.dropout_rate, "key": rngs.dropout()}
        if not return_attention_weights:
            return self._result(self._attend(graph, ends, edge_features, options), ends)
        options["return_weights"] = True
        y, weights = self._attend(graph, ends, edge_features, options)
        return self._result(y, ends), (graph, weights)

    def _attend(
        self, graph: CSRGraph, ends: Ends[Array], edge_features: Array | None, options: Any
    ) -> Any:
        """Calls the op of attention with ``options``, and returns its result."""
        raise NotImplementedError

    def _result(
        self, y: Float[Array, "*batch rows heads dim"], ends: Ends[Array]
    ) -> Float[Array, "*batch rows out"]:
        """The layer's result from the attended sums and the features of both ends."""
        y = self._joined(y)
        if self.residual_linear is not None:
            y = y + self._apply(self.residual_linear, ends.dst)
        return self._biased(y)

    # -- parameters --------------------------------------------------------------------------

    def _glorot_linear(self, in_features: int, out_features: int, **options: Any) -> FusedLinear:
        """A linear layer, by default without bias."""
        options = {"use_bias": False, "kernel_init": _glorot} | options
        return self._linear(in_features, out_features, **options)

    def _vectors(self, rngs: nnx.Rngs) -> nnx.Param:
        """A vector for each head, [heads, features]."""
        shape = self.heads.count, self.heads.features
        return nnx.Param(_glorot(rngs.params(), shape, self.param_dtype))

    def _edge_linear(self, rngs: nnx.Rngs) -> FusedLinear | None:
        if self.edges.dim is None:
            return None
        return self._glorot_linear(self.edges.dim, self.heads.width, rngs=rngs)

    def _make_result(self, residual: bool, use_bias: bool, rngs: nnx.Rngs) -> None:
        """Creates the parameters that ``_result`` reads."""
        out = self.heads.out_features
        dst = self.in_widths.dst
        self.residual_linear = self._glorot_linear(dst, out, rngs=rngs) if residual else None
        self.bias = self._zeros(out, use_bias)

    # -- steps of a call ---------------------------------------------------------------------

    def _add_self_loops(
        self, graph: CSRGraph, edge_features: Array | None, ends: Ends[Array]
    ) -> tuple[CSRGraph, Array | None]:
        """Returns the graph to attend over, and the features of its edges, finite in padding."""
        edge_features = self._edge_features(graph, edge_features, self.edges.dim, ends.dst)
        if not self.edges.add_self_loops:
            return graph, edge_features
        looped = with_one_loop_each(graph)
        if edge_features is not None:
            edge_features = looped_features(graph, looped, edge_features, self.edges.fill_value)
        return looped.graph, edge_features

    def _split(self, z: Float[Array, "*rest width"]) -> Float[Array, "*rest heads features"]:
        return z.reshape(*z.shape[:-1], self.heads.count, self.heads.features)

    def _projected(self, linear: FusedLinear, x: Array) -> Float[Array, "*batch nodes heads dim"]:
        return self._split(self._apply(linear, x))

    def _edge_kernel(self, dtype: DTypeLike) -> Float[Array, "edge_dim heads features"] | None:
        """The linear map of the features of edges, by heads, in the accumulation dtype."""
        if self.edge_linear is None:
            return None
        return self._split(self.edge_linear.kernel[...]).astype(accumulation_dtype(dtype))

    def _scores(
        self, linear: FusedLinear, vectors: nnx.Param, x: Array
    ) -> Float[Array, "*batch nodes heads"]:
        """``⟨a_h, W_h x⟩`` for each head, by one matrix, the product of a and W."""
        wide = accumulation_dtype(x.dtype)
        kernel = self._split(linear.kernel[...]).astype(wide)
        folded = jnp.sum(kernel * vectors[...].astype(wide), axis=-1)
        return jnp.matmul(x, folded.astype(x.dtype), preferred_element_type=wide)

    def _joined(self, y: Float[Array, "*batch rows heads dim"]) -> Float[Array, "*batch rows out"]:
        """Concatenates the heads of each node, or takes their mean."""
        if not self.heads.concat:
            return jnp.mean(y, axis=-2)
        return y.reshape(*y.shape[:-2], self.heads.width)
