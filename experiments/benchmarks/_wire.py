"""Bytes that devices exchange in a step: predicted from shapes, and counted in compiled programs.

Both count what one device receives from the others in one step.
"""

from __future__ import annotations

import math
import re

import jax.numpy as jnp

from jaxgnn.distributed import ShardedGraph
from jaxgnn.graph import column_dtype

_BITS = {"pred": 8, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16}
_BITS |= {"s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64}
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_COLLECTIVE = re.compile(
    r"= (?P<result>\(.*?\)|\S+) "
    r"(?P<kind>all-gather|reduce-scatter|all-to-all|all-reduce|collective-permute)(?P<start>-start)?\("
)


def predicted_bytes(graph: ShardedGraph, layers: int, width: int, k: int | None) -> int:
    """Bytes of the rows that a device receives: each layer's features, and their gradients.

    Args:
      graph: the graph, which gives the number of received rows and their dtype.
      layers: number of convolutions, each with one exchange forward and one back.
      width: width of the features, in float32.
      k: entries kept of each row; None for dense rows.
    """
    wire = graph.blocks.halo.wire_dtype or "float32"
    return layers * graph.rows_received * bytes_of_row(width, k, wire)


def bytes_of_row(width: int, k: int | None, wire: str = "float32") -> int:
    """Bytes that a row of features takes in a layer, forward and backward together.

    Args:
      width: width of the features.
      k: entries kept of each row, of which values and columns are sent forward and values
        backward; None for dense rows.
      wire: name of the dtype in which values travel.
    """
    value = jnp.dtype(wire).itemsize
    if k is None:
        return 2 * value * width
    return (value + column_dtype(width).itemsize + value) * k


def counted_bytes(program: str, devices: int) -> dict[str, int]:
    """Bytes that a device receives in the collectives of a compiled program, by their kind.

    An all-reduce counts as a reduce-scatter and an all-gather, each of a part of the array.

    Args:
      program: the text of the optimised program.
      devices: number of devices, all of which take part in each collective.
    """
    counted: dict[str, int] = {}
    others = (devices - 1) / devices
    for match in _COLLECTIVE.finditer(program):
        kind = match["kind"]
        sizes = [_nbytes(*array) for array in _ARRAY.findall(match["result"])]
        if match["start"]:
            sizes = sizes[len(sizes) // 2 :]  # the operands precede the results
        parts = {"reduce-scatter": devices, "all-reduce": 2}.get(kind, 1)
        counted[kind] = counted.get(kind, 0) + round(sum(sizes) * parts * others)
    return counted


def _nbytes(dtype: str, shape: str) -> int:
    return _BITS[dtype] // 8 * math.prod(int(size) for size in shape.split(",") if size)
