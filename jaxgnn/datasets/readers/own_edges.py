"""Edges of a user's own graph, with weights and features, from a table of text or an ``.npy``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import BadFileError, bad_file
from jaxgnn.datasets.formats.graph_text import TextTable, read_table, text_suffix
from jaxgnn.datasets.formats.npy import read_npy
from jaxgnn.datasets.readers.own_tables import (
    Headers,
    Nodes,
    finite_number,
    is_number,
    is_whole,
    say_inferred,
)
from jaxgnn.datasets.records.node_dataset import distinct_edges

# Column names of the ends of an edge, in lower case.
_ENDS = ("source", "target", "src", "dst", "from", "to", "sender", "receiver", "senders")
_ENDS += ("receivers", "node1", "node2", "node_1", "node_2", "id_1", "id_2", "u", "v", "citing")
_ENDS += ("cited",)
_WEIGHTS = ("weight", "weights", "w", "edge_weight", "edge_weights")
_CONTENTS = "the two nodes of an edge"


class Edges(NamedTuple):
    """Edges of a graph, each once, sorted by sender and receiver.

    Attributes:
      ends: senders and receivers, int32 [2, edges].
      weights: float32 [edges], or None.
      features: float32 [edges, features], or None.
      names: names of the columns of the features, or None.
    """

    ends: np.ndarray
    weights: np.ndarray | None = None
    features: np.ndarray | None = None
    names: tuple[str, ...] | None = None


def read_edges(
    path: Path,
    nodes: Nodes,
    *,
    directed: bool,
    headers: Headers,
    edge_columns: Sequence[str] | None,
) -> Edges:
    """Reads edges, and the numbers in the columns behind their two nodes.

    Args:
      path: their file.
      nodes: the nodes of the graph.
      directed: whether an edge leads only from its first node to its second.
      headers: whether the first row names the columns.
      edge_columns: names of the columns to read besides the nodes; None for all.
    """
    if text_suffix(path) == ".npy":
        if edge_columns:
            expected = "None for edges in an .npy file, which has no columns but the nodes"
            raise bad_input("datasets.read_graph", "edge_columns", expected, edge_columns)
        return _each_edge_once(_edge_array(path, nodes), np.zeros((0, 0)), nodes.count, directed)
    table = read_table(path, _CONTENTS, headers.choose("edges", _heads_edges))
    if table.columns < 2:
        line = table.numbers[0]
        raise bad_file(path, f"line {line}: expected 2 columns ({_CONTENTS}), got {table.columns}")
    at = _columns_of_ends(table)
    is_inferred = table.header and any(table.header[column] not in _ENDS for column in at)
    if is_inferred and headers.is_open("edges"):
        say_inferred(path, f"line 1 names the columns {', '.join(table.header)}", "header=False")
    columns = _columns_of_numbers(table, at, edge_columns)
    pairs = np.array(
        [_ends_of_row(table, row, at, nodes, headers) for row in range(len(table.rows))]
    )
    numbers = [
        [finite_number(table, row, column, _hint(table, column)) for column in columns]
        for row in range(len(table.rows))
    ]
    values = np.array(numbers, np.float32).reshape(len(table.rows), len(columns))
    edges = _each_edge_once(pairs.T, values, nodes.count, directed, table)
    return _named(edges, values=edges.features, names=list(columns.values()))


def _columns_of_ends(table: TextTable) -> tuple[int, int]:
    """Returns the columns of the two nodes: those whose names say so, or the first two."""
    columns = [column for column, name in enumerate(table.header) if name in _ENDS]
    return (columns[0], columns[1]) if len(columns) == 2 else (0, 1)


def _columns_of_numbers(
    table: TextTable, ends: tuple[int, int], asked: Sequence[str] | None
) -> dict[int, str]:
    """Names of the columns that are read besides the nodes, by their place."""
    others = [column for column in range(table.columns) if column not in ends]
    where = "datasets.read_graph"
    if asked is not None and (isinstance(asked, str) or not all(isinstance(a, str) for a in asked)):
        raise bad_input(where, "edge_columns", "a sequence of names, or None", repr(asked))
    if table.header:
        names = {column: table.header[column] for column in others}
        if asked is None:
            return names
        wanted = [name.lower() for name in asked]
        missing = [name for name in wanted if name not in names.values()]
        if missing:
            expected = f"among the columns of {table.path}, {', '.join(names.values()) or 'none'}"
            raise bad_input(where, "edge_columns", expected, repr(missing[0]))
        return {column: name for column, name in names.items() if name in wanted}
    if asked is not None:
        if asked and len(asked) != len(others):
            expected = f"a name for each of the {len(others)} columns behind the nodes, or empty"
            raise bad_input(where, "edge_columns", expected, f"{list(asked)} for {table.path}")
        return dict(zip(others, [name.lower() for name in asked], strict=False))
    if len(others) == 1:
        what, way = "column 3 is the weight of the edge", 'edge_columns=("feature",)'
        say_inferred(table.path, what, f"{way} for a feature, or edge_columns=() for neither")
        return {others[0]: "weight"}
    if others:
        what = f"columns 3 to {table.columns} are features of the edge"
        way = "edge_columns with a name for each of them, such as 'weight', or () for none"
        say_inferred(table.path, what, way)
    return {column: str(column + 1) for column in others}


def _ends_of_row(
    table: TextTable, row: int, at: tuple[int, int], nodes: Nodes, headers: Headers
) -> list[int]:
    try:
        return [nodes.find(table, row, column) for column in at]
    except BadFileError as error:
        if row or table.header or not headers.is_open("edges"):
            raise
        raise BadFileError(f"{error}; if this line names the columns, pass header=True") from None


def _hint(table: TextTable, column: int) -> str:
    name = table.header[column] if table.header else f"column {column + 1}"
    return f"a finite number of {name} (edge_columns leaves columns out)"


def _named(edges: Edges, values: np.ndarray | None, names: list[str]) -> Edges:
    """Takes the weights out of the numbers; the others are features."""
    if values is None or not names:
        return edges._replace(features=None)
    of_weights = [place for place, name in enumerate(names) if name in _WEIGHTS][:1]
    rest = [place for place in range(len(names)) if place not in of_weights]
    return Edges(
        edges.ends,
        weights=np.ascontiguousarray(values[:, of_weights[0]]) if of_weights else None,
        features=np.ascontiguousarray(values[:, rest]) if rest else None,
        names=tuple(names[place] for place in rest) or None,
    )


def _each_edge_once(
    pairs: np.ndarray,
    values: np.ndarray,
    count: int,
    directed: bool,
    table: TextTable | None = None,
) -> Edges:
    """Returns each edge once with its numbers; raises if its repeats have others."""
    if not values.size or table is None:
        return Edges(distinct_edges(pairs, count, both_directions=not directed))
    rows = np.arange(pairs.shape[1])
    if not directed:
        pairs = np.concatenate([pairs, pairs[::-1]], axis=1)
        rows = np.concatenate([rows, rows])
    cells = pairs[0].astype(np.int64) * count + pairs[1]
    cells, first, place = np.unique(cells, return_index=True, return_inverse=True)
    ends = np.stack(np.divmod(cells, max(count, 1))).astype(np.int32)
    differ = (values[rows] != values[rows[first[place]]]).any(axis=1)
    if differ.any():
        at = int(np.argmax(differ))
        other, row = sorted((int(rows[at]), int(rows[first[place[at]]])))
        how = "" if directed else " in either direction (directed=True keeps them apart)"
        expected = f"the numbers of the same edge in line {table.numbers[other]}{how}"
        raise table.fault(row, table.columns - 1, expected)
    return Edges(ends, features=values[rows[first]])


def _heads_edges(first: list[str], rest: list[list[str]]) -> bool:
    """Returns whether the first row of edges names columns."""
    named = [cell.lower() in _ENDS for cell in first]
    if sum(named) == 2 and not any(map(is_number, first)):
        return True
    if not rest or any(map(is_number, first)):
        return False
    behind = range(2, len(first))
    if any(all(is_number(row[column]) for row in rest) for column in behind):
        return True
    return all(is_whole(cell) for row in rest for cell in row)


def _edge_array(path: Path, nodes: Nodes) -> Any:
    """Returns ids of nodes, [2, edges] int32."""
    values = read_npy(path, "the edges of a graph, [2, edges] or [edges, 2]")
    if values.ndim != 2 or 2 not in values.shape or not values.size:
        raise bad_file(path, f"expected edges as [2, edges] or [edges, 2], got {values.shape}")
    return nodes.find_all(path, values if len(values) == 2 else values.T, "the nodes of edges")
