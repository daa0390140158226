"""Calls of the Mosaic GPU kernels of attention over neighbours.

What the kernels compute is in the docstring of ``jaxgnn/ops/_attention/skeleton.py``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention import edge_features
from jaxgnn.ops._core.pallas_call import vary_like
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
        """What the values of each edge slot are multiplied with, in float32."""
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
    kernel = getattr(calls._passes, name)
    edges = (pieces(graph),)
    if name == "backward":
        edges = *edges, pieces(graph.transpose()), graph.made_plan().permutation
    made = kernel(*edges, operands, *arrays, form)
    has_features = operands.edge_features is not None
    if name == "backward" and has_features and graph.num_rows * graph.num_edges:
        made = edge_features.completed(form, graph, operands, made)
    return jax.tree.map(lambda result: vary_like(operands.summed, result), made)
