"""Relational graph convolutions: a matrix for each relation, with shared bases or in blocks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, Unpack

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, RelationalGraph
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import GraphLayer, Nodes, widths_of_ends
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, flag, int_at_least, or_none


class RGCNConv(GraphLayer):
    """Relational convolution: ``y_i = W_root x_i + b + Σ_r mean_{j ∈ N_r(i)} W_r x_j``.

    See https://arxiv.org/abs/1703.06103. Relations can share bases, ``W_r = Σ_b c_rb V_b``, or have
    matrices of ``num_blocks`` blocks on the diagonal, which both keep the number of parameters
    small. With the same weights it computes what PyTorch Geometric's ``RGCNConv`` does.

    One sparse sum reads the edges of all relations, and one product follows it. The array between
    them has the size receivers × relations × ``in_features``; with many relations it dominates the
    memory.

    Args:
      num_relations: number of relations.
      num_bases: number of shared bases; None for a matrix for each relation.
      num_blocks: number of blocks on the diagonal, which divides both widths; None for full
        matrices. Not together with ``num_bases``.
      aggregation: ``"mean"`` or ``"sum"`` over the edges of a relation, weighted if these have
        weights.

    Example:
      >>> likes = CSRGraph.from_edges([0, 1], [1, 2], 3)
      >>> knows = CSRGraph.from_edges([2], [0], 3)
      >>> layer = nn.RGCNConv(8, 4, num_relations=2, rngs=nnx.Rngs(0))
      >>> layer([likes, knows], jnp.ones((3, 8))).shape
      (3, 4)
    """

    applies_weights = True

    @checked_options(
        num_relations=int_at_least(1),
        num_bases=or_none(int_at_least(1)),
        num_blocks=or_none(int_at_least(1)),
        root_weight=flag,
    )
    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        num_relations: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        aggregation: Literal["mean", "sum"] = "mean",
        root_weight: bool = True,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        self.in_widths = dst, src = widths_of_ends(self._name, in_features)
        check_widths(self._name, out_features)
        blocks = num_blocks or 1
        if src % blocks or out_features % blocks:
            expected = f"a divisor of the widths, {src} and {out_features}"
            raise bad_input(self._name, "num_blocks", expected, num_blocks)
        if num_bases is not None and num_blocks is not None:
            raise bad_input(self._name, "num_blocks", "None with num_bases", num_blocks)
        self.num_relations, self.num_blocks = num_relations, num_blocks
        self.aggregation: Literal["mean", "sum"] = aggregation
        count = num_relations if num_bases is None else num_bases

        matrices = functools.partial(self._matrices, rngs)
        of_blocks = () if num_blocks is None else (num_blocks,)
        self.kernel = matrices(count, *of_blocks, src // blocks, out_features // blocks)
        self.coefficients = None if num_bases is None else matrices(num_relations, num_bases)
        root = functools.partial(self._linear, dst, out_features, use_bias=False, rngs=rngs)
        self.root_linear = root() if root_weight else None
        self.bias = self._zeros(out_features, use_bias)

    def _matrices(self, rngs: nnx.Rngs, *shape: int) -> nnx.Param:
        glorot = nnx.initializers.glorot_uniform(batch_axis=tuple(range(len(shape) - 2)))
        return nnx.Param(glorot(rngs.params(), shape, self.param_dtype))

    def __call__(
        self, graph: RelationalGraph | Sequence[CSRGraph], x: Nodes
    ) -> Float[Array, "*batch rows out"]:
        """Applies the convolution.

        Args:
          graph: the relations: a graph for each, all of one shape; or a ``RelationalGraph``. Pass
            the latter to a jitted function, because it is already sorted.
          x: features of the nodes of square graphs, whose leading axes share them; or a pair
            ``(x_dst, x_src)`` of the receivers' and the senders' features.
        """
        if not isinstance(graph, RelationalGraph):
            if not isinstance(graph, Sequence):
                expected = "a RelationalGraph, or a list with a graph for each relation"
                raise bad_input(self._name, "graph", expected, type(graph).__name__)
            graph = RelationalGraph.from_graphs(graph)
        if graph.num_relations != self.num_relations:
            expected = f"of {self.num_relations} relations"
            raise bad_input(self._name, "graph", expected, f"{graph.num_relations} of them")
        of_shape: Any = graph
        ends = self._ends(of_shape, x, self.in_widths)
        y = self._sum_relations(graph, ends.src)
        if self.root_linear is not None:
            y = y + self._apply(self.root_linear, ends.dst)
        return self._biased(y)

    def _check_graph(self, graph: Any) -> None:
        """Does nothing, because the relations were checked when the graph was built."""

    def _sum_relations(self, graph: RelationalGraph, x: Array) -> Float[Array, "*batch rows out"]:
        stacked = graph.graph.normalized("mean") if self.aggregation == "mean" else graph.graph
        sums = ops.spmm(stacked, x, implementation=self.implementation)
        *batch, _, width = sums.shape
        sums = sums.reshape(*batch, graph.num_rows, self.num_relations, width)
        kernel = self.kernel[...].astype(sums.dtype)
        if self.coefficients is not None:
            sums = self.coefficients[...].T.astype(sums.dtype) @ sums
        return _times_matrices(sums, kernel)


def _times_matrices(
    sums: Float[Array, "*batch rows matrices in"], kernel: Float[Array, "matrices *blocks in out"]
) -> Float[Array, "*batch rows out"]:
    """Sums the products with all matrices, which may be block-diagonal."""
    *rows, _, width = sums.shape
    if kernel.ndim == 3:
        return sums.reshape(*rows, len(kernel) * width) @ kernel.reshape(-1, kernel.shape[-1])
    # A product for each block, over that block of all relations.
    num_blocks = kernel.shape[1]
    blocks = jnp.moveaxis(sums.reshape(*sums.shape[:-1], num_blocks, width // num_blocks), -2, -4)
    of_blocks = kernel.swapaxes(0, 1).reshape(num_blocks, -1, kernel.shape[-1])
    y = blocks.reshape(*blocks.shape[:-2], -1) @ of_blocks
    return jnp.moveaxis(y, -3, -2).reshape(*rows, -1)
