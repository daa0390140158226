"""Lets ``jax.export`` serialise programs whose arguments or results are pytrees of this library.

Besides its arrays a pytree has static options. They are written as JSON: numbers, names, tuples of
these, the shape of edge blocks and grids of cells. Reading them never runs code from a file.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax.export

from jaxgnn._errors import bad_input
from jaxgnn.graph.batch.graph_batch import GraphBatch
from jaxgnn.graph.csr.cbsr import CBSR
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.masked_graph import MaskedGraph
from jaxgnn.graph.hetero.hetero_graph import HeteroGraph
from jaxgnn.graph.hetero.relational import RelationalGraph
from jaxgnn.graph.incidence.incidence import Incidence
from jaxgnn.graph.incidence.incidence_plan import IncidencePlan
from jaxgnn.graph.plan.edge_blocks import BlockShape, BlockTasks, EdgeBlocks
from jaxgnn.graph.plan.plan import GraphPlan
from jaxgnn.graph.plan.schedule import RowSchedule
from jaxgnn.graph.points.cell_grid import CellGrid
from jaxgnn.graph.points.neighbour_edges import NeighbourEdges
from jaxgnn.graph.points.neighbour_list import NeighbourList

_TYPES = (
    CSRGraph,
    MaskedGraph,
    CBSR,
    Incidence,
    GraphBatch,
    GraphPlan,
    IncidencePlan,
    RowSchedule,
    EdgeBlocks,
    BlockTasks,
    NeighbourEdges,
    NeighbourList,
    RelationalGraph,
    HeteroGraph,
)


def options_as_bytes(options: tuple[Any, ...]) -> bytes:
    """Returns the static options of a pytree, in the order of its fields, as JSON."""
    for option in options:
        if jax.export.is_symbolic_dim(option):
            raise ValueError(
                f"jax.export: a graph must have a known number of columns, got {option}; "
                "jaxgnn.export takes graphs of symbolic sizes"
            )
    records = BlockShape, CellGrid
    plain = [dataclasses.asdict(o) if isinstance(o, records) else o for o in options]
    return json.dumps(plain, default=int).encode()


def options_from_bytes(content: bytes) -> tuple[Any, ...]:
    """Returns the options that ``options_as_bytes`` has written; ValueError for other bytes."""
    try:
        stored = json.loads(content)
        if not isinstance(stored, list):
            raise ValueError(f"a {type(stored).__name__}")
        return tuple(map(_option, stored))
    except (ValueError, RecursionError) as error:
        expected = "options of a graph, as jaxgnn writes them"
        raise bad_input("jax.export", "the file", expected, str(error)[:80]) from error


def _option(stored: Any) -> Any:
    if isinstance(stored, list):
        return tuple(map(_option, stored))
    if not isinstance(stored, dict):
        return stored
    return _cell_grid(stored) if "periodic" in stored else _block_shape(stored)


def _block_shape(stored: dict[str, Any]) -> BlockShape:
    kinds = {"tiles": list, "order": str}
    names = [field.name for field in dataclasses.fields(BlockShape)]
    are_kinds = all(type(value) is kinds.get(name, int) for name, value in stored.items())
    if list(stored) != names or not are_kinds or set(map(type, stored["tiles"])) - {int}:
        raise ValueError(f"the shape of blocks {stored!r}")
    sizes: dict[str, Any] = {**stored, "tiles": tuple(stored["tiles"])}
    return BlockShape(**sizes)


def _cell_grid(stored: dict[str, Any]) -> CellGrid:
    kinds = {"periodic": bool, "widths": float}
    names = [field.name for field in dataclasses.fields(CellGrid)]
    entries = {name: [value] if name == "words" else value for name, value in stored.items()}
    are_kinds = all(
        isinstance(value, list) and not set(map(type, value)) - {kinds.get(name, int)}
        for name, value in entries.items()
    )
    if list(stored) != names or not are_kinds:
        raise ValueError(f"the grid of cells {stored!r}")
    sizes: dict[str, Any] = {name: tuple(value) for name, value in entries.items()}
    return CellGrid(**{**sizes, "words": stored["words"]})


for _type in _TYPES:
    jax.export.register_pytree_node_serialization(
        _type,
        serialized_name=f"jaxgnn.{_type.__name__}",
        serialize_auxdata=options_as_bytes,
        deserialize_auxdata=options_from_bytes,
    )
