"""Calls of the Mosaic GPU kernels of attention over neighbours.

The docstring of ``jaxgnn/ops/_attention/computation.py`` describes what the kernels compute.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention import edge_features
from jaxgnn.ops._core.pallas_call import vary_like
from jaxgnn.ops._graph.edge_products import add_heads
from jaxgnn.ops._graph.pallas import pieces
from pallas_kernels.attention.arguments import Cotangents, Form, Operands

if TYPE_CHECKING:
    from pallas_kernels.attention.passes import Passes


@dataclass(frozen=True)
class Calls:
    """The calls of the kernels of an op.

    Attributes:
      op: name of the op, and of the module of its kernels.
    """

    op: str

    def limits(self, graph: CSRGraph, operands: Operands, *rest: Any, form: Form) -> str | None:
        """The reason why the kernels can not run these operands, or None."""
        del graph, rest, form
        return self._passes.unsupported(operands)

    def forward(
        self, graph: CSRGraph, operands: Operands, *, form: Form
    ) -> tuple[Float[Array, "rows heads dim"], Float[Array, "rows heads"]]:
        """The weighted sums and the logarithms of the sums of exponentials, in float32."""
        return _run(self, "forward", graph, operands, form=form)

    def weights(
        self, graph: CSRGraph, operands: Operands, lse: Float[Array, "rows heads"], *, form: Form
    ) -> Float[Array, "edges heads"]:
        """The factor of the values of each edge slot, in float32."""
        return _run(self, "weights", graph, operands, lse, form=form)

    def backward(
        self, graph: CSRGraph, operands: Operands, cotangents: Cotangents, *, form: Form
    ) -> Operands:
        """The gradients, each of the dtype of its operand."""
        return _run(self, "backward", graph, operands, cotangents, form=form)

    @property
    def _passes(self) -> Passes:
        return importlib.import_module(f"pallas_kernels.attention.{self.op}").PASSES


@partial(jax.jit, static_argnums=(0, 1), static_argnames="form", inline=True)
def _run(calls: Calls, name: str, graph: CSRGraph, operands: Operands, *arrays, form: Form) -> Any:
    kernels = calls._passes
    edges = (pieces(graph),)
    if name == "backward":
        edges = *edges, pieces(graph.transpose()), graph.made_plan().permutation
    made = getattr(kernels, name)(*edges, operands, *arrays, form)
    has_features = operands.edge_features is not None
    if name == "backward" and has_features and graph.num_rows * graph.num_edges:
        made = edge_features.completed(form, graph, operands, made)
    values = operands.edge_values
    if name == "backward" and values is not None and made.edge_values is None:
        (cotangents,) = arrays
        weights, dy = kernels.weights(*edges[:1], operands, cotangents.lse, form), cotangents.dy
        shared = to_shared_values(graph, weights, dy.astype(jnp.float32), values.shape[1])
        made = made.replace(edge_values=shared.astype(values.dtype))
    return jax.tree.map(lambda result: vary_like(operands.summed, result), made)


def to_shared_values(
    graph: CSRGraph,
    weights: Float[Array, "edges heads"],
    dy: Float[Array, "rows heads dim"],
    groups: int,
) -> Float[Array, "edges groups dim"]:
    """The gradient to values of edges that some heads share: ``Σ_h p_h dy_h`` of each group.

    A warp has some heads only, so the kernels would write an array for all heads. Here the weights
    are computed again, and the heads are added one after the other.
    """
    by_group = (a.reshape(a.shape[0], groups, -1, *a.shape[2:]) for a in (weights, dy))
    return jax.vmap(partial(add_heads, graph), in_axes=(1, 1), out_axes=1)(*by_group)
