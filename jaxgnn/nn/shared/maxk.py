"""MaxK as a layer, and shared functions of convolutions on compressed features."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input, is_choice
from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.dropout import Features as Features
from jaxgnn.nn.shared.dropout import dropout as dropout
from jaxgnn.nn.shared.options import checked_options, int_at_least, is_integer, require

Activation = Literal["maxk", "relu"]
"""Activations before the aggregation of a graph convolution."""
KernelMode = Literal["auto", "maxk", "dense"]
"""Aggregation of compressed rows: chosen by ``ops.maxk_spmm``, k-sparse, or expanded first."""


class MaxK(DocumentedModule):
    """Keeps the ``k`` largest entries of each row, as a compressed ``jaxgnn.CBSR``.

    Args:
      k: number of entries kept per row.
      by: whether entries are ranked by ``"value"`` or ``"magnitude"``.
      early_stop: None for the exact result, or a number of bisection steps.

    Example:
      >>> nn.MaxK(k=1)(jnp.array([[1.0, 3.0, 2.0]])).todense().tolist()
      [[0.0, 3.0, 0.0]]
    """

    @checked_options()
    def __init__(
        self,
        k: int,
        *,
        by: Literal["value", "magnitude"] = "value",
        early_stop: int | None = None,
        implementation: ops.Name | None = None,
    ):
        check_kept(type(self).__name__, k)
        self.k = k
        self.by = by
        self.early_stop = early_stop
        self.implementation = implementation

    def __call__(self, x: Float[Array, "*batch dim"], k: int | None = None) -> CBSR:
        """Compresses the rows of ``x``; ``k`` overrides the layer's ``k``, for schedules.

        Raises:
          ValueError: if ``k`` is not in 1..dim.
        """
        return ops.maxk(
            x,
            self.k if k is None else k,
            by=self.by,
            early_stop=self.early_stop,
            implementation=self.implementation,
        )


def check_widths(where: str, *widths: int) -> None:
    """Raises ValueError unless every number of features is positive."""
    for width in widths:
        require(where, "the number of features", width, int_at_least(1))


def check_kept(where: str, k: int, width: int | None = None) -> None:
    """Raises ValueError unless ``k`` is a valid number of kept entries, of ``width`` if known."""
    if not is_integer(k) or k < 1 or (width is not None and k > width):
        expected = "an int of at least 1" if width is None else f"an int in 1..{width}"
        raise bad_input(where, "k", expected, repr(k))


def make_activation(
    where: str,
    activation: Activation | None,
    k: int | None,
    width: int,
    implementation: ops.Name | None,
) -> MaxK | None:
    """Creates the MaxK layer of a convolution on rows of ``width``, or None if it has none."""
    if not is_choice(activation, ("maxk", "relu", None)):
        raise bad_input(where, "activation", "'maxk', 'relu' or None", repr(activation))
    if activation != "maxk":
        if k is not None:
            check_kept(where, k)
        return None
    if k is None:
        raise bad_input(where, "k", "given for activation='maxk'", None)
    check_kept(where, k, width)
    return MaxK(k, implementation=implementation)


def aggregate(
    graph: CSRGraph,
    x: Features,
    *,
    kernel_mode: KernelMode,
    implementation: ops.Name | None,
) -> Float[Array, "*batch nodes dim"]:
    """Sums neighbours by the op for the type of ``x``; ``kernel_mode`` applies to compressed rows.

    ``"auto"`` lets ``ops.maxk_spmm`` choose, ``"maxk"`` requires a k-sparse kernel, and
    ``"dense"`` expands the rows.

    Raises:
      NotImplementedError: for ``"maxk"`` where no k-sparse kernel is supported.
    """
    if not isinstance(x, CBSR):
        return ops.spmm(graph, x, implementation=implementation)
    if kernel_mode == "dense":
        dense = ops.todense(x, implementation=implementation)
        return ops.spmm(graph, dense, implementation=implementation)
    if kernel_mode == "maxk":
        asked = ops.requested_implementation(implementation)
        if asked == "xla":
            raise NotImplementedError("kernel_mode='maxk': needs a k-sparse kernel, got xla")
        implementation = asked or ops.sparse_implementation(graph, x)
    return ops.maxk_spmm(graph, x, implementation=implementation)
