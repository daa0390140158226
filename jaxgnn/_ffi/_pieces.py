"""Operands and launches of CUDA kernels that walk a graph in pieces of rows.

``jaxgnn/_ffi/cuda/pieces.h`` has the same names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn._ffi._call import Shape
from jaxgnn._ffi._launch import WARP, Launch
from jaxgnn.graph import CSRGraph, edges_per_piece
from jaxgnn.graph.csr.operands import coefficients, pieces
from pallas_kernels.chip import Chip

_PIECES = "indptr", "unit_rows", "unit_offsets", "pieces", "counts", "indices"
_COEFFICIENTS = "weights", "row_scale", "col_scale"
_FLOAT_BYTES = 4
_OTHER_BYTES = 8 * 1024  # Upper bound on the shared memory that kernels need beside one row.
_MOST_COLUMNS = 16384


class Pieces(NamedTuple):
    """A graph as kernels walk it.

    Attributes:
      operands: its arrays by the names of parameters.
      types: dtypes by the names of the sources.
      numbers: its sizes by the names of parameters.
      count: upper bound on the number of pieces.
    """

    operands: dict[str, Array | None]
    types: dict[str, Any]
    numbers: dict[str, int]
    count: int

    @classmethod
    def of(cls, graph: CSRGraph) -> Pieces:
        """The pieces of a graph with its weights and scales."""
        arrays = dict(zip(_PIECES, pieces(graph), strict=True))
        numbers = {
            "edges_per_piece": edges_per_piece(graph.num_edges),
            "num_rows": graph.num_rows,
            "num_edges": graph.num_edges,
        }
        factors = dict(zip(_COEFFICIENTS, coefficients(graph), strict=True))
        types = {"Offset": arrays["indptr"].dtype}
        return cls(arrays | factors, types, numbers, arrays["pieces"].shape[-1])

    @property
    def has_factors(self) -> bool:
        """Whether edges have weights or scales of columns."""
        return self.operands["weights"] is not None or self.operands["col_scale"] is not None

    @property
    def _is_cut(self) -> bool:
        """Whether a row may have several pieces."""
        return self.numbers["num_edges"] > self.numbers["edges_per_piece"]

    def partial_sums(self, dim: int) -> tuple[Shape, Any]:
        """Shape and dtype of the workspace for sums of rows that are cut into several pieces."""
        edges, size = self.numbers["num_edges"], self.numbers["edges_per_piece"]
        return (2 * (edges // size + 1) if self._is_cut else 0, dim), jnp.float32

    def add_pieces(self, dim: int) -> list[Launch]:
        """The launch that adds the partial sums of rows, if there are any."""
        if not self._is_cut:
            return []
        rows = -(-self.numbers["num_rows"] // WARP)
        return [Launch.striding("add_pieces", rows, blocks_y=-(-dim // WARP))]

    def zero_padding(self) -> Launch:
        """The launch that sets the entries of padding slots to zero."""
        return Launch.striding("zero_padding", self.numbers["num_edges"], 8 * WARP)

    def holding_rows(self, kernel: str, bytes_of_warp: int, passes: int = 1) -> Launch:
        """The launch of a warp for each piece, with bytes of shared memory for each warp."""
        warps = max(1, min(8, Chip.current().block_bytes // bytes_of_warp))
        return Launch.striding(
            kernel,
            self.count,
            warps,
            blocks_y=passes,
            threads_y=warps,
            shared_bytes=warps * bytes_of_warp,
        )


def too_wide(columns: int) -> str | None:
    """The reason why kernels can not hold a row of floats in shared memory; None if they can."""
    most = min(_MOST_COLUMNS, (Chip.current().block_bytes - _OTHER_BYTES) // _FLOAT_BYTES)
    return f"needs at most {most} columns, got {columns}" if columns > most else None
